"""How long `sluice top --once` takes while decisions come in, and what it reads.

    python -m scripts.benchmarks.top --rate 1000

Starts a broker, publishes decisions of many users at a steady rate, and times the command again and again.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Annotated

import typer
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from scripts.testbed.broker import Broker
from sluice.configs.settings import load_settings
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation

QUOTAS = Quotas([QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.PRODUCER_BYTE_RATE, 100_000.0)])
WARM_S = 20
"""Decisions are published for so long before the first look: longer than the command looks back."""


def measure_top(
    rate: Annotated[int, typer.Option(help="Decisions a second.")] = 1000,
    users: Annotated[int, typer.Option(help="Users, one of them ten times as busy.")] = 1000,
    looks: Annotated[int, typer.Option(help="How often to look.")] = 7,
) -> None:
    """Time the command."""
    with TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as broker:
        settings = Path(folder) / "settings.yaml"
        settings.write_text(f"kafka: {{bootstrap.servers: '{broker.bootstrap_servers}'}}\n")
        topic = load_settings(settings, environment={}).topics.decisions
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
            admin.create_topics([NewTopic(topic, 6, 1)])
        done = Event()
        publisher = Thread(target=_publish, args=(broker.bootstrap_servers, settings, rate, users, done))
        publisher.start()
        try:
            time.sleep(WARM_S)
            found = [_look(settings) for _ in range(looks)]
        finally:
            done.set()
            publisher.join()
        seconds, cpu_s, read = zip(*found, strict=True)
        print(
            f"{rate} decisions/s of {users} users: {looks} looks, median {statistics.median(seconds):.2f} s "
            f"({min(seconds):.2f} to {max(seconds):.2f}), CPU {statistics.median(cpu_s):.2f} s each, "
            f"{statistics.median(read):.0f} decisions read, load {os.getloadavg()[0]:.1f}"
        )


def _publish(servers: str, settings_file: Path, rate: int, users: int, done: Event) -> None:
    """Publish decisions on requests of now, a tenth of a second's at once."""
    settings = load_settings(settings_file, environment={})
    simulation, number = Simulation(QUOTAS, settings), 0
    with closing(KafkaProducer(bootstrap_servers=servers, linger_ms=20)) as producer:
        due_s = time.monotonic()
        while not done.is_set():
            at_ms = time.time_ns() // 1_000_000
            events = [_event(count, users, at_ms) for count in range(number, number + rate // 10)]
            number += len(events)
            for record in simulation.decide(events):
                producer.send(record.topic, record.value, record.key)
            due_s += 0.1
            done.wait(max(0.0, due_s - time.monotonic()))


def _event(number: int, users: int, at_ms: int) -> bytes:
    user = f"user-{0 if number % 100 == 0 else number % users}"
    return json.dumps({"api": "Produce", "user": user, "bytes": 20_000, "timestamp_ms": at_ms}).encode()


def _look(settings: Path) -> tuple[float, float, int]:
    """Seconds, seconds of CPU, and decisions read."""
    command = [sys.executable, "-m", "sluice.cli.main", "top", "--once", "--config", str(settings)]
    started = time.perf_counter()
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # else each start compiles what an install has compiled
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit("top failed")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, int(output.split()[0])


if __name__ == "__main__":
    typer.run(measure_top)
