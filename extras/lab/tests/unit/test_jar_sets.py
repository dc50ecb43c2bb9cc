"""The jars of the extras: one list of versions each, checked sums, and releases that fit together."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.jvm import jars
from sluice.jvm.errors import JarError
from sluice.jvm.jars import SPARK_JARS, JarSet, pyspark_jars
from sluice_demo.jars import BROKER_JARS
from sluice_lab.testbed.jars import HDFS_JARS, KAFKA_RELEASE_JARS, OLD_BROKER_JARS, PEER_JARS
from sluice_proxy.jars import PROXY_JARS, proxy_class_path
from sluice_shared_storage.jars import S3_JARS, object_store_jars
from sluice_telemetry.jars import TELEMETRY_JARS
from tests.jar_versions import versions_of, versions_of_pom


def test_the_poms_have_the_versions_that_the_jars_are_compiled_against() -> None:
    """An IDE would compile against others."""
    of_storage, of_telemetry = versions_of_pom("extras/shared_storage"), versions_of_pom("extras/telemetry")
    own = {("sluice-kafka-plugin", "0"), *versions_of(TELEMETRY_JARS).items()}

    assert versions_of_pom("extras/proxy") == versions_of(PROXY_JARS)
    assert of_telemetry.items() - versions_of_pom("gateways/kafka").items() == own
    assert {*TELEMETRY_JARS.expected()} < {*BROKER_JARS.expected()}
    there = {*SPARK_JARS.expected(), *S3_JARS.expected(), *os.listdir(pyspark_jars())}
    assert {f"{artifact}-{version}.jar" for artifact, version in of_storage.items()} <= there


@pytest.mark.parametrize(
    ("jar_set", "artifact"),
    [(S3_JARS, "hadoop-aws"), (BROKER_JARS, "kafka_2.13"), (PEER_JARS, "kafka-streams")],
)
def test_every_set_has_checksums(jar_set: JarSet, artifact: str) -> None:
    checksums = jar_set.expected()

    assert f"{artifact}-{versions_of(jar_set)[artifact]}.jar" in checksums
    assert all(len(digest) == 64 for digest in checksums.values())


@pytest.mark.parametrize(("is_checkout", "fix"), [(True, "run ./scripts/setup"), (False, "install a release")])
@pytest.mark.parametrize("needed", [proxy_class_path, object_store_jars])
def test_a_jar_of_an_extra_that_was_not_built_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: Callable[[], list[Path]], is_checkout: bool, fix: str
) -> None:
    for module in ("sluice_proxy.jars", "sluice_shared_storage.jars"):
        monkeypatch.setattr(f"{module}.BUILT", tmp_path)
    monkeypatch.setattr(jars, "in_checkout", lambda: is_checkout)

    with pytest.raises(JarError, match=rf"\.jar is missing; {fix}"):
        needed()


def test_the_peer_of_the_bench_has_the_kafka_of_the_broker() -> None:
    assert versions_of(PEER_JARS)["kafka-streams"] == versions_of(BROKER_JARS)["kafka_2.13"]


@pytest.mark.parametrize(("release", "broker"), [("3.9", OLD_BROKER_JARS), ("4.3", BROKER_JARS)])
def test_kafkas_own_tests_have_the_version_of_their_broker(release: str, broker: JarSet) -> None:
    version = versions_of(broker)["kafka_2.13"]

    assert set(versions_of(KAFKA_RELEASE_JARS[release]).values()) == {version}
    assert f"kafka_2.13-{version}-test.jar" in KAFKA_RELEASE_JARS[release].expected()


@pytest.mark.parametrize(
    ("jar_set", "old", "new"), [(HDFS_JARS, "runtime", "minicluster"), (S3_JARS, "client-runtime", "aws")]
)
def test_hdfs_and_the_client_of_s3_have_the_release_of_the_hadoop_of_pyspark(
    jar_set: JarSet, old: str, new: str
) -> None:
    (client,) = pyspark_jars().glob("hadoop-client-runtime-*.jar")

    assert client.name.replace(old, new) in jar_set.expected()


def test_the_client_of_s3_has_modules_of_one_release_and_no_bundle_of_all() -> None:
    versions = {version for name, version in versions_of(S3_JARS).items() if name != "hadoop-aws"}

    assert len(versions) == 1
    assert not [jar for jar in S3_JARS.expected() if jar.startswith("bundle-")]
