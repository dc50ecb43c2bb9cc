"""Checksums of what the registry has."""

import pytest

from sluice_lab.testbed.jars import has_artifact


@pytest.mark.parametrize(
    ("artifact", "present"),
    [("zstd-jni", True), ("scala-library", True), ("commons-pool", True), ("commons-pool2", False), ("scala", False)],
)
def test_a_jar_that_pyspark_has_is_known_by_its_artifact_whatever_the_version(artifact: str, present: bool) -> None:
    names = ["zstd-jni-1.5.7-7.jar", "scala-library-2.13.18.jar", "commons-pool-1.5.4.jar"]

    assert has_artifact(artifact, names) is present
