"""Commands beside a broker whose process is stopped: it takes connections and answers nothing."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from sluice.cli.doctor import run_doctor
from sluice.configs.settings import Properties, load_settings
from sluice.kafka_io.topics import ensure_topics
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.cluster import Cluster
from tests.builders import quota
from tests.commands import run_sluice

pytestmark = [pytest.mark.kafka, pytest.mark.long]

PATIENCE_S = 60.0
"""Longest time of a command: the search for a broker, requests of 3 s, and Python's start on a busy machine."""


@contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def doctor(servers: str) -> tuple[list[str], float]:
    """The lines about Kafka, and the seconds that they took together."""
    settings = replace(load_settings(environment={}), kafka=Properties({"bootstrap.servers": servers}))
    lines: list[tuple[str, float]] = []
    run_doctor(settings, lambda line: lines.append((line, time.monotonic())))
    names = [line[6:].partition(":")[0] for line, _ in lines]
    first, last = names.index("broker"), names.index("job")
    return [line for line, _ in lines[first:last]], lines[last - 1][1] - lines[first - 1][1]


def test_of_three_brokers_a_frozen_one_delays_the_doctor_by_seconds(tmp_path: Path) -> None:
    """The lines that fail depend on what the frozen one leads."""
    with Cluster(tmp_path / "brokers", 3) as cluster, frozen(cluster.brokers[0]):
        lines, took_s = doctor(cluster.bootstrap_servers)

    assert lines[0].startswith("ok    broker: ")
    assert took_s < 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers that lead the job's topics, each of which has one replica; the controller has no frozen part."""
    with Cluster(tmp_path_factory.mktemp("brokers"), 3, controllers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def config(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of a job whose topics and quotas are there."""
    folder = tmp_path_factory.mktemp("job")
    file = folder / "sluice.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "kafka": {"bootstrap.servers": cluster.bootstrap_servers},
                "topics": {"partitions": 6, "replication_factor": 1},
                "delta": {"quotas": str(folder / "quotas")},
            }
        )
    )
    settings = load_settings(file, environment={})
    ensure_topics(settings.topics, settings.kafka)
    limit = quota(QuotaKind.PRODUCER_BYTE_RATE, 1e6, user="alice")
    QuotasTable(settings.delta.quotas, {}).create([limit], "carol", datetime.now(UTC))
    return file


@pytest.mark.parametrize(
    "command",
    [
        ("top", "--once"),
        ("unmute", "--user", "alice", "--timeout", "1"),
        ("quotas", "import", "--bootstrap-servers", "SERVERS", "--yes"),
        ("quotas", "describe"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_of_three_brokers_a_frozen_one_leaves_each_command_an_answer_or_a_line(
    cluster: Cluster, config: Path, command: Sequence[str]
) -> None:
    arguments = [cluster.bootstrap_servers if each == "SERVERS" else each for each in command]
    with frozen(cluster.brokers[0]):
        begin_s = time.monotonic()
        ended = run_sluice(*arguments, "--config", config)
        took_s = time.monotonic() - begin_s

    print(f"{took_s:.1f} s: {ended}")
    assert took_s < PATIENCE_S
    assert ended.code == 0 or ended.error.splitlines()[-1].startswith("sluice: error: ")
    assert "no Kafka broker answers" not in ended.error
