"""Reading from and writing to Kafka, with the client properties of the settings."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.configs.settings import AuditSettings, EnforceSettings, Settings
from sluice.kafka_io.properties import java_properties
from sluice.state.decisions.leader_epochs import HEADER

_SOURCE_DEFAULTS = {
    "kafka.fetch.max.wait.ms": "10",  # every small micro-batch would wait for the default of 500 ms
    "kafka.max.poll.records": "5000",  # Kafka's defaults of this and the next property are too small for this rate
    "kafka.max.partition.fetch.bytes": str(4 * 1024 * 1024),
}
_BUFFER_BYTES = 32 * 1024 * 1024  # Kafka's own default

_SINK_DEFAULTS = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "5",
    "batch.size": str(512 * 1024),  # Kafka's default of 16 KiB holds few decisions
    "delivery.timeout.ms": "120000",
}

_START = "sluice.start"
"""A property that Kafka's clients pass over, by which Spark tells producers apart."""


def requests_source(spark: SparkSession, settings: Settings, starting_offsets: str) -> DataFrame:
    """A stream of the request events."""
    return kafka_source(spark, settings, [settings.topics.requests], starting_offsets, settings.enforce)


def kafka_source(
    spark: SparkSession,
    settings: Settings,
    topics: Sequence[str],
    starting_offsets: str,
    section: EnforceSettings | AuditSettings,
    headers: bool = False,
) -> DataFrame:
    """A stream of the topics' records, for the query with this section of the settings; with their headers if asked.

    `starting_offsets`, in Spark's form, are used on a new checkpoint only.
    """
    options = _SOURCE_DEFAULTS | _client_options(settings)
    return (
        spark.readStream.format("kafka")
        .options(**options)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", starting_offsets)
        .option("maxOffsetsPerTrigger", section.max_offsets_per_trigger)
        .option("failOnDataLoss", section.fail_on_data_loss)
        .option("includeHeaders", headers)
        .load()
    )


def kafka_since(spark: SparkSession, settings: Settings, topics: Sequence[str], since_ms: int) -> DataFrame:
    """A batch of the topics' records, with headers, that came since `since_ms`, in epoch milliseconds."""
    return (
        spark.read.format("kafka")
        .options(**_client_options(settings))
        .option("subscribe", ",".join(topics))
        .option("startingTimestamp", since_ms)
        .option("startingOffsetsByTimestampStrategy", "latest")
        .option("includeHeaders", True)
        .load()
    )


def epoch_header() -> Column:
    """The value of the last header of the column `headers` that has the epoch's name; null if there is none."""
    return F.element_at(F.filter("headers", lambda header: header.key == HEADER), -1).value


def sink_properties(settings: Settings, start: int = 0) -> dict[str, str]:
    """Properties of the producer that writes each row to its own topic.

    Spark keeps a producer for later micro-batches, and finds it by them. Each `start` of a query has its own: one that
    has failed never reads certificates, truststore and login again, which may have been replaced since.
    """
    # The producer's own bounds of a record; a dead letter holds up to 4 MiB in base64.
    most = settings.topics.max_message_bytes
    bounds = {"max.request.size": str(most), "buffer.memory": str(max(_BUFFER_BYTES, most))}
    own = {_START: str(start)} if start else {}
    return _SINK_DEFAULTS | bounds | own | java_properties(settings.kafka)


def _client_options(settings: Settings) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in java_properties(settings.kafka).items()}
