"""A job that starts with its side inputs, and what befalls them."""

import json
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from sluice.configs.settings import Settings
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.records import Load
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import OPERATOR
from sluice.streaming import running_job
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.query import JobContext
from sluice.streaming.enforce.quota_watch import QuotaWatch, ensure_quotas_table
from sluice.streaming.running_job import RunningJob
from sluice.streaming.runtime.health import JobHealth, JobStatus
from sluice_reading.quotas_admin import QuotasAdmin
from tests.builders import DEFAULTS, changed, quota
from tests.input_faults import gone

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Started:
    """A process that runs the job, up to where its queries would start; Kafka has what the one before published."""

    def __init__(
        self,
        settings: Settings,
        published: Overrides | None,
        monkeypatch: pytest.MonkeyPatch,
        *,
        has_kafka: bool = True,
    ) -> None:
        monkeypatch.setattr(running_job, "tracked_entities", lambda _: None)
        self.health = JobHealth("enforce", 0)
        report = lambda reason: self.health.report_input("quotas", reason)  # noqa: E731
        snapshots = QuotaSnapshots(Checkpoint(settings.enforce.checkpoint))
        self.watch = QuotaWatch(ensure_quotas_table(settings), snapshots, report)
        spark: Any = SimpleNamespace(sparkContext=None)
        self.job = RunningJob(JobContext(spark, settings, self.watch), self.health, JobStatus(None, self.health))
        if has_kafka:
            self.job.overrides.remember({} if published is None else {OPERATOR: published})

    @property
    def reason(self) -> str | None:
        """The one input that can't be read, with its reason; also a metric."""
        inputs = self.health.state(ok=True)["inputs"]
        down = [line for line in generate_latest(self.health.registry).decode().splitlines() if line.endswith("} 0.0")]
        assert [f'sluice_input_up{{input="{name}"}} 0.0' for name in inputs] == [
            line for line in down if line.startswith("sluice_input_up")
        ]
        assert len(inputs) <= 1
        return next((f"{name}: {reason}" for name, reason in inputs.items()), None)


class Input(ABC):
    """One of the inputs: where it is, and what is in force by it."""

    log: str

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    @abstractmethod
    def place(self) -> Path: ...

    @abstractmethod
    def change(self, number: int) -> None: ...

    @abstractmethod
    def poll(self, job: Started) -> None: ...

    @abstractmethod
    def in_force(self, job: Started) -> Any: ...

    @abstractmethod
    def expected(self, number: int) -> Any: ...


class Quotas(Input):
    log = "sluice.quotas"

    @property
    def place(self) -> Path:
        return Path(self.settings.delta.quotas)

    def change(self, number: int) -> None:
        table, entries = QuotasAdmin(str(self.place)), [quota(QuotaKind.PRODUCER_BYTE_RATE, number, user="alice")]
        if table.exists():
            table.alter(lambda _: entries, "test", AT)
        else:
            table.create(entries, "test", AT)

    def poll(self, job: Started) -> None:
        job.watch.poll()

    def in_force(self, job: Started) -> Any:
        return [entry.value for entry in job.watch.now.entries]

    def expected(self, number: int) -> Any:
        return [number]


class Capacities(Input):
    log = "sluice.overrides"

    @property
    def place(self) -> Path:
        return Path(str(self.settings.brokers.capacity_file))

    def change(self, number: int) -> None:
        entry = {"brokerId": "-1", "capacity": {"NW_IN": str(number), "NW_OUT": "1"}}
        self.place.write_text(json.dumps({"brokerCapacities": [entry]}))

    def poll(self, job: Started) -> None:
        job.job.capacities.limits()

    def in_force(self, job: Started) -> Any:
        return job.job.capacities.limits().capacities.of(Load(broker_id=1)).bytes_in_per_s

    def expected(self, number: int) -> Any:
        return number * 1024.0


def settings_in(folder: Path) -> Settings:
    """Those of a job with quotas, and a file of capacities."""
    folders: dict[str, Any] = {name: str(folder / name) for name in ("quotas", "overrides")}
    made = changed(changed(DEFAULTS, "delta", **folders), "enforce", checkpoint=str(folder / "checkpoint"))
    made = changed(made, "audit", checkpoint=str(folder / "audit"))
    made = changed(made, "brokers", capacity_file=str(folder / "capacity.json"))
    for kind in (Quotas, Capacities):
        kind(made).change(1)
    return made


@contextmanager
def healed(place: Path, aside: Path) -> Iterator[Callable[[], None]]:
    """A way to put all back as it was."""
    (shutil.copytree if place.is_dir() else shutil.copy2)(place, aside)

    def heal() -> None:
        if place.exists():
            gone(place)
        aside.rename(place)

    yield heal


def said_of(kind: type[Input], caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.name == kind.log and each.levelname == "ERROR"]


def assert_goes_on(
    settings: Settings,
    aside: Path,
    kind: type[Input],
    fault: Callable[[Path], None],
    start: Callable[[Overrides | None], Started],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line of the log, `/readyz` and a metric say so; when it can be read again, that counts."""
    of = kind(settings)
    running = start(None)
    assert (of.in_force(running), running.reason) == (of.expected(1), None)
    running.job.overrides.decide(now_ms())
    of.change(2)
    with healed(of.place, aside) as heal:
        fault(of.place)

        starting = start(running.job.overrides.said.get(OPERATOR))
        for job in (starting, running):
            for _ in range(3):
                of.poll(job)

            assert of.in_force(job) == of.expected(1)
            (line,) = said_of(kind, caplog)
            assert "in force" in line or "stay" in line
            assert (job.reason or "").startswith(kind.__name__.lower())
            caplog.clear()
        heal()
    for job in (starting, running):
        of.poll(job)
        assert (of.in_force(job), job.reason) == (of.expected(2), None)
    of.change(3)
    of.poll(running)
    assert of.in_force(running) == of.expected(3)


REFUSAL = """
import http.server

class Refusal(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(403, "Forbidden")

    do_HEAD = do_GET

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def refusing() -> Iterator[int]:
    """The port of a store that refuses all, in a process of its own: some calls of delta-rs stop this one's threads."""
    command = [sys.executable, "-c", REFUSAL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()
