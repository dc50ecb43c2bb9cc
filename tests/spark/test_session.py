"""The Spark session that Sluice makes."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_options_for_java_are_added_to_sluices_own(spark: SparkSession) -> None:
    """Section `spark` of the settings must not switch off Sluice's logging by the way."""
    options = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions", "")
    assert options.startswith("-Dlog4j2.configurationFile=file:")
    assert options.endswith(" -XX:TieredStopAtLevel=1")

    jvm: Any = spark._jvm
    started_with = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert set(options.split()) <= set(started_with)
