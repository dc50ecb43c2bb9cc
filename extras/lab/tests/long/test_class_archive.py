"""The archive of classes with the Java that makes it: a job uses it, and Java leaves one aside that is damaged."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sluice.jvm.class_archive import SPARK_CLASSES, ArchivedClasses, ClassArchive, joined
from sluice.jvm.java import find_java
from sluice_demo.broker import Broker
from sluice_demo.jars import BROKER_CLASSES
from sluice_lab.testbed.jars import NEW_BROKER_JARS
from sluice_proxy.gateway import KafkaGateway
from sluice_proxy.jars import PROXY_CLASSES
from tests.integration.job_process import JobProcess, wait_until
from tests.integration.plugin_broker import proxy_settings

pytestmark = [pytest.mark.spark, pytest.mark.long]

_BOUND = """class Bound { public static void main(String[] arguments) throws Throwable {
    var type = java.lang.invoke.MethodType.methodType(int.class, int.class, int.class);
    var max = java.lang.invoke.MethodHandles.lookup().findStatic(Math.class, "max", type);
    System.out.println(java.lang.invoke.MethodHandles.insertArguments(max, 0, 3, 5).invoke()); } }"""  # bound methods


def made(archived: ArchivedClasses) -> ClassArchive:
    """An archive as set-up makes it."""
    archived.make()
    (found,) = filter(None, [archived.find()])
    return found


@pytest.fixture(scope="module")
def archive() -> ClassArchive:
    return made(SPARK_CLASSES)


def java(archive: ClassArchive, *options: str, run: str = "-version") -> subprocess.CompletedProcess[str]:
    """A Java with the archive that has run something."""
    command = [find_java()[0], *archive.options, *options, "-cp", joined(archive.class_path), run]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _changed(content: bytes, place: int) -> bytes:
    return content[:place] + b"\xff" * 16 + content[place + 16 :]


_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: content[:0],
    "truncated": lambda content: content[: len(content) // 2],
    "changed header": lambda content: _changed(content, 200),
    "changed class": lambda content: _changed(content, len(content) // 2),
}


@pytest.mark.parametrize("damage", _DAMAGES.values(), ids=_DAMAGES.keys())
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


def test_java_with_the_archive_runs_under_a_flight_recorder(archive: ClassArchive, tmp_path: Path) -> None:
    """Java 17 crashes on a class that it made by itself and finds in an archive, if a recorder or an agent sees it."""
    options = "-XX:StartFlightRecording", f"-XX:ErrorFile={tmp_path / 'crash.log'}"
    (source := tmp_path / "Bound.java").write_text(_BOUND)
    assert java(archive, *options, run=str(source)).stdout.endswith("5\n")


def mapped_files(pid: int) -> set[str]:
    """The files that a process has in its memory."""
    return {mapped.path for mapped in psutil.Process(pid).memory_maps()}


@pytest.mark.kafka
def test_a_broker_takes_its_classes_from_their_archive_and_one_of_another_kafka_does_not(tmp_path: Path) -> None:
    archive = made(BROKER_CLASSES)
    with Broker(tmp_path / "broker") as broker:
        assert str(archive.file) in mapped_files(broker.pid)

    with Broker(tmp_path / "other", jars=NEW_BROKER_JARS) as broker:
        assert str(archive.file) not in mapped_files(broker.pid)


@pytest.mark.kafka
def test_a_proxy_takes_its_classes_from_their_archive(kafka_broker: str, tmp_path: Path) -> None:
    archive = made(PROXY_CLASSES)
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
