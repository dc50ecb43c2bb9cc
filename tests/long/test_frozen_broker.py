"""The doctor beside a broker whose process is stopped: it takes connections and answers nothing."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.cli.demo.broker import Broker
from sluice.cli.demo.cluster import Cluster
from sluice.cli.doctor import run_doctor
from sluice.configs.settings import Properties, load_settings

pytestmark = [pytest.mark.kafka, pytest.mark.long]


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


def test_a_frozen_broker_is_said_in_ten_seconds(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker, frozen(broker):
        (line,), took_s = doctor(broker.bootstrap_servers)

    assert line.startswith("FAIL  broker: no ")
    assert took_s < 15


def test_of_three_brokers_a_frozen_one_delays_the_doctor_by_seconds(tmp_path: Path) -> None:
    """The lines that fail depend on what the frozen one leads."""
    with Cluster(tmp_path / "brokers", 3) as cluster, frozen(cluster.brokers[0]):
        lines, took_s = doctor(cluster.bootstrap_servers)

    assert lines[0].startswith("ok    broker: ")
    assert took_s < 25
