"""Archives of classes: the name says what one fits, and two processes make it once."""

import gzip
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.jvm.class_archive import SPARK_CLASSES, ArchivedClasses, archive_key
from sluice.process import processes
from sluice_demo.jars import BROKER_CLASSES
from tests.commands import program

JAVA = 'openjdk version "17.0.15" 2025-04-15'

_DUMPS = """#!/bin/bash
if [[ "$1" == -version ]]; then echo 'openjdk version "17.0.15"'; exit; fi
for option in "$@"; do [[ $option == -XX:SharedArchiveFile=* ]] && echo archive >"${option#*=}"; done
echo made >>"$JAVA_HOME/made"
"""
"""A Java that writes an archive, and tells that it has."""


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    """Two jars."""
    jars = [tmp_path / "a-1.jar", tmp_path / "b-1.jar"]
    for jar in jars:
        jar.write_bytes(b"content")
    return jars


@pytest.fixture
def classes(jars: list[Path]) -> ArchivedClasses:
    """The classes of the jars."""
    return ArchivedClasses("Spark's", "classes", SPARK_CLASSES.names, lambda: jars)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the archives, for a Java that makes some."""
    program(tmp_path / "java" / "bin" / "java", _DUMPS)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "jars"


def made(home: Path) -> int:
    """Number of archives that Java made."""
    return len((home.parent.parent / "java" / "made").read_text().splitlines())


def test_an_archive_fits_one_java_one_list_and_the_same_jars_in_the_same_order(jars: list[Path]) -> None:
    key = archive_key(JAVA, b"classes", jars)

    assert archive_key(JAVA, b"classes", jars) == key
    others = {
        archive_key(JAVA.replace("15", "16"), b"classes", jars),
        archive_key(JAVA, b"other classes", jars),
        archive_key(JAVA, b"classes", jars[::-1]),
    }
    jars[0].write_bytes(b"other content")
    others.add(archive_key(JAVA, b"classes", jars))
    os.utime(jars[1], (1, 1))
    others.add(archive_key(JAVA, b"classes", jars))
    assert len(others | {key}) == 6


def test_an_archive_is_made_once_for_its_owner_alone_and_found(home: Path, classes: ArchivedClasses) -> None:
    assert classes.find() is None

    classes.make()
    classes.make()

    archive = classes.find()
    assert archive is not None
    assert archive.file.read_text() == "archive\n"
    assert stat.S_IMODE(archive.file.stat().st_mode) == 0o600
    assert made(home) == 1
    assert sorted(file.name for file in home.iterdir()) == sorted([archive.file.name, "lock-classes"])


def test_an_archive_that_takes_long_says_so_and_what_a_killed_process_left_is_removed(
    home: Path, classes: ArchivedClasses, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SAID_S", 0.001)
    (home / "classes.making").mkdir(parents=True)

    classes.make()

    assert "jars: archiving Spark's classes for 0 s\n" in capsys.readouterr().err
    assert sorted(file.suffix for file in home.iterdir()) == ["", ".jsa"]


def test_the_archive_of_jars_that_changed_is_replaced(home: Path, jars: list[Path], classes: ArchivedClasses) -> None:
    classes.make()
    jars[0].write_bytes(b"other content")
    assert classes.find() is None

    classes.make()

    assert classes.find() is not None
    assert len(list(home.glob("*.jsa"))) == 1


@pytest.mark.parametrize("said", ["no such option", "#\n# no such option\n#\n#  SIGSEGV"], ids=["refuses", "crashes"])
def test_a_java_that_cannot_archive_is_one_line_and_stops_nothing(
    home: Path, classes: ArchivedClasses, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    (home.parent.parent / "java" / "bin" / "java").write_text(
        _DUMPS.replace("for option", f"echo '{said}' >&2; exit 1; for option")
    )

    classes.make()

    assert classes.find() is None
    assert list(home.glob("classes*")) == []
    assert "can't archive classes: no such option; Java loads Spark's classes without" in capsys.readouterr().err


def test_a_class_path_that_is_too_long_for_one_argument_has_no_archive(
    home: Path, classes: ArchivedClasses, jars: list[Path]
) -> None:
    """Linux would refuse to start Java."""
    classes = replace(classes, jars=lambda: jars * (100_000 // len(f"{jars[0]}:{jars[1]}:") + 1))

    classes.make()

    assert classes.find() is None
    assert not home.exists()


def names(classes: ArchivedClasses) -> set[str]:
    """The names on a list."""
    return set(gzip.decompress(classes.names.read_bytes()).decode().splitlines())


def test_the_lists_have_classes_of_spark_and_kafka_and_of_a_broker() -> None:
    assert {
        "org/apache/spark/sql/execution/streaming/runtime/MicroBatchExecution",
        "org/apache/spark/sql/kafka010/KafkaMicroBatchStream",
        "org/apache/kafka/clients/producer/KafkaProducer",
    } <= names(SPARK_CLASSES)
    assert {"kafka/server/BrokerServer", "kafka/server/KafkaApis"} <= names(BROKER_CLASSES)


def test_the_archive_of_other_classes_stays(home: Path, jars: list[Path], classes: ArchivedClasses) -> None:
    others = ArchivedClasses("the broker's", "broker-classes", BROKER_CLASSES.names, lambda: jars)
    others.make()
    classes.make()
    jars[0].write_bytes(b"other content")

    classes.make()

    assert sorted(file.name.rpartition("-")[0] for file in home.glob("*.jsa")) == ["broker-classes", "classes"]
