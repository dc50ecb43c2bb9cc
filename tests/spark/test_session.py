"""The Spark session that Sluice makes."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_options_for_java_are_added_to_sluices_own(spark: SparkSession) -> None:
    """Section `spark` of the settings must not switch off Sluice's logging by the way."""
    jvm: Any = spark._jvm
    options = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()

    assert [option for option in options if option.startswith("-Dlog4j2.configurationFile=file:")]
    assert "-XX:TieredStopAtLevel=1" in options
