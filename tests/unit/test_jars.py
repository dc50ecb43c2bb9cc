"""The jars: one list of versions, checked sums, and a start that does nothing when all is there."""

import hashlib
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from streaming import jars
from streaming.errors import JarError, JavaError
from streaming.java import check_java_version, find_java, parse_java_version


def _pins() -> dict[str, str]:
    project = tomllib.loads((jars.REPOSITORY / "pyproject.toml").read_text())["project"]
    return dict(dependency.split("==") for dependency in project["dependencies"])


def _jar_versions() -> dict[str, str]:
    tree = ElementTree.parse(jars.VERSIONS)  # noqa: S314 - our own file
    return {found.attrib["name"]: found.attrib["rev"] for found in tree.iter("dependency")}


@pytest.mark.parametrize(
    ("package", "artifact"),
    [("pyspark", "spark-sql-kafka-0-10_2.13"), ("delta-spark", "delta-spark_4.2_2.13")],
)
def test_a_jar_has_the_version_of_its_python_package(package: str, artifact: str) -> None:
    assert _jar_versions()[artifact] == _pins()[package]


@pytest.mark.parametrize(("conf", "artifact"), [("spark", "delta-spark_4.2_2.13"), ("broker", "kafka_2.13")])
def test_every_conf_has_checksums(conf: str, artifact: str) -> None:
    checksums = jars.read_checksums(jars.CHECKSUMS, conf)

    assert f"{artifact}-{_jar_versions()[artifact]}.jar" in checksums
    assert all(len(digest) == 64 for digest in checksums.values())


def test_spark_gets_no_jar_of_the_broker() -> None:
    assert "kafka-clients-3.9.2.jar" in jars.read_checksums(jars.CHECKSUMS, "spark")
    assert "kafka-clients-4.3.1.jar" not in jars.read_checksums(jars.CHECKSUMS, "spark")


def test_the_ivy_settings_name_no_host() -> None:
    assert "://" not in (jars.REPOSITORY / "configs" / "ivysettings.xml").read_text()


def _jar(folder: Path, name: str, content: bytes) -> tuple[Path, dict[str, str]]:
    jar = folder / name
    jar.write_bytes(content)
    return jar, {name: hashlib.sha256(content).hexdigest()}


def test_the_right_jars_pass(tmp_path: Path) -> None:
    jar, checksums = _jar(tmp_path, "a-1.jar", b"content")

    jars.check_jars([jar], checksums, "try again")


def test_a_jar_with_other_content_is_refused(tmp_path: Path) -> None:
    jar, checksums = _jar(tmp_path, "a-1.jar", b"content")
    jar.write_bytes(b"c0ntent")

    with pytest.raises(JarError, match=r"a-1\.jar has SHA-256 \w{64}, expected \w{64} .*; try again"):
        jars.check_jars([jar], checksums, "try again")


def test_an_unknown_jar_is_refused(tmp_path: Path) -> None:
    jar, _ = _jar(tmp_path, "b-1.jar", b"content")

    with pytest.raises(JarError, match=r"b-1\.jar is a jar that configs/jars\.sha256 doesn't know; try again"):
        jars.check_jars([jar], {}, "try again")


def test_a_missing_jar_is_noticed(tmp_path: Path) -> None:
    _, checksums = _jar(tmp_path, "a-1.jar", b"content")

    with pytest.raises(JarError, match=r"a-1\.jar of configs/jars\.sha256 is missing; try again"):
        jars.check_jars([], checksums, "try again")


@pytest.mark.parametrize(
    ("artifact", "present"),
    [("zstd-jni", True), ("scala-library", True), ("commons-pool", True), ("commons-pool2", False), ("scala", False)],
)
def test_a_jar_that_pyspark_has_is_known_by_its_artifact_whatever_the_version(artifact: str, present: bool) -> None:
    names = ["zstd-jni-1.5.7-7.jar", "scala-library-2.13.18.jar", "commons-pool-1.5.4.jar"]

    assert jars.has_artifact(artifact, names) is present


@pytest.mark.parametrize(
    ("banner", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Da=b\nopenjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "24-ea" 2025-03-18', 24),
    ],
)
def test_the_java_version_is_read_from_its_banner(banner: str, major: int) -> None:
    assert parse_java_version(banner) == major


@pytest.mark.parametrize("banner", ["", "Error: could not find libjava.so"])
def test_a_java_without_a_version_is_refused(banner: str) -> None:
    with pytest.raises(JavaError, match=r"java -version answers with no version .*; install Java 17 or 21"):
        parse_java_version(banner)


def test_java_17_is_the_oldest() -> None:
    check_java_version(17, "java")

    with pytest.raises(JavaError, match="/opt/java is Java 11, which is too old; install Java 17 or 21"):
        check_java_version(11, "/opt/java")


def test_no_java_at_all_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(JavaError, match="no java on PATH and JAVA_HOME is not set; install Java 17 or 21"):
        find_java()


def test_a_wrong_java_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaError, match=f"JAVA_HOME is {tmp_path}, but there is no bin/java in it"):
        find_java()
