"""An operator may do anything to the job, and its books balance: actions are drawn, and shrunk if they fail."""

import json
import logging
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.audit_tables import rows
from tests.builders import DEFAULTS, Json, member, quota
from tests.operated_job import AUDIT, AUDIT_TABLES, ENFORCE, TABLES, Backup, Cluster, date

KINDS = ("produce", "mutation", "tenant", "hostile", "forged decision", "forged letter")
REQUESTS, DECISIONS, LETTERS = (getattr(DEFAULTS.topics, name) for name in ("requests", "decisions", "dead_letters"))
MADE_AGAIN = ((REQUESTS,), (REQUESTS,), (DECISIONS, LETTERS), (REQUESTS, DECISIONS, LETTERS))

RESTORED = (ENFORCE, AUDIT, ENFORCE | AUDIT, TABLES, AUDIT | TABLES, ENFORCE | AUDIT | TABLES)

kinds = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)
effects = st.integers(0, 12)
pages = st.integers(1, 3)


def quotas(number: int) -> list[QuotaEntry]:
    """The quotas of one of many alterations."""
    return [
        quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0 + number, user=DEFAULT),
        quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, user=DEFAULT),
        quota(QuotaKind.PRODUCER_BYTE_RATE, 500.0, tenant="shop"),
        member(tenant="shop", user="shop-*"),
    ]


@pytest.fixture(autouse=True)
def _without_log() -> Iterator[None]:
    """The log of all sequences would hide the one that failed."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


class OperatedJob(RuleBasedStateMachine):
    """The job, its operator, and what both owe to those who sent requests."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(mkdtemp(prefix="sluice-dice-"))
        self._due: dict[str, bool] = {}
        """By the name of each request whether it has to have a row: one whose topic was deleted needs none."""
        self._forged: dict[bytes, bool] = {}
        """The same of foreign records, and the table `unreadable`."""
        self._decided_again: set[str] = set()
        self._backups: list[Backup] = []
        self._quotas = 0

    @initialize(shared=st.booleans(), pages=pages)
    def install(self, shared: bool, pages: int) -> None:
        """The job is new; its checkpoints are URIs if drivers share them."""
        place = self._folder.as_uri() if shared else str(self._folder)
        delta: Any = {name: str(self._folder / name) for name in ("quotas", *AUDIT_TABLES)}
        self.shared = shared
        self.cluster = Cluster(
            self._folder,
            replace(
                DEFAULTS,
                delta=replace(DEFAULTS.delta, **delta),
                enforce=replace(DEFAULTS.enforce, checkpoint=f"{place}/enforce", shuffle_partitions=1),
                audit=replace(DEFAULTS.audit, checkpoint=f"{place}/audit"),
                state=replace(DEFAULTS.state, pages=pages),
            ),
        )
        QuotasTable(delta["quotas"]).create(quotas(0), "seed", date(self.cluster.kafka.now_ms))
        self._go_on()
        self._backups.append(self.cluster.back_up())

    def teardown(self) -> None:
        """The job starts once more, and all is there."""
        try:
            self.settle()
        finally:
            self.cluster.close()
            rmtree(self._folder)

    @rule()
    def settle(self) -> None:
        """The job starts, and does what there is to do."""
        self.cluster.settle()
        self._check()

    @rule(bursts=st.lists(kinds, min_size=1, max_size=3))
    def send(self, bursts: list[list[str]]) -> None:
        """Requests and foreign records come in, each burst a micro-batch; a job that is down leaves them."""
        for kinds in bursts:
            self._send(kinds)
            if self.cluster.driver is not None:
                self.settle()

    @rule(kinds=kinds, effects=effects)
    def kill(self, kinds: list[str], effects: int) -> None:
        """The job is killed before it has published all decisions, or committed to all tables."""
        self._send(kinds)
        self.cluster.kill(effects)
        self._check(settled=False)

    @precondition(lambda self: self.shared)
    @rule(kinds=kinds, effects=effects)
    def pause(self, kinds: list[str], effects: int) -> None:
        """A driver sleeps in a micro-batch until another has done it."""
        self._send(kinds)
        self.cluster.pause(effects)
        self.settle()

    @rule(times=st.integers(1, 9))
    def alter_quotas(self, times: int) -> None:
        """A job that is down is started after each alteration, and dies at once."""
        table = QuotasTable(self.cluster.settings.delta.quotas)
        for _ in range(times):
            self._quotas += 1
            table.alter(lambda _: quotas(self._quotas), "operator", date(self.cluster.kafka.now_ms))
            if self.cluster.driver is None:
                self.cluster.kill(0)
            else:
                self.cluster.driver.watch.look()

    @rule(in_place=st.booleans())
    def move_quotas(self, in_place: bool) -> None:
        """The quotas are in a new table, whose versions begin again."""
        self._quotas += 1
        self.cluster.move_quotas(quotas(self._quotas), in_place)
        self._go_on()

    @rule()
    def back_up(self) -> None:
        """As by a snapshot of the file system."""
        self._backups.append(self.cluster.back_up())

    @precondition(lambda self: self._backups)
    @rule(age=st.integers(0, 3), parts=st.sampled_from(RESTORED))
    def restore(self, age: int, parts: set[int]) -> None:
        """Put a backup's checkpoints in place, with the audit tables of that time or those of today."""
        if parts & ENFORCE:
            self._decided_again |= self._due.keys()
        self.cluster.restore(self._backups[-1 - age % len(self._backups)], parts)
        self._go_on()

    @rule(names=st.sampled_from(MADE_AGAIN))
    def make_topics_again(self, names: tuple[str, ...]) -> None:
        """The requests topic alone, that of its answers, or all, as on another Kafka cluster."""
        if DECISIONS in names:
            self.cluster.stop()
        elif self.cluster.driver is None:
            self._due = dict.fromkeys(self._due, False)
        self.cluster.make_again(names)
        self._go_on()

    @rule(pages=pages)
    def export_and_import(self, pages: int) -> None:
        """The balances move to a new checkpoint."""
        self.cluster.export_and_import(pages)
        self.settle()

    @rule()
    def maintain(self) -> None:
        """The tables are compacted, whatever the job is at."""
        self.cluster.maintain()
        self._check(settled=False)

    @rule()
    def pass_retention(self) -> None:
        """Topics lose what was read, tables their oldest days."""
        self.cluster.pass_retention()
        self._due, self._forged = dict.fromkeys(self._due, False), dict.fromkeys(self._forged, False)
        self._backups.clear()
        self.settle()

    def _go_on(self) -> None:
        """The job does what there is, and what comes then."""
        self.cluster.settle()
        self._send(["produce", "hostile"])
        self.settle()

    def _send(self, kinds: list[str]) -> None:
        kafka = self.cluster.kafka
        for kind in kinds:
            kafka.now_ms += 1000
            name = f"{kind} {len(self._due) + len(self._forged)}"
            if kind.startswith("forged"):
                self._forged[name.encode()] = True
                kafka.publish(DECISIONS if kind == "forged decision" else LETTERS, name.encode())
                continue
            self._due[name] = True
            event: Json = {"request_id": name, "timestamp_ms": kafka.now_ms, "user": "alice", "client_id": "app"}
            if kind == "mutation":
                event |= {"api": "CreateTopics", "mutations": [{"topic": "t", "partitions": 9}]}
            else:
                event |= {"api": "Produce", "bytes": 9000, "user": "shop-a" if kind == "tenant" else "bob"}
            kafka.publish(REQUESTS, name.encode() if kind == "hostile" else json.dumps(event).encode())

    def _check(self, settled: bool = True) -> None:
        delta = self.cluster.settings.delta
        decisions, letters, unreadable = map(rows, (delta.decisions, delta.dead_letters, delta.unreadable))
        found = Counter(row["request_id"] for row in decisions) + Counter(row["value"].decode() for row in letters)
        refused = Counter(row["value"] for row in unreadable)
        assert found.keys() <= self._due.keys()
        assert [name for name, times in found.items() if times > 1] == [], "requests with several rows"
        assert refused.keys() <= self._forged.keys() | self._second_answers(), "answers that nobody can read"
        if settled:
            assert [name for name, is_due in self._due.items() if is_due and name not in found] == [], "without a row"
            assert [value for value, is_due in self._forged.items() if refused[value] != 1 and is_due] == []
            assert metered(rows(delta.quota_metrics)) == charged(decisions)

    def _second_answers(self) -> set[bytes | None]:
        """Answers that count for nothing: of a driver that was replaced, or to a request that had one."""
        answered, second = set[str](), set[bytes | None]()
        for topic in self.cluster.topics(DECISIONS, LETTERS):
            counting = dict(topic.counting())
            for offset, record in enumerate(topic.records):
                if offset not in counting:
                    second.add(record.value)
                elif record.value not in self._forged:
                    name = request_of(record.value or b"")
                    if name in answered:
                        assert name in self._decided_again, f"two answers to {name}"
                        second.add(record.value)
                    answered.add(name)
        return second


def request_of(answer: bytes) -> str:
    """The request that a decision or dead letter answers."""
    decoded = json.loads(answer)
    return str(decoded["request_id"]) if "request_id" in decoded else b64decode(decoded["value"]).decode()


def charged(decisions: list[Json]) -> Counter[tuple[object, ...]]:
    """The charges of decisions by minute and counter."""
    return Counter(
        (row["timestamp_ms"] // 60_000, charge["quota"], charge["mode"], *charge["entity"].values())
        for row in decisions
        for charge in row["charges"]
    )


def metered(metrics: list[Json]) -> Counter[tuple[object, ...]]:
    """The same as the metrics have it."""
    counts = Counter[tuple[object, ...]]()
    for row in metrics:
        minute = int(row["window_start"].timestamp()) // 60
        names = (row[name] for name in ("user", "client_id", "topic", "partition", "tenant"))
        counts[minute, row["quota"], row["mode"], *names] += row["count"]
    return counts


def throw(times: int) -> None:
    """Draw so many sequences."""
    run_state_machine_as_test(
        OperatedJob,
        settings=settings(
            max_examples=times,
            stateful_step_count=7,
            suppress_health_check=list(HealthCheck),
            phases=set(Phase) - {Phase.explain},
        ),
    )


def test_books_balance_after_whatever_an_operator_does() -> None:
    """A failure prints its shortest sequence."""
    throw(20)


@pytest.mark.long
@pytest.mark.parametrize("times", [pytest.param(100, marks=pytest.mark.group(f"dice {n}")) for n in range(20)])
def test_books_balance_after_2000_sequences(times: int) -> None:
    """In groups, which run beside others: a process that has a broker waits at its end for all that use it."""
    throw(times)
