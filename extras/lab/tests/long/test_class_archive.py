"""The archive of classes with the Java that makes it: a job uses it, and Java leaves one aside that is damaged."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sluice.jvm.class_archive import SPARK_CLASSES, ClassArchive, joined
from sluice.jvm.java import find_java
from sluice_demo.broker import Broker
from sluice_demo.jars import BROKER_CLASSES
from sluice_lab.testbed.jars import NEW_BROKER_JARS
from sluice_proxy.gateway import KafkaGateway
from sluice_proxy.jars import PROXY_CLASSES
from tests.integration.job_process import JobProcess, wait_until
from tests.integration.plugin_broker import proxy_settings

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def archive() -> ClassArchive:
    """The archive as set-up makes it."""
    SPARK_CLASSES.make()
    found = SPARK_CLASSES.find()
    assert found is not None
    return found


def java(archive: ClassArchive, *options: str) -> subprocess.CompletedProcess[str]:
    """A Java that only tells its version, with the archive."""
    command = [find_java()[0], *archive.options, *options, "-cp", joined(archive.class_path), "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _empty(content: bytes) -> bytes:
    return content[:0]


def _truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _changed_header(content: bytes) -> bytes:
    return content[:200] + b"\xff" * 16 + content[216:]


def _changed_class(content: bytes) -> bytes:
    half = len(content) // 2
    return content[:half] + b"\xff" * 16 + content[half + 16 :]


@pytest.mark.parametrize("damage", [_empty, _truncated, _changed_header, _changed_class])
def test_java_leaves_a_damaged_archive_aside_and_says_nothing(
    archive: ClassArchive, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """With `-Xshare:on` it would refuse to start, as it does without an archive that fits."""
    assert java(archive, "-Xshare:on").returncode == 0
    damaged = ClassArchive(tmp_path / "damaged.jsa", archive.class_path)
    damaged.file.write_bytes(damage(archive.file.read_bytes()))
    assert java(damaged, "-Xshare:on").returncode != 0

    ended = java(damaged)

    assert ended.returncode == 0
    assert ended.stdout + ended.stderr == java(damaged, "-Xshare:off").stderr


def mapped_files(pid: int) -> set[str]:
    """The files that a process has in its memory."""
    return {mapped.path for mapped in psutil.Process(pid).memory_maps()}


@pytest.mark.kafka
def test_a_broker_takes_its_classes_from_their_archive_and_one_of_another_kafka_does_not(tmp_path: Path) -> None:
    BROKER_CLASSES.make()
    archive = BROKER_CLASSES.find()
    assert archive is not None
    with Broker(tmp_path / "broker") as broker:
        assert str(archive.file) in mapped_files(broker.pid)

    with Broker(tmp_path / "other", jars=NEW_BROKER_JARS) as broker:
        assert str(archive.file) not in mapped_files(broker.pid)


@pytest.mark.kafka
def test_a_proxy_takes_its_classes_from_their_archive(kafka_broker: str, tmp_path: Path) -> None:
    PROXY_CLASSES.make()
    archive = PROXY_CLASSES.find()
    assert archive is not None
    with KafkaGateway(tmp_path / "proxy", proxy_settings(kafka_broker)) as proxy:
        assert str(archive.file) in mapped_files(proxy.pid)


@pytest.mark.kafka
def test_a_job_takes_its_classes_from_the_archive(archive: ClassArchive, kafka_broker: str, tmp_path: Path) -> None:
    job = JobProcess(tmp_path / "job", kafka_broker, [])
    try:
        job.start()
        job.publish([b'{"api": "Metadata"}'])
        wait_until(lambda: len(job.decisions()) == 1, 120)
        processes = psutil.Process(job.running().pid).children(recursive=True)
        java_process = next(process for process in processes if process.name() == "java")
        mapped = mapped_files(java_process.pid)
        log = job.log_file.read_text()
    finally:
        job.stop()

    assert str(archive.file) in mapped
    assert "the start takes longer" not in log
