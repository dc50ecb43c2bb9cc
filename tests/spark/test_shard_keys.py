"""Keys of shards, by Spark's own hash."""

from collections import Counter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming.checkpoint.shard_keys import spark_key_of_shard

pytestmark = pytest.mark.spark


def test_spark_hashes_the_key_of_a_shard_to_the_shards_number(spark: SparkSession) -> None:
    """So the shards take turns over the state partitions, however many there are."""
    keys = spark.createDataFrame(
        [(shard, spark_key_of_shard(shard)) for shard in range(300)], "shard int, shard_key int"
    )

    assert keys.where(F.hash("shard_key") != F.col("shard")).count() == 0


@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_no_task_has_two_shards_more_than_another(spark: SparkSession, partitions: int) -> None:
    """Keys 0 to 31 gave one of two tasks 20 shards, and the other waited for it."""
    keys = spark.createDataFrame([(spark_key_of_shard(shard),) for shard in range(32)], "shard_key int")
    spread = keys.repartition(partitions, "shard_key").select(F.spark_partition_id().alias("partition")).collect()

    shards = Counter(row.partition for row in spread)
    assert len(shards) == partitions
    assert max(shards.values()) - min(shards.values()) <= 1
