"""No side input is a condition of the job's start: each of them, with all that can befall it."""

import json
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from prometheus_client import generate_latest

from sluice.cli.errors import CheckError, CheckWarningError
from sluice.cli.start_checks import check_capacities, check_folders
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import Properties, Settings
from sluice.process.clock import now_ms
from sluice.sinks.errors import QuotasTableError
from sluice.sinks.tables.holds import HoldsTable
from sluice.sinks.tables.overrides import OverridesTable
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import Load
from sluice.state.overrides.decider import Decided, Decider
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming import running_job
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.query import JobContext
from sluice.streaming.enforce.quota_watch import QuotaWatch, ensure_quotas_table
from sluice.streaming.overrides.watch import OverridesWatch
from sluice.streaming.running_job import RunningJob
from sluice.streaming.runtime.health import JobHealth, JobStatus
from tests.builders import DEFAULTS, changed, hold_of, quota
from tests.input_faults import (
    OF_FILES,
    OF_TABLES,
    a_file,
    cut_commit,
    empty,
    empty_commit,
    gone,
    no_log,
    other_columns,
)
from tests.waiting import eventually

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000


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
            self.job.overrides.remember({} if published is None else {"operator": published})
        self.job.holds.poll()

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
        table, entries = QuotasTable(str(self.place)), [quota(QuotaKind.PRODUCER_BYTE_RATE, number, user="alice")]
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


class Holds(Input):
    log = "sluice.holds"

    @property
    def place(self) -> Path:
        return Path(self.settings.delta.quotas + "-holds")

    def change(self, number: int) -> None:
        HoldsTable(self.settings.delta.quotas).append(hold_of(Tags(client_id=f"app-{number}"), now_ms(), HOUR_MS))

    def poll(self, job: Started) -> None:
        job.job.holds.poll()

    def in_force(self, job: Started) -> Any:
        job.job.overrides.decide(now_ms())
        return sorted(each.entity.client_id or "" for each in overrides(job) if each.entity)

    def expected(self, number: int) -> Any:
        return [f"app-{each}" for each in range(1, number + 1)]


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


def overrides(job: Started) -> list[Override]:
    """The overrides of the operator's holds now."""
    said = job.job.overrides.said.get("operator")
    return said.overrides if said else []


CASES = [
    *((kind, fault) for kind in (Quotas, Holds) for fault in OF_TABLES),
    *((Capacities, fault) for fault in OF_FILES),
]
cases = pytest.mark.parametrize(("kind", "fault"), CASES, ids=[f"{k.__name__}-{f.__name__}" for k, f in CASES])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folders: dict[str, Any] = {name: str(tmp_path / name) for name in ("quotas", "overrides")}
    made = changed(changed(DEFAULTS, "delta", **folders), "enforce", checkpoint=str(tmp_path / "checkpoint"))
    made = changed(made, "audit", checkpoint=str(tmp_path / "audit"))
    made = changed(made, "brokers", capacity_file=str(tmp_path / "capacity.json"))
    for kind in (Quotas, Holds, Capacities):
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


@cases
def test_a_job_that_starts_and_one_that_runs_go_on_with_the_last_that_was_in_force(
    settings: Settings,
    tmp_path: Path,
    kind: type[Input],
    fault: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line of the log, `/readyz`, a metric and the doctor say so; when it can be read again, that counts."""
    of = kind(settings)
    running = Started(settings, None, monkeypatch)
    assert (of.in_force(running), running.reason) == (of.expected(1), None)
    Holds(settings).in_force(running)
    of.change(2)
    with healed(of.place, tmp_path / "aside") as heal:
        fault(of.place)

        starting = Started(settings, running.job.overrides.said.get("operator"), monkeypatch)
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


def test_the_checks_before_a_start_warn_of_a_table_or_file_of_a_job_that_has_run(settings: Settings) -> None:
    """At the first start each is a wrong setting."""
    a_file(Quotas(settings).place)
    empty(Capacities(settings).place)
    checks = (check_folders, check_capacities)
    for check in checks:
        with pytest.raises((CheckError, InvalidSettingsError)):
            check(settings)
    for name in ("sluice.json", "capacity.json"):
        Checkpoint(settings.enforce.checkpoint).sluice.write(name, b"{}")
    for check in checks:
        with pytest.raises(CheckWarningError):
            check(settings)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_job_starts_though_s3_refuses_its_tables(
    settings: Settings, is_known: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy on `quotas/*` covers no `quotas-holds`. At a first start no quotas are known, so it is refused."""
    before = Started(settings, None, monkeypatch) if is_known else None
    with refusing() as port:
        store = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-west-1"}
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        folders: dict[str, Any] = {"quotas": "s3://sluice/quotas", "storage_options": Properties(store | keys)}
        refused = changed(settings, "delta", **folders)
        if before is None:
            with pytest.raises(QuotasTableError, match="403 Forbidden"):
                Started(refused, None, monkeypatch)
            return
        assert Holds(settings).in_force(before) == ["app-1"]
        job = Started(refused, before.job.overrides.said.get("operator"), monkeypatch)
        job.job.holds.poll()

        assert Quotas(settings).in_force(job) == [1]
        assert Holds(settings).in_force(job) == ["app-1"]
        assert {*job.health.state(ok=True)["inputs"]} == {"quotas", "holds"}
        assert [each.name for each in caplog.records if "403" in each.message] == ["sluice.quotas", "sluice.holds"]


def test_a_capacity_file_that_no_start_could_read_is_a_wrong_setting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty(Capacities(settings).place)

    with pytest.raises(InvalidSettingsError, match="is no capacity file"):
        Started(settings, None, monkeypatch).job.capacities.limits()


def test_nobody_is_let_go_while_neither_the_table_nor_kafka_says_who_is_held(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways go on with what they were told; a word of nothing would let all go."""
    empty_commit(Holds(settings).place)

    job = Started(settings, None, monkeypatch, has_kafka=False)
    job.job.overrides.decide(now_ms())

    assert "operator" not in job.job.overrides.said
    assert "is empty" in (job.reason or "")


class Held(Decider):
    """Stops whom a test names."""

    name = "operator"
    held: Sequence[Override] = ()

    def decide(self, now_ms: int) -> Decided:  # noqa: ARG002 - the base's
        return Decided(self.held)


def test_of_changes_that_wait_for_a_table_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be away for days."""
    monkeypatch.setattr("sluice.streaming.overrides.watch._MAX_ROWS", 3)
    decider, place = Held(), tmp_path / "overrides"
    place.write_text("no table")
    watch = OverridesWatch([decider], OverridesTable(str(place), {}), 20)
    watch.remember({})
    for number in range(10):
        decider.held = [Override("hold", entity=Tags(client_id=f"app-{number}").entity(), consumers=True)]
        watch.decide(number)
        watch.write()
    place.unlink()
    watch.write()

    rows = DeltaTable(str(place)).to_pyarrow_table()["overrides"].to_pylist()
    assert sorted(row[0]["client_id"] for row in rows) == ["app-7", "app-8", "app-9"]


def test_nobody_waits_for_a_hold_because_the_store_of_the_history_does_not_answer() -> None:
    decider, table, is_back = Held(), Mock(), Event()
    table.append.side_effect = lambda _: is_back.wait(300)
    watch = OverridesWatch([decider], table, 20)
    watch.remember({})
    for number in range(2):
        decider.held = [Override("hold", entity=Tags(client_id=f"app-{number}").entity(), consumers=True)]
        watch.decide(number * 20_000)
        if not number:
            (writing := Thread(target=watch.write)).start()
            eventually(lambda: table.append.called)
    assert (watch.said["operator"].overrides, writing.is_alive()) == (decider.held, True)
    is_back.set()
    writing.join()
    watch.write()
    rows = [row for call in table.append.call_args_list for _, row in call.args[0]]
    assert [row.overrides[0].entity.client_id for row in rows] == ["app-0", "app-1"]


def made_anew(place: Path) -> None:
    gone(place)
    OverridesTable(str(place), {}).append([("operator", Overrides(1, 0, 1))])


@pytest.mark.parametrize("fault", [a_file, cut_commit, other_columns, gone, no_log, made_anew])
def test_overrides_hold_though_their_history_cant_be_written(
    tmp_path: Path, fault: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The changes wait, and are rows later."""
    decider, place, reasons = Held(), tmp_path / "overrides", list[str | None]()
    watch = OverridesWatch([decider], OverridesTable(str(place), {}), 20, report=reasons.append)
    watch.remember({})
    for number in range(3):
        decider.held = [Override("hold", entity=Tags(client_id=f"app-{number}").entity(), consumers=True)]
        if number == 2:
            shutil.copytree(place, tmp_path / "aside")
            fault(place)
        for second in (0, 20, 40):
            watch.decide((number * 60 + second) * 1000)
            watch.write()

    assert watch.said["operator"].overrides == decider.held
    assert len([each for each in caplog.records if "can't be written" in each.message]) == 1
    assert reasons[0] is None
    assert reasons[-1] is not None
    if fault in (gone, no_log, made_anew):
        assert "somebody has moved or removed its folder" in reasons[-1]
    if place.exists():
        gone(place)
    (tmp_path / "aside").rename(place)
    watch.write()
    assert DeltaTable(str(place)).count() == 3
    assert reasons[-1] is None
