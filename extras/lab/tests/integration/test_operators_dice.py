"""An operator may do anything to the job, and its books balance: actions are drawn, and shrunk if they fail."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from operated_job import AUDIT, AUDIT_TABLES, ENFORCE, TABLES, Backup, Cluster, Event, date
from sluice.state.contract.decision_id import answered_event
from sluice.state.contract.gateway_topics import Sums
from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.errors import UNREADABLE
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Coexistence, QuotaKind
from sluice.state.shares.counter_share import CounterShare
from sluice_reading.quotas_admin import QuotasAdmin
from tests.audit_tables import rows
from tests.builders import DEFAULTS, Json, member, quota

KINDS = ("produce", "mutation", "tenant", "heartbeat", "long", "foreign")
REQUESTS, DECISIONS, LETTERS, SUMS, WAITS = TOPICS = [
    getattr(DEFAULTS.topics, name) for name in ("requests", "decisions", "dead_letters", "sums", "waits")
]
MADE_AGAIN = ((REQUESTS,), (REQUESTS,), (DECISIONS, LETTERS), (REQUESTS, DECISIONS, LETTERS))

RESTORED = (ENFORCE, AUDIT, ENFORCE | AUDIT, TABLES, AUDIT | TABLES, ENFORCE | AUDIT | TABLES)

kinds = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)
effects = st.integers(0, 20)
pages = st.integers(1, 3)


class Altered(NamedTuple):
    """Settings that can change answers, and the record bound of topics."""

    max_event_bytes: int
    max_record_bytes: int
    coexistence: Coexistence


altered = st.none() | st.builds(
    Altered, st.sampled_from([4096, 1_048_576]), st.sampled_from([16_384, 1_048_576]), st.sampled_from(Coexistence)
)


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
        self._due: dict[Event, bool] = {}
        """By event whether it has to have a row: one whose topic was deleted needs none."""
        self._instances: dict[Event, str] = {}
        """The gateway of an event, each of its own, by which its charges are found in sums."""
        self._forged = Counter[bytes | None]()
        """By the value of foreign records, how many the table `unreadable` has to have."""
        self._forgotten: set[bytes | None] = set()
        """Foreign records of before retention passed, which may be there or not."""
        self._decided_again: set[Event] = set()
        self._cut_short: set[Event] = set()
        """Events of a micro-batch whose repetition their topic's deletion has prevented: sums of them may lack."""
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
        QuotasAdmin(delta["quotas"]).create(quotas(0), "seed", date(self.cluster.kafka.now_ms))
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

    @rule(kinds=kinds, effects=effects, altered=altered)
    def kill(self, kinds: list[str], effects: int, altered: Altered | None) -> None:
        """The job is killed before it has published all decisions, or committed to all tables.

        It may get other settings then, and topics other bounds.
        """
        self._send(kinds)
        self.cluster.kill(effects)
        self._check(settled=False)
        if altered is not None:
            self.cluster.set("enforce", max_event_bytes=altered.max_event_bytes)
            self.cluster.set("quota", coexistence=altered.coexistence)
            self.cluster.max_record_bytes = altered.max_record_bytes

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
        table = QuotasAdmin(self.cluster.settings.delta.quotas)
        for _ in range(times):
            self._quotas += 1
            table.alter(lambda _: quotas(self._quotas), "operator", date(self.cluster.kafka.now_ms))
            if self.cluster.driver is None:
                self.cluster.kill(0)
            else:
                self.cluster.driver.watch.poll()

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
            self._cut_short |= self.cluster.uncommitted()
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
        self._due = dict.fromkeys(self._due, False)
        self._forgotten |= self._forged.keys()
        self._backups.clear()
        self.settle()

    def _go_on(self) -> None:
        """The job does what there is, and what comes then."""
        self.cluster.settle()
        self._send(["produce", "foreign"])
        self.settle()

    def _send(self, kinds: list[str]) -> None:
        kafka = self.cluster.kafka
        for kind in kinds:
            kafka.now_ms += 1000
            if kind == "foreign":
                self._send_foreign()
                continue
            instance = f"i-{len(self._due)}"
            event: Json = {"timestamp_ms": kafka.now_ms, "user": "alice", "client_id": "app", "instance": instance}
            if kind == "mutation":
                event |= {"api": "CreateTopics", "mutations": [{"topic": "t", "partitions": 9}]}
            elif kind == "heartbeat":
                event |= {"api": HEARTBEAT_API}
            else:
                names = {"user": "shop-a"} if kind == "tenant" else {"user": "bob"}
                event |= {"api": "Produce", "bytes": 9000} | names
                event |= {"client_id": "c" * 9000} if kind == "long" else {}
            sent = kafka.publish(REQUESTS, json.dumps(event).encode())
            self._due[sent], self._instances[sent] = True, instance

    def _send_foreign(self) -> None:
        """Somebody writes to each topic what is no record of Sluice, and half of one for an event that comes next."""
        kafka = self.cluster.kafka
        topic_id, offset = kafka[REQUESTS].id, kafka[REQUESTS].end
        halves: list[Json] = [
            {"decision_id": f"{REQUESTS}-0-{offset}", "source_topic_id": topic_id},
            {"source": {"topic": REQUESTS, "partition": 0, "offset": offset, "topic_id": topic_id}},
            {"source": {"topic": REQUESTS, "partition": 0}, "error": {}},
        ]
        for value in (b"hello", b"{}", b"", None, *(json.dumps(half).encode() for half in halves)):
            for name in TOPICS:
                sent = kafka.publish(name, value)
                if name == REQUESTS:
                    self._due[sent] = True
                elif name in (DECISIONS, LETTERS):
                    self._forged[value] += 1

    def _check(self, settled: bool = True) -> None:
        delta = self.cluster.settings.delta
        decisions, letters, unreadable = map(rows, (delta.decisions, delta.dead_letters, delta.unreadable))
        found = Counter((row["source_topic_id"], row["source_offset"]) for row in [*decisions, *letters])
        refused = Counter(row["value"] for row in unreadable)
        second = self._second_answers()
        assert found.keys() <= self._due.keys()
        assert [event for event, times in found.items() if times > 1] == [], "events with several rows"
        assert refused.keys() <= self._forged.keys() | second, "answers that nobody can read"
        if settled:
            due = [event for event, is_due in self._due.items() if is_due and event not in found]
            assert due == [], "events without a row"
            forged = self._forged.keys() - self._forgotten
            assert [value for value in forged if refused[value] != self._forged[value]] == []
            assert metered(rows(delta.quota_metrics)) == charged(decisions)
            self._check_sums()

    def _second_answers(self) -> set[bytes | None]:
        """Answers that may count for nothing: of a driver that was replaced, or to a request that has several."""
        answers, second = dict[Event, list[bytes | None]](), set[bytes | None]()
        for topic in self.cluster.topics(DECISIONS, LETTERS):
            counting = dict(topic.counting())
            for offset, record in enumerate(topic.records):
                if offset not in counting:
                    second.add(record.value)
                elif (event := event_of(record.value)) is not None:
                    answers.setdefault(event, []).append(record.value)
        several = {event: values for event, values in answers.items() if len(values) > 1}
        assert several.keys() <= self._decided_again, "events with two answers"
        return second.union(*several.values())

    def _check_sums(self) -> None:
        """Gateways learn of each charge once, of each heartbeat, and of each decision that they wait for."""
        decided, told, heartbeats, answers = Counter[Charge](), Counter[Charge](), set[str](), set[Event | None]()
        for topic in self.cluster.topics(DECISIONS):
            for _, record in topic.counting():
                if (event := event_of(record.value)) in self._instances and event not in self._decided_again:
                    decided.update(charges_of(self._instances[event], json.loads(record.value or b"")))
        taken: dict[tuple[str, str], CounterShare] = {}
        for _, record in self.cluster.kafka[SUMS].counting():
            with suppress(*UNREADABLE):
                sums = msgspec.json.decode(record.value or b"", type=Sums)
                heartbeats |= {sums.heartbeat.instance} if sums.heartbeat else set()
                answers |= {event_of(msgspec.json.encode(sums.answer))} if sums.answer else set()
                told.update(new_charges(sums, taken))
        # A dead letter in place of a decision that is too large leaves what its event has charged.
        lettered = {event_of(record.value) for topic in self.cluster.topics(LETTERS) for _, record in topic.counting()}
        others = {self._instances[event] for event in self._instances.keys() & (self._decided_again | lettered)}
        counting = {charge: value for charge, value in told.items() if charge[0] not in others}
        # Its topic went before its micro-batch was repeated: charges were told, or the decision written, or neither.
        cut_short = {self._instances[event] for event in self._instances.keys() & self._cut_short}
        known_to_one = {charge for charge in counting.keys() ^ decided.keys() if charge[0] in cut_short}
        assert _without(counting, known_to_one) == _without(decided, known_to_one)
        assert all(event in answers for event in self._answered("CreateTopics")), "gateways wait for ever"
        assert {self._instances[event] for event in self._answered(HEARTBEAT_API)} <= heartbeats

    def _answered(self, api: str) -> list[Event]:
        """The events of this API that have a decision, but for those of a micro-batch that was cut short."""
        answers = (record.value for topic in self.cluster.topics(DECISIONS) for _, record in topic.counting())
        found = [(event_of(value), value) for value in answers]
        told = [(event, value) for event, value in found if event is not None and event not in self._cut_short]
        return [event for event, value in told if json.loads(value or b"")["api"] == api]


def event_of(answer: bytes | None) -> Event | None:
    """The event that a decision or dead letter answers; None for a foreign record."""
    event = answered_event(answer)
    return None if event is None else (event.topic_id or "", event.offset)


Charge = tuple[str, str, str]
"""The gateway, the quota and the entity of a charge."""


def _without(charges: Mapping[Charge, float], left_out: Set[Charge]) -> dict[Charge, float]:
    return {charge: value for charge, value in charges.items() if charge not in left_out}


def charges_of(instance: str, decision: Json) -> dict[Charge, float]:
    """The charges of a decision."""
    return {(instance, each["quota"], json.dumps(each["entity"])): each["value"] for each in decision["charges"]}


def new_charges(sums: Sums, taken: dict[tuple[str, str], CounterShare]) -> dict[Charge, float]:
    """The charges in a record of the sums topic, of sums that a gateway takes."""
    found: dict[Charge, float] = {}
    for of_entity in sums.sums:
        entity = json.dumps(msgspec.to_builtins(of_entity.entity))
        for counter in of_entity.counters:
            quota = sums.quotas[counter.quota]
            share = taken.setdefault((quota, entity), CounterShare())
            if share.is_new(sums.job_id, sums.batch or 0, sums.decided_at_ms):
                for charged in counter.by_gateway:
                    instance = sums.gateways[charged.gateway].instance or ""
                    found[instance, quota, entity] = charged.value
    return found


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


UNALTERED = Altered(1_048_576, 1_048_576, Coexistence.MAX)
ALTERED = [
    pytest.param(False, Altered(4096, 1_048_576, Coexistence.SEQUENTIAL), id="other limits"),
    pytest.param(True, Altered(1_048_576, 16_384, Coexistence.MAX), id="smaller records, in shared storage"),
]


@pytest.fixture
def state() -> Iterator[OperatedJob]:
    """A job whose books have to balance at the end."""
    state = OperatedJob()
    yield state
    state.teardown()


@pytest.mark.parametrize("records", [[1, 4, 7], pytest.param(range(9), marks=pytest.mark.long)], ids=["three", "each"])
@pytest.mark.parametrize(("is_shared", "altered"), ALTERED)
def test_a_repetition_completes_what_was_written(
    state: OperatedJob, is_shared: bool, altered: Altered, records: Iterable[int]
) -> None:
    """After a crash before some of its records, unless its requests are gone; the dice find it if thrown often."""
    state.install(shared=is_shared, pages=1)
    for effects in records:
        for after in (altered, UNALTERED):
            state.kill(kinds=["long", "foreign", "heartbeat", "mutation"], effects=effects, altered=after)
            state.settle()
        state.kill(kinds=["produce", "mutation", "heartbeat"], effects=effects, altered=None)
        state.make_topics_again(names=(REQUESTS,))


def test_the_topic_of_a_micro_batch_that_was_cut_short_is_made_again(state: OperatedJob) -> None:
    """Gateways know its charges, and nobody can decide it any more; a tenant's parts come together after its sums."""
    state.install(shared=False, pages=1)
    state.kill(kinds=["tenant"], effects=2, altered=None)
    state.make_topics_again(names=(REQUESTS,))


def test_an_event_that_is_decided_again_under_other_limits_has_no_second_row(state: OperatedJob) -> None:
    """As a dead letter beside a decision: larger events are refused once the checkpoint of before is restored."""
    state.install(shared=False, pages=3)
    state.alter_quotas(times=1)
    state.kill(kinds=["produce", "long"], effects=14, altered=Altered(4096, 16_384, Coexistence.MAX))
    state.restore(age=0, parts=ENFORCE)


def test_books_balance_after_whatever_an_operator_does() -> None:
    """A failure prints its shortest sequence."""
    throw(10)


@pytest.mark.long
@pytest.mark.parametrize("times", [pytest.param(100, marks=pytest.mark.group(f"dice {n}")) for n in range(20)])
def test_books_balance_after_2000_sequences(times: int) -> None:
    """In groups, which run beside others: a process that has a broker waits at its end for all that use it."""
    throw(times)
