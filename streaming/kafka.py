"""Reading from and writing to Kafka, with the client properties of the settings."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from configs.settings import Settings

_SOURCE_DEFAULTS = {
    "kafka.fetch.max.wait.ms": "10",  # the default of 500 ms is spent in every small micro-batch
    "kafka.max.poll.records": "5000",  # Kafka's own values of this and the next are made for slower readers
    "kafka.max.partition.fetch.bytes": str(4 * 1024 * 1024),
}
_SINK_DEFAULTS = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.linger.ms": "5",
    "kafka.batch.size": str(512 * 1024),  # Kafka's own 16 KiB hold some 25 decisions
    "kafka.max.request.size": str(8 * 1024 * 1024),  # a dead letter holds up to 4 MiB in base64
    "kafka.delivery.timeout.ms": "120000",
}


def requests_source(spark: SparkSession, settings: Settings, starting_offsets: str) -> DataFrame:
    """A stream of the request events."""
    return kafka_source(
        spark, settings, [settings.topics.requests], starting_offsets, settings.enforce.max_offsets_per_trigger
    )


def kafka_source(
    spark: SparkSession, settings: Settings, topics: Sequence[str], starting_offsets: str, max_offsets_per_trigger: int
) -> DataFrame:
    """A stream of the topics' records."""
    options = _SOURCE_DEFAULTS | _client_options(settings)
    return (
        spark.readStream.format("kafka")
        .options(**options)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", starting_offsets)
        .option("maxOffsetsPerTrigger", max_offsets_per_trigger)
        .option("failOnDataLoss", settings.enforce.fail_on_data_loss)
        .load()
    )


def kafka_since(spark: SparkSession, settings: Settings, topics: Sequence[str], since_ms: int) -> DataFrame:
    """The topics' records that the broker got at `since_ms` or later, as far as there are now."""
    return (
        spark.read.format("kafka")
        .options(**_client_options(settings))
        .option("subscribe", ",".join(topics))
        .option("startingTimestamp", since_ms)
        .option("startingOffsetsByTimestampStrategy", "latest")
        .load()
    )


def kafka_writer(writer: DataFrameWriter, settings: Settings) -> DataFrameWriter:
    """The writer of records (topic, key, value), each to its own topic."""
    return writer.format("kafka").options(**(_SINK_DEFAULTS | _client_options(settings)))


def _client_options(settings: Settings) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in settings.kafka.items()}
