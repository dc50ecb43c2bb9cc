"""Baseline of the bench: a stateless Spark copy that moves as much data as the enforce query and decides nothing."""

import os
from dataclasses import replace
from typing import cast

from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from sluice.configs.settings import Properties, Settings
from sluice.jvm.jars import SPARK_JARS
from sluice.jvm.java import find_java
from sluice.streaming.runtime.kafka import kafka_writer, requests_source

_EVENT_SCHEMA = (
    "request_id string, timestamp_ms long, user string, client_id string, api string, api_version int, "
    "validate_only boolean, cluster_action boolean, authenticating boolean, request_time_ns long, "
    "network_time_ns long, purgatory_ms long, gateway string, "
    "topic_partitions array<struct<topic: string, partition: int, bytes: long>>, "
    "mutations array<struct<topic: string, partitions: long>>"
)
"""Request event as docs/request.schema.json defines it."""

_PLAIN_CLIENTS = {"max.poll.records": "500", "max.partition.fetch.bytes": "1048576", "batch.size": "16384"}
"""Kafka's defaults for the properties that the job sets itself: those of an untuned copy."""


def start_stock_session(settings: Settings) -> SparkSession:
    """A session as Spark's users start it, with its Kafka connector and Spark's defaults, but only on loopback."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    find_java()
    builder = SparkSession.builder.appName("copy").master(settings.spark["spark.master"])
    return (
        builder.config("spark.jars", ",".join(map(str, SPARK_JARS.paths())))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def start_copy(spark: SparkSession, settings: Settings, checkpoint: str, padding_bytes: int) -> StreamingQuery:
    """Copy each parsed event from Kafka to Kafka; `padding_bytes` make its record as large as a decision."""
    settings = replace(settings, kafka=Properties(_PLAIN_CLIENTS | settings.kafka))
    requests = requests_source(spark, settings, settings.enforce.starting_offsets)
    events = requests.select(F.from_json(F.col("value").cast("string"), _EVENT_SCHEMA).alias("event"))
    copies = events.select(
        F.concat_ws("|", "event.user", "event.client_id").alias("key"),
        F.to_json(F.struct("event.*", F.lit("x" * padding_bytes).alias("padding"))).alias("value"),
    )
    stream = copies.writeStream.queryName("copy").option("checkpointLocation", checkpoint)
    # Spark's two kinds of writer take the same options, and have no base class.
    written = kafka_writer(cast(DataFrameWriter, stream), settings).option("topic", settings.topics.decisions)
    return cast(StreamingQuery, written.start())  # type: ignore[attr-defined] # it is the stream's writer
