"""The embedded broker: a real Kafka whose data survives a restart, and which ends with the process that started it."""

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from sluice.cli.doctor import run_doctor
from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.jvm.errors import JarError
from sluice.jvm.jars import REPOSITORY, SPARK_JARS
from sluice.kafka_io.topics import ensure_topics
from sluice.sinks.tables.quotas import QuotasTable
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import check_origin
from sluice_demo.broker import Broker, BrokerError, first_features
from sluice_demo.jars import BROKER_JARS
from sluice_proxy.java_server import last_error
from tests.deciding_side import own_topics
from tests.waiting import eventually, is_over

pytestmark = pytest.mark.kafka


def _create_topic(servers: str, topic: str) -> None:
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})


def _produce(servers: str, topic: str, value: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    producer.send(topic, value, partition=0).get(timeout=60)
    producer.close()


def _first_value(servers: str, topic: str) -> bytes:
    consumer = KafkaConsumer(bootstrap_servers=servers, consumer_timeout_ms=30_000)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    try:
        return bytes(next(consumer).value)
    finally:
        consumer.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_record_survives_a_restart_at_the_same_address(tmp_path: Path, end: str) -> None:
    broker = Broker(tmp_path)
    with broker:
        first_address = broker.bootstrap_servers
        _create_topic(first_address, "kept")
        _produce(first_address, "kept", b"value")
        getattr(broker, end)()
        broker.start()

        assert broker.bootstrap_servers == first_address
        assert _first_value(broker.bootstrap_servers, "kept") == b"value"


def test_no_registry_reachable_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    nowhere = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", nowhere)

    with pytest.raises(
        JarError, match=r"conf broker can't be downloaded: .*Connection refused.*; check the disk's room and the ne"
    ) as got:
        Broker(tmp_path / "broker").start()

    assert "\n" not in str(got.value)


def _no_jars() -> list[Path]:
    """The files beside the broker's jars, but for the stamp that they were checked."""
    return [file for file in BROKER_JARS.folder.iterdir() if file.suffix not in (".jar", ".json")]


def test_a_broker_starts_whatever_became_of_the_features_beside_the_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full keeps a part of a file."""
    (tmp_path / "jars").mkdir()
    shutil.copytree(BROKER_JARS.folder, tmp_path / "jars/broker", copy_function=os.symlink)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    for file in _no_jars():
        file.unlink()
    first_features(BROKER_JARS)
    (kept,) = _no_jars()
    kept.write_bytes(kept.read_bytes()[:200])

    with Broker(tmp_path / "broker") as broker:
        _create_topic(broker.bootstrap_servers, "served")


def test_a_broker_starts_where_a_path_is_not_ascii_and_the_terminal_knows_no_other_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "café"
    (home / "jars").mkdir(parents=True)
    shutil.copytree(BROKER_JARS.folder, home / "jars/broker", copy_function=os.symlink)
    monkeypatch.setenv("SLUICE_HOME", str(home))
    monkeypatch.setenv("LC_ALL", "C")
    for file in _no_jars():
        file.unlink()

    with Broker(home / "broker") as broker:
        _create_topic(broker.bootstrap_servers, "served")


def test_a_folder_whose_formatting_broke_off_is_formatted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the last file, which says that all is there, is written."""
    nearly_done, write_text = tmp_path / "data", Path.write_text

    def _write_on_a_full_disk(file: Path, text: str) -> int:
        if file.parent != nearly_done:
            return write_text(file, text)
        file.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    broker = Broker(tmp_path)
    monkeypatch.setattr(Path, "write_text", _write_on_a_full_disk)
    with pytest.raises(BrokerError, match=r"can't be formatted: .*No space left on device"):
        broker.start()
    monkeypatch.undo()

    with broker:
        _create_topic(broker.bootstrap_servers, "served")


def test_a_wrong_property_is_quoted_from_the_log(tmp_path: Path) -> None:
    broker = Broker(tmp_path, properties={"message.max.bytes": "many"})

    with pytest.raises(BrokerError, match=r"Invalid value many for configuration message\.max\.bytes"):
        broker.start()


def test_a_killed_parent_takes_its_broker_along(tmp_path: Path) -> None:
    """The thread that starts the broker ends, which must not end the broker; the kill allows no clean-up."""
    code = (
        "import pathlib, sys, threading, time\n"
        "from sluice_demo.broker import Broker\n"
        "broker = Broker(pathlib.Path(sys.argv[1]))\n"
        "thread = threading.Thread(target=broker.start)\n"
        "thread.start()\n"
        "thread.join()\n"
        "print(broker.pid, broker.bootstrap_servers, flush=True)\n"
        "time.sleep(300)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, servers = parent.stdout.readline().split()
        try:
            _create_topic(servers, "served-after-the-thread-ended")
            assert not is_over(int(pid))
        finally:
            parent.kill()

    eventually(lambda: is_over(int(pid)))


def test_the_doctor_passes_once_everything_is_there(kafka_broker: str, tmp_path: Path) -> None:
    defaults, topics = with_bootstrap_servers(load_settings(environment={}), kafka_broker), own_topics()
    settings = dataclasses.replace(
        defaults,
        enforce=dataclasses.replace(defaults.enforce, checkpoint=str(tmp_path / "checkpoint")),
        audit=dataclasses.replace(defaults.audit, checkpoint=str(tmp_path / "audit")),
        delta=dataclasses.replace(defaults.delta, quotas=str(tmp_path / "quotas")),
        topics=topics,
    )
    QuotasTable(settings.delta.quotas).create([], "test", datetime(2026, 1, 1, tzinfo=UTC))
    SPARK_JARS.paths()
    lines: list[str] = []

    assert run_doctor(settings, lines.append) == 0
    missing = ", ".join(
        (topics.requests, topics.decisions, topics.dead_letters, topics.limits, topics.waits, topics.sums)
    )
    assert f"ok    topics: {missing} will be created by sluice run" in lines
    check_origin(Checkpoint(settings.enforce.checkpoint), settings)  # as after the first start
    lines.clear()

    assert run_doctor(settings, lines.append) == 1
    cure = "`sluice topics` makes them, as `sluice run` does at its start"
    unfit = "topics are not as Sluice needs them: all that needs no such topic goes on"
    expected = f"FAIL  topics: {unfit}; not there: topic {missing} ({cure})"
    assert [line for line in lines if line.startswith("FAIL")] == [expected]

    ensure_topics(settings.topics, settings.kafka)
    lines.clear()

    assert run_doctor(settings, lines.append) == 0
    assert {line[:4] for line in lines} == {"ok  "}


def test_the_reason_in_a_log_is_its_last_innermost_cause() -> None:
    log = (
        "2026-01-01 main INFO starting\n"
        "2026-01-01 main ERROR Exiting Kafka due to fatal exception\n"
        "java.lang.RuntimeException: outer\n\tat kafka.Kafka.main\nCaused by: java.net.BindException: inner\n\tat x\n"
    )

    assert last_error(log) == "java.net.BindException: inner"
    assert last_error("INFO one\nERROR two\nINFO three\n") == "ERROR two"
    assert last_error("") == "it printed nothing"
