"""Keys of pages, by Spark's own hash."""

from collections import Counter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.streaming.checkpoint.page_keys import spark_key_of_page

pytestmark = pytest.mark.spark


def test_spark_hashes_the_key_of_a_page_to_the_pages_number(spark: SparkSession) -> None:
    """So the pages take turns over the state partitions, however many there are."""
    keys = spark.createDataFrame(
        [(page, spark_key_of_page(page, 300)) for page in range(300)], "page int, shard_key int"
    )

    assert keys.where(F.hash("shard_key") != F.col("page")).count() == 0


@pytest.mark.parametrize("partitions", [2, 7, 24])
def test_a_page_is_split_within_its_partition(spark: SparkSession, partitions: int) -> None:
    """One task needs all pages that it becomes."""
    rows = [(page, spark_key_of_page(page, 8)) for page in range(128)]
    spread = spark.createDataFrame(rows, "page int, shard_key int").repartition(partitions, "shard_key")

    found = {
        row.page: row.partition for row in spread.select("page", F.spark_partition_id().alias("partition")).collect()
    }
    assert all(found[page] == found[page % 8] for page in range(128))


@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_no_task_has_two_pages_more_than_another(spark: SparkSession, partitions: int) -> None:
    """Keys 0 to 31 gave one of two tasks 20 pages, and the other waited for it."""
    keys = spark.createDataFrame([(spark_key_of_page(page, 32),) for page in range(32)], "shard_key int")
    spread = keys.repartition(partitions, "shard_key").select(F.spark_partition_id().alias("partition")).collect()

    pages = Counter(row.partition for row in spread)
    assert len(pages) == partitions
    assert max(pages.values()) - min(pages.values()) <= 1
