"""The broker plugin's Java core does what `state/` does: resolution, shares, and amounts to the byte."""

import json
import math
import random
import zipfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from scripts.java.build import PLUGIN, build_plugin
from scripts.java.compiler import JavaBuildError, build_jar, compile_java, javac
from sluice.gateways.client.in_force import InForce
from sluice.gateways.client.inline import InlineCharges
from sluice.gateways.client.options import GatewayOptions
from sluice.jvm.plugin import JAR_NAME
from sluice.state.arithmetic.counter import Charge
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.decisions.charge_plan import ChargePlan, plan_charges
from sluice.state.decisions.checks import EventLimits
from sluice.state.decisions.leader_epochs import Fence, read_epoch
from sluice.state.errors import FarEpochError, InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT, EntityName, QuotaEntity, Tags, bounded_name
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import (
    CLIENT_KINDS,
    TOPIC_KINDS,
    ElasticKey,
    EntryKind,
    Family,
    Membership,
    QuotaKind,
    QuotaSettings,
    StorageKey,
    Window,
)
from sluice.state.quotas.limits import (
    VERSION_KEY,
    LimitsInForce,
    LimitsView,
    limit_key,
    limit_value,
    overrides_key,
    overrides_value,
    version_end,
)
from sluice.state.quotas.overrides import OverridesInForce, bound_of_share
from sluice.state.quotas.resolution import PRECEDENCE_LEVELS, PrecedenceLevel, Quotas
from sluice.state.quotas.tenants import Tenants
from sluice.state.shares.alive import MAX_GATEWAYS
from sluice.state.shares.counter_share import CounterShare
from sluice.state.shares.read_sums import read_sums
from sluice.streaming.enforce.parsing import parse_request
from sluice.streaming.enforce.wire import Source
from sluice_demo.jars import BROKER_JARS
from tests.broker_plugin import JavaCases, plugin_properties
from tests.decided_sums import sums_of

pytestmark = pytest.mark.kafka

DATA = Path(__file__).parents[1] / "data"

MUTE_S = 5
"""The longest mute in seconds, as `sluice.max.mute.ms` is by default."""

START_MS = 1_700_000_000_000
EXTREME_LIMITS = (5e-324, 1.7e308)
USERS = ("alice", "bob|x", "", "<default>", "🦊 fox", "O=A client,CN=b", 'a\x1f"\\\n/\x7f')
CLIENTS = ("app", "app two", "", "<default>", "a:b", "*", 300 * "🦊")
USER_NAMES: list[EntityName] = [*filter(None, USERS), DEFAULT]
CLIENT_NAMES: list[EntityName] = [*filter(None, CLIENTS), DEFAULT]
TENANTS: list[EntityName] = ["shop", "<default>", "🦊", "\uffff", "a/b c"]
TOPICS = ("orders", "other")
TOPIC_NAMES: list[EntityName] = ["orders", DEFAULT]
KINDS = {kind.value: kind for kind in CLIENT_KINDS}
METERED_KINDS = [kind for kind in CLIENT_KINDS if kind.family is not Family.COUNT]
OF_TOPICS = {kind.value: kind for kind in TOPIC_KINDS}
LEVELS = {level: number for number, level in enumerate(PRECEDENCE_LEVELS, 1)}
LEVELS |= {PrecedenceLevel.TOPIC: 3, PrecedenceLevel.DEFAULT_TOPIC: 6}
"""The plugin finds a topic's limit as if it were a user."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, classes: list[Path]) -> Iterator[JavaCases]:
    with JavaCases(tmp_path_factory.mktemp("cases"), classes) as cases:
        yield cases


drawn = pytest.mark.parametrize("count", [300, pytest.param(3_000, marks=pytest.mark.long)])
"""Cases that Java and Python are compared by."""

Records = list[tuple[bytes, bytes | None]]


def random_member(draw: random.Random) -> QuotaEntry:
    """A member of a tenant, by names and globs that may match those of others."""
    globs = (*USERS, *CLIENTS, "*", "?????", "a*", "*o*", "*🦊", "?-[x]", "*x", "sha*")
    user, client_id = draw.choice([(True, False), (False, True), (True, True)])
    entity = QuotaEntity(
        user=draw.choice(globs) or None if user else None,
        client_id=draw.choice(globs) or None if client_id else None,
        tenant=draw.choice(TENANTS),
    )
    return QuotaEntry(entity if entity.is_member else QuotaEntity(user="*", tenant="shop"), Membership.MEMBER, 1.0)


def random_tenants(draw: random.Random) -> list[QuotaEntry]:
    entries = [random_member(draw) for _ in range(draw.randint(0, 6))]
    for _ in range(draw.randint(0, 4)):
        entity = QuotaEntity(tenant=draw.choice([*TENANTS, DEFAULT]))
        kinds: list[EntryKind] = [*CLIENT_KINDS, StorageKey.STORED_BYTES]
        entries.append(QuotaEntry(entity, draw.choice(kinds), draw.choice([1.0, 7.0]), draw.random() < 0.2))
    for _ in range(draw.choice([0, 0, 0, 2])):
        topic = QuotaEntity(topic=draw.choice(["orders", "o*", "*r", "🦊"]), tenant=draw.choice(TENANTS))
        entries.append(QuotaEntry(topic, Membership.MEMBER, 1.0))
    return entries


def random_entity(draw: random.Random) -> QuotaEntity:
    if draw.random() < 0.1:
        return QuotaEntity(topic=draw.choice(TOPIC_NAMES))
    user, client_id = draw.choice(USER_NAMES), draw.choice(CLIENT_NAMES)
    parts = draw.choice(["user", "client_id", "both"])
    return QuotaEntity(user=None if parts == "client_id" else user, client_id=None if parts == "user" else client_id)


def random_entries(draw: random.Random, most: int = 8) -> list[QuotaEntry]:
    entries = []
    kinds = draw.sample(CLIENT_KINDS, draw.randint(1, 4))
    for _ in range(draw.randint(0, most)):
        entity = random_entity(draw)
        kind = QuotaKind.TOPIC_PRODUCER_BYTE_RATE if entity.topic else draw.choice(kinds)
        entries.append(QuotaEntry(entity, kind, draw.choice([1.0, 5.0, 1e6]), draw.random() < 0.2))
        if entity.topic is None and draw.random() < 0.1:
            entries.append(QuotaEntry(entity, draw.choice(list(ElasticKey)), draw.choice([1.0, 5.0])))
    return entries


def record(
    entity: str,
    quota: str = "producer_byte_rate",
    value: str = "1",
    key: str | None = None,
    more: str = ',"version":1}',
    encoding: str = "utf-8",
) -> tuple[bytes, bytes]:
    """A limit by the text of its entity and value; `key` is an entity that the key has in place of the value's."""
    names = '{"entity":%s,"mode":"enforce","quota":"%s"'
    of_value = f'{names % (entity, quota)},"value":{value}{more}'
    return f"{names % (key or entity, quota)}}}".encode(encoding), of_value.encode(encoding)


HELD_TENANTS = ["shop", "bank", ""]

HELD = [
    None,
    *(CountedEntity(tenant=name) for name in HELD_TENANTS[:2]),
    *(CountedEntity(user, client_id) for user in ("u", None) for client_id in ("c", None) if user or client_id),
    CountedEntity("other"),
]
"""Entities that a hold may be for; clients are user u with client-id c, in each of these tenants."""

IMPOSSIBLE = (
    b'{"kind":"lend","factor":2}',
    b'{"kind":"tighten","factor":0.5}',
    b'{"kind":"tighten","factor":1.5,"gateway":"b"}',
    b'{"kind":"tighten","factor":0,"gateway":"b"}',
    b'{"kind":"tighten","factor":0.5,"gateway":""}',
    b'{"kind":"hold","factor":0.5}',
    b'{"kind":"hold","entity":{}}',
    b'{"kind":"hold","entity":{"tenant":""}}',
    b'{"kind":"hold","entity":{"tenant":"shop","user":"u"}}',
    b'{"kind":"hold","entity":{"topic":"t"}}',
    b'{"kind":"hold","until_ms":"7"}',
    b'{"kind":"hold","consumers":true}',
    b'{"kind":"hold","entity":{"user":"u"},"consumers":1}',
    b'{"kind":"close"}',
    b"{}",
)
"""Overrides that no reader takes."""


def limit_records(entries: Sequence[QuotaEntry], version: int = 1) -> Records:
    by_key = {limit_key(entry): limit_value(entry, version) for entry in entries}
    return [*by_key.items(), (VERSION_KEY, version_end(version, len(by_key)))]


ALICES, OF_A = '{"user":"alice"}', '{"user":"a"}'
SPACED, REORDERED = '{"entity": {"user": "a"}, "mode": "enforce"', '{"mode":"enforce","quota":"producer_byte_rate"'
ESCAPED = (r"\u001F", r"\u0041", r"\/", r"\u0009", r"\ud83e\udd8a", "\u017f", "\u2028")
GARBAGE: Records = [
    (b'"version"', b"{}"),
    (record(ALICES)[0], b'{"value":1}'),
    record('{"user":""}'),
    record("{}"),
    record(OF_A, value="1.5"),
    record(OF_A, value="0"),
    record('{"user":"b"}', key=OF_A),
    (b"x", b"\xff"),
    (b'"overrides:x"', b'{"number":1,"at_ms":1,"overrides":[{"kind":"hold"}]}'),
    (b'"overrides:', b'{"number":1,"at_ms":1,"fresh_ms":1}'),
    *((b'"overrides:x"', b'{"number":1,"at_ms":1,"fresh_ms":1,"overrides":[%b]}' % each) for each in IMPOSSIBLE),
    record('{"tenant":"shop","topic":null}', "member"),
    record('{"tenant":"shop","topic":"o"}', "stored_bytes"),
    record('{"tenant":"shop"}', "stored_bytes", "1.5"),
    record(OF_A, more=',"version":1}{}'),
    (f'{SPACED}, "quota": "producer_byte_rate"}}'.encode(), record(OF_A)[1]),
    (f'{REORDERED},"entity":{OF_A}}}'.encode(), record(OF_A)[1]),
    record(r'{"user":"\ud800"}'),
    record(OF_A, key='{"user":"A"}'),
    record(OF_A, "request_percentage", "1e999"),
    record(OF_A, "request_percentage", '"1"'),
    record(OF_A, "request_percentage", encoding="utf-16"),
    *(record(f'{{"user":"{user}"}}', "request_percentage") for user in ESCAPED),
    record(OF_A, "request_percentage", more=f',"version":{2**63}}}'),
    record(OF_A, "topic_count"),
    (b'"version"', b'{"version":9223372036854775808,"count":0}'),
    (b'"version"', b'{"version":1.0,"count":0}'),
    (b'"version"', b'{"version":1,"count":0} '),
    (b'"version"', b'{"version":1,"count":-1}'),
    (b'"version"', b'{"version":1,"count":0.5}'),
]
"""Records that Sluice would not have written."""


def damaged(draw: random.Random, records: Records) -> Records:
    """The records with some removed, and some that are GARBAGE."""
    removed: Records = [(key, None) for key, value in records[:2] if value is not None]
    for at in draw.sample(range(len(records)), draw.randint(0, 1)):
        records[at] = records[at][0], b"{}"  # and its version counts it
    return [*draw.sample(GARBAGE, draw.randint(0, 3)), *records, *draw.sample(removed, draw.randint(0, len(removed)))]


def as_json(records: Records) -> list[list[str | None]]:
    return [[b64encode(part).decode() if part is not None else None for part in record] for record in records]


def view_of(records: Records) -> LimitsView:
    view = LimitsView()
    for key, value in records:
        with suppress(InvalidQuotaError):
            view.take(key, value)
    return view


def random_clients(draw: random.Random) -> list[tuple[str, str, str, bool]]:
    """(quota, user, client-id, whether its shadow limit is asked for)."""
    shadows = (False, True)
    topics = [(kind, draw.choice(TOPICS), "", shadow) for kind in OF_TOPICS for shadow in shadows]
    return topics + [(kind, draw.choice(USERS), draw.choice(CLIENTS), shadow) for kind in KINDS for shadow in shadows]


def random_limits(draw: random.Random) -> Records:
    records = limit_records([*random_entries(draw), *random_tenants(draw)])
    if draw.random() < 0.5:
        brokers = [Override("tighten", draw.choice([0.2, 0.75]), gateway=name) for name in draw.sample("abc", 2)]
        held = [
            Override(
                "hold",
                entity=entity,
                gateway=draw.choice([None, "a", "b"]),
                consumers=entity is not None and draw.random() < 0.5,
            )
            for entity in draw.sample(HELD, 2)
        ]
        said = {"elastic": brokers, "stored_bytes": held[:1], "another": held[1:]}
        for decider, overrides in said.items():
            record = overrides_key(decider), overrides_value(Overrides(7, 9_000, 60_000, overrides))
            records.insert(draw.randint(0, len(records)), record)
    if draw.random() < 0.3:
        return damaged(draw, [*records, *limit_records(random_entries(draw), version=2)])
    return records


def found_by_the_job(view: LimitsView, clients: Sequence[tuple[str, str, str, bool]]) -> dict[str, Any]:
    overrides = OverridesInForce("b")
    overrides.hear(view.overrides, 0)
    held = [
        overrides.hold("u", "c", Tenants([QuotaEntity(tenant=name, user="u")] if name else []), 0, is_fetch)
        for name in HELD_TENANTS
        for is_fetch in (False, True)
    ]
    by = [None if hold is None else hold.decider for hold in held]
    answer: dict[str, Any] = {"garbage": view.garbage, "held": by, "version": None, "missed": view.missed_removals}
    if view.in_force is not None:
        answer |= {"version": view.in_force.version, "found": []}
        for quota, user, client_id, shadow in clients:
            quotas = view.in_force.shadow if shadow else view.in_force.enforced
            tenant = view.in_force.enforced.tenants.of(user, client_id)
            if quota in OF_TOPICS:
                found = quotas.resolve_topic(OF_TOPICS[quota], user, 0)
                tags, of_tenant = [user if quotas.enabled(OF_TOPICS[quota]) else "", ""], None
            else:
                kind = KINDS[quota]
                found = quotas.resolve_client(kind, user, client_id)
                tags = [found.tags.user, found.tags.client_id]
                of_tenant = view.in_force.enforced.limit_of(kind, Tags(tenant=tenant)) if tenant else None
            eased = []
            if found.limit is not None:
                eased = [bound_of_share(overrides.factor(0), found.limit, found.reservation)]
            answer["found"].append([*tags, LEVELS.get(found.level, 0), found.limit, tenant, of_tenant, *eased])
    return answer


@drawn
def test_a_client_finds_the_limit_the_counter_and_the_tenant_that_the_job_finds(java: JavaCases, count: int) -> None:
    draw = random.Random(1)
    cases = [(random_limits(draw), random_clients(draw)) for _ in range(count)]  # of eight clients and more
    asked = [{"records": as_json(records), "clients": clients, "tenants": HELD_TENANTS} for records, clients in cases]
    for (records, clients), answer in zip(cases, java.answers("resolution", asked), strict=True):
        assert answer == found_by_the_job(view_of(records), clients), (records, clients)


def test_a_name_breaks_no_line_of_a_log(java: JavaCases) -> None:
    hold = Override("hold", entity=CountedEntity(user="al\nice"), reason="it \x1b[31mfloods\u202e all")
    record = overrides_key("quotas_hold"), overrides_value(Overrides(7, 9_000, 60_000, [hold]))
    said = java.answer("held", {"records": as_json([*limit_records([]), record])})
    assert said == r"user al\u000aice (quotas_hold: it \u001b[31mfloods\u202e all)"


def test_a_long_name_is_the_same_in_the_tags_of_a_broker_and_of_the_job(java: JavaCases) -> None:
    vectors = json.loads((DATA / "bounded-names.json").read_text())
    names = [vector["part"] * vector["times"] for vector in vectors]
    assert java.answer("names", {"names": names}) == [bounded_name(name) for name in names]


@pytest.mark.parametrize("length", [0, 32_700])
def test_invented_client_ids_without_a_limit_share_the_counter_of_their_user(java: JavaCases, length: int) -> None:
    asked = {"properties": plugin_properties() | {"node.id": "1"}, "limited": False, "names": 1_000, "length": length}
    answer = java.answer("invented", asked)
    assert answer == {"counters": 2, "more": False, "known": True, "of_user": True, "refused": 0, "longest": 5}


def test_client_ids_that_are_invented_too_fast_share_one_counter_of_their_default(java: JavaCases) -> None:
    """A client that a quota names has its own counter whatever others do."""
    asked = {"properties": plugin_properties() | {"node.id": "1"}, "limited": True, "names": 36_000, "length": 300}
    answer = java.answer("invented", asked)
    assert answer["more"]
    assert answer["known"]
    assert answer["longest"] == 71
    assert 5_002 <= answer["counters"] < 10_000
    assert answer["refused"] == 36_000 - (answer["counters"] - 2)


def test_names_are_admitted_freely_for_a_minute_after_a_start_and_then_fewer_at_once(java: JavaCases) -> None:
    """10 000 names come at each of these seconds; a second later 100 more have room."""
    answer = java.answer("new-names", {"at_s": [30, 31, 59, 61, 62, 200, 200]})
    assert answer == [5_000, 100, 2_800, 200, 100, 1_000, 0]


def test_the_tags_of_a_counter_resolve_to_that_counter_again() -> None:
    draw = random.Random(2)
    for _ in range(1_000):
        view = view_of(limit_records(random_entries(draw)))
        assert view.in_force is not None
        for kind in CLIENT_KINDS:
            found = view.in_force.enforced.resolve_client(kind, draw.choice(USERS), draw.choice(CLIENTS))
            assert view.in_force.enforced.resolve_client(kind, found.tags.user, found.tags.client_id) == found


def random_decision(draw: random.Random, quota: str, instance: str | None, limit: float, now_ms: int) -> dict[str, Any]:
    entity = {"user": "alice", "client_id": "app"}
    waits = [{"quota": quota, "entity": entity, "ms": draw.choice([0, 200, 7_000, 10**9])}]
    value = min(draw.choice([0.0, 100.0, draw.uniform(0, limit), 20 * draw.uniform(0, limit)]), 1e28)
    charge = {"quota": quota, "entity": entity, "limit": draw.choice([limit, limit, limit, None]), "value": value}
    if draw.random() < 0.1:
        charge["mode"] = "shadow"
    decision: dict[str, Any] = {
        "request_id": "r",
        "timestamp_ms": now_ms - draw.choice([-100, 0, 300, 2_000]),
        "api": "Fetch",
        "instance": instance,
        "charges": [charge],
    }
    if draw.random() < 0.9:
        decision["throttled_by"] = waits if draw.random() < 0.5 else []
    if draw.random() < 0.1:
        decision["amounts"] = {"withheld": True}
    elif draw.random() < 0.3:
        decision["amounts"] = {"bytes": 100}
    return decision


def random_steps(draw: random.Random, quota: str) -> list[dict[str, Any]]:
    """Decided heartbeats and charges of four gateways, and reads the gateway's share."""
    now_ms, limit, steps = START_MS, draw.choice([0.5, 1_000.0, 1e6, *EXTREME_LIMITS]), []
    gateways, batch, says_time = ["me", "a", "b", "c"], 0, draw.random() < 0.7
    for _ in range(draw.randint(1, 40)):
        now_ms += draw.choice([0, 1, 50, 100, 300, 1_000, 4_000, 12_000])
        kind = draw.random()
        batch = max(0, batch + draw.choice([1] * 20 + [-1, -7, -120]))  # from a backup of the checkpoint now and then
        at_ms = now_ms if says_time else 0
        if kind < 0.35:
            for instance in draw.sample(gateways, draw.randint(1, 4)):
                steps.append(heartbeat_step(instance, now_ms, "h", now_ms - draw.choice([0, 300, 900])))
        elif kind < 0.65:
            # One's own decisions without `throttled_by` come from gateways that charge when decided: brokers never.
            made = [
                random_decision(draw, quota, draw.choice([*gateways[1:], "d", None]), limit, now_ms)
                for _ in range(draw.choice([1, 1, 3, 20]))
            ]
            steps += draw.choice([1, 1, 2]) * sums_steps(made, now_ms, batch, at_ms)
        elif kind < 0.75:
            decision = random_decision(draw, quota, "me", limit, now_ms) | {"throttled_by": []}
            steps += sums_steps([decision], now_ms, batch, at_ms)
        elif kind < 0.76:
            now_ms -= draw.choice([1_000, 3_600_000])
            steps.append({"step_back": True, "now_ms": now_ms})
        elif kind < 0.77:
            entity = {"user": "alice", "client_id": "app"}
            reset = [{"quota": quota, "entity": entity, "limit": limit}]
            decision = {"request_id": "u", "timestamp_ms": now_ms, "api": "Unmute", "charges": reset}
            steps += sums_steps([decision], now_ms, batch, at_ms)
        else:
            held_until_ms = draw.choice([0, 0, 0, now_ms + 500])
            charged = draw.random() < 0.7
            if draw.random() < 0.1:
                limit = min(limit * 2, EXTREME_LIMITS[1])
            steps.append({"limit": limit, "charged": charged, "held_until_ms": held_until_ms, "now_ms": now_ms})
    return steps


def sums_steps(
    decisions: list[dict[str, Any]], now_ms: int, batch: int, decided_at_ms: int = 0
) -> list[dict[str, Any]]:
    """Reading what a micro-batch with these decisions publishes."""
    records = sums_of(decisions, batch=batch, decided_at_ms=decided_at_ms)
    return [{"record": record.decode(), "now_ms": now_ms} for record in records]


class PythonShares:
    """The Python gateway's shares after the same steps."""

    def __init__(self, quota: str, expected: int, window: Window) -> None:
        self.now_ms = START_MS
        self.kind, settings = KINDS[quota], QuotaSettings(client_window=window)
        options = GatewayOptions(expected_gateways=expected, quota=settings)
        self.inline = InlineCharges("me", options, InForce("me", options, self._clock_ms), self._clock_ms)
        self.counter = (self.kind, Tags("alice", "app"))
        self._share()  # at once: of a counter that its clients don't use, it keeps ten seconds, and applies them later

    def _clock_ms(self) -> int:
        return self.now_ms

    def _share(self) -> CounterShare:
        shares = self.inline.shares
        return shares.touched.get(self.counter) or shares.begin(self.counter, self.now_ms)

    def take(self, step: dict[str, Any]) -> list[float] | None:
        self.now_ms = step["now_ms"]
        if "record" in step:
            read = read_sums(step["record"].encode())
            if read.heartbeat is not None:
                self.inline.on_heartbeat(read.heartbeat.instance, read.heartbeat, self.now_ms)
            self.inline.on_sums(read, self.now_ms)
            return None
        if "step_back" in step:
            self.inline.on_clock_set_back()
            self._share()
            return None
        shares, share = self.inline.shares, self._share()
        share.throttled_until_ms = max(share.throttled_until_ms, step["held_until_ms"])
        if step["charged"]:
            nothing = [0.0, 0.0] if self.kind is QuotaKind.REQUEST_PERCENTAGE else [0.0]
            charge = Charge(self.kind, "", step["limit"], False, nothing)
            held_until_ms = share.throttled_until_ms
            now = share.charge(charge, shares.gateways, shares.metering, self.now_ms).share
            share.throttled_until_ms = held_until_ms
        else:
            now = share.share(step["limit"], shares.gateways, shares.metering, self.now_ms)
        shares.gateways.settle(self.now_ms)
        return [shares.gateways.count, now]


def random_share_case(draw: random.Random) -> dict[str, Any]:
    quota = draw.choice(["producer_byte_rate", "consumer_byte_rate", "request_percentage"])
    window = draw.choice([Window(11, 1_000), Window(1, 1_000), Window(4, 2_000)])
    of_window = {"samples": window.samples, "window_ms": window.window_ms, "id_stem": ""}
    return of_window | {"quota": quota, "expected": draw.randint(1, 3), "steps": random_steps(draw, quota)}


def python_shares(case: dict[str, Any]) -> list[list[float]]:
    python = PythonShares(case["quota"], case["expected"], Window(case["samples"], case["window_ms"]))
    return [answer for step in case["steps"] if (answer := python.take(step)) is not None]


@drawn
def test_shares_are_those_of_a_python_gateway(java: JavaCases, count: int) -> None:
    draw = random.Random(3)
    cases = [random_share_case(draw) for _ in range(count)]
    looks = moved = 0
    for case, answers in zip(cases, java.answers("shares", cases), strict=True):
        wanted = python_shares(case)
        assert len(answers) == len(wanted)
        for (gateways, share), (java_count, java_share) in zip(wanted, answers, strict=True):
            assert java_count == gateways
            assert math.isclose(float(java_share), share, rel_tol=1e-12), (case, wanted, answers)
        looks += len(wanted)
        moved += len({share for _, share in wanted}) > 2
    assert looks > 3 * count
    assert moved > count / 5


def heartbeat_step(
    instance: str, now_ms: int, request_id: str = "r-1", timestamp_ms: int | None = None
) -> dict[str, Any]:
    heartbeat = {"request_id": request_id, "timestamp_ms": timestamp_ms or now_ms, "instance": instance}
    return {"record": json.dumps({"heartbeat": heartbeat}), "now_ms": now_ms}


def look_step(now_ms: int, limit: float = 1_000.0) -> dict[str, Any]:
    return {"limit": limit, "charged": True, "held_until_ms": 0, "now_ms": now_ms}


def shares_case(steps: Sequence[dict[str, Any]], id_stem: str = "") -> dict[str, Any]:
    case = {"quota": "producer_byte_rate", "samples": 11, "window_ms": 1_000, "expected": 1, "id_stem": id_stem}
    return case | {"steps": steps}


def test_forged_heartbeats_push_no_genuine_gateway_out(java: JavaCases) -> None:
    steps = [heartbeat_step("me", START_MS), heartbeat_step("genuine", START_MS)]
    steps += [heartbeat_step(f"forged-{number}", START_MS) for number in range(2 * MAX_GATEWAYS)]
    steps += [look_step(START_MS)]
    for later_ms in range(START_MS + 1_000, START_MS + 6_000, 1_000):  # the forger is done
        steps += [heartbeat_step("me", later_ms), heartbeat_step("genuine", later_ms)]
    steps += [heartbeat_step("new", START_MS + 5_000), look_step(START_MS + 5_000)]
    case = shares_case(steps)

    answer = java.answer("shares", case)
    assert [count for count, _ in answer] == [MAX_GATEWAYS + 1, 3]
    assert [count for count, _ in python_shares(case)] == [MAX_GATEWAYS + 1, 3]


def test_a_namesake_is_another_gateway(java: JavaCases) -> None:
    """Two that took each other's heartbeats for their own would each let a client use its whole quota."""
    steps = [heartbeat_step("me", START_MS, "mine-1"), look_step(START_MS)]
    steps += [heartbeat_step("me", START_MS, "yours-1"), look_step(START_MS)]

    assert [count for count, _ in java.answer("shares", shares_case(steps, id_stem="mine-"))] == [1, 2]


@pytest.mark.parametrize(("later_ms", "is_forgotten"), [(15_000, 0), (25_000, 1)])
def test_counters_that_no_own_client_uses_are_forgotten_20_s_after_their_last_sum(
    java: JavaCases, later_ms: int, is_forgotten: int
) -> None:
    """Clients invent names on other brokers. One that is forgotten takes a repeated micro-batch for a new one."""
    entities = [{"user": user, "client_id": "app"} for user in ("alice", "bob")]
    alice, bob = (
        {
            "request_id": "u",
            "timestamp_ms": START_MS,
            "api": "Unmute",
            "charges": [{"quota": "producer_byte_rate", "entity": entity}],
        }
        for entity in entities
    )
    times = [(alice, 0), *((bob, at_ms) for at_ms in range(1_000, later_ms, 1_000)), (alice, later_ms)]
    steps = [
        step | {"resets": True} for decision, at_ms in times for step in sums_steps([decision], START_MS + at_ms, 7)
    ]

    assert java.answer("shares", shares_case(steps))[-1] == is_forgotten


@pytest.mark.parametrize(("amount", "rests_ms"), [(10.0, 1_000), (900.0, 1_000), (2_000.0, 0)])
def test_a_meter_rests_for_a_second_unless_its_client_uses_a_tenth_of_the_share(
    java: JavaCases, amount: float, rests_ms: int
) -> None:
    """A charge counts as its rate over ten seconds, and the share is 1 000 a second."""
    assert java.answer("rest", {"share": 1_000.0, "amount": amount, "idle_ms": 1_000}) == rests_ms


def test_a_clock_that_is_set_back_silences_no_meter(java: JavaCases) -> None:
    is_due, since_published_ms, is_held = java.answer("clock", {})
    assert (is_due, since_published_ms, is_held) == (True, 0, False)


@pytest.mark.parametrize(
    ("quota", "wait_s"),
    [("producer_byte_rate", 3_600.0), ("consumer_byte_rate", 3_600.0), ("request_percentage", 20.0)],
)
def test_who_was_charged_for_centuries_waits_an_hour_and_of_request_time_ten_seconds_of_the_limit(
    java: JavaCases, quota: str, wait_s: float
) -> None:
    """With a share of half of the limit, 10 s of the limit are 20 s."""
    asked = {"quota": quota, "share": 500.0, "limit": 1_000.0, "charged": 2.0**53, "size": 1.0}
    before, after = java.answers("debt", [asked | {"after_s": 0}, asked | {"after_s": 10}])

    assert (before, after) == (pytest.approx(wait_s, abs=0.01), pytest.approx(wait_s - 10, abs=0.01))


def random_record(draw: random.Random) -> bytes:
    """A record of sums with up to two fields or elements that are not as they should be."""
    charged: list[Any] = [0, 5.0, 200, 7, 4.5]
    wait: list[Any] = [200, 300, 5.0, 100, 7, True]
    fetches: list[Any] = [3, 15.0]
    summed: list[Any] = [0, 10.0, 0, 50, [charged], wait, fetches, False]
    entity: dict[str, Any] = draw.choice([{"user": "alice", "client_id": "app"}, {"user": None, "tenant": "shop"}])
    gateway: list[Any] = ["me", True, 43]
    counted: list[Any] = [entity, [summed], True]
    heartbeat: dict[str, Any] = {"instance": "a", "request_id": "r", "timestamp_ms": START_MS}
    record: dict[str, Any] = {"job_id": "3f", "batch": 7, "quota_version": 3, "base_ms": START_MS, "decided_at_ms": 5}
    record |= {"quotas": ["consumer_byte_rate"], "gateways": [gateway], "sums": [counted], "heartbeat": heartbeat}
    wrong: list[Any] = [None, "", "x", "\ud800", "🦊", 0, -1, 0.5, 1.0, 1e31, 2**53, 2**62, 2**63, 10**400, 1e300]
    wrong += [[], {}, True, "x" * 251, json.loads("[" * 200 + "]" * 200)]
    for _ in range(draw.randint(0, 2)):
        field: Any = draw.choice([record, heartbeat, entity, gateway, counted, summed, charged, wait, fetches])
        if isinstance(field, list):
            place = draw.randrange(len(field))
            if draw.random() < 0.2:
                del field[place:]
                break
            field[place] = draw.choice(wrong)
            continue
        name = draw.choice(list(field))
        if draw.random() < 0.2:
            del field[name]
        else:
            field[name] = draw.choice(wrong)
    text = json.dumps(record, separators=(",", ":")).encode()
    return draw.choice([text] * 20 + [text + b" {}", text[:-1], text.decode().encode("utf-16"), b"", b"null"])


def read_by_a_python_gateway(record: bytes) -> dict[str, Any] | None:
    try:
        read = read_sums(record)
        sums = [(entity.tags(), entity) for entity in read.sums]
        counters = [(tags, kind, each) for tags, entity in sums for kind, each in read.counters(entity)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    until_ms = read.decided_until_ms("me")
    answer: dict[str, Any] = {"job_id": read.job_id, "batch": read.batch or 0}
    answer |= {"own_until_ms": -1 if until_ms is None else until_ms}
    answer |= {"heartbeat_of": None if read.heartbeat is None else read.heartbeat.instance, "counters": []}
    for tags, kind, each in counters:
        if tags.topic is None and kind in CLIENT_KINDS:
            last_ms, fetches = read.base_ms + each.until_ms, each.fetches.count if each.fetches else 0
            made = [kind.value, tags.user, tags.client_id, tags.tenant, read.base_ms + each.from_ms, last_ms, fetches]
            made.append(each.is_reset)
            for charged in each.by_gateway:
                gateway = read.gateways[charged.gateway]
                made += [gateway.instance, gateway.charges_inline, charged.value]
                made += [charged.value if charged.faded is None else charged.faded]
                made += [last_ms - charged.age_ms, charged.applied_ms]
            answer["counters"].append(made)
    return answer


@drawn
def test_a_record_that_is_none_of_sums_is_none_for_a_broker_and_for_a_python_gateway(
    java: JavaCases, count: int
) -> None:
    draw = random.Random(5)
    records = [random_record(draw) for _ in range(3 * count)]
    answers = java.answer("sums", {"records": [b64encode(record).decode() for record in records]})
    read = 0
    for record, answer in zip(records, answers, strict=True):
        assert answer == read_by_a_python_gateway(record), record
        read += answer is not None
    assert 0.2 < read / len(records) < 0.8


def random_charges(draw: random.Random, window: Window) -> list[list[Any]]:
    """(quota, user, client-id, amount, time, whether the meters are looked at then); some Fetches are taken back."""
    now_ms, charges = START_MS, []
    clients = [(draw.choice(USERS), draw.choice(CLIENTS)) for _ in range(4)]
    for _ in range(draw.randint(1, 60)):
        now_ms += draw.choice([0, 1, 99, 500, window.window_ms - 1, window.window_ms])
        kind, (user, client_id) = draw.choice(METERED_KINDS), draw.choice(clients)
        amount = draw.uniform(0, 500) if kind is QuotaKind.REQUEST_PERCENTAGE else float(draw.randint(0, 10**6))
        # A broker looks at a meter more often than its windows pass.
        charges.append([kind.value, user, client_id, amount, now_ms, draw.random() < 0.6 or window.samples < 3])
        if kind is QuotaKind.CONSUMER_BYTE_RATE and draw.random() < 0.4:
            charges.append([kind.value, user, client_id, -amount, now_ms, False])
    for kind in METERED_KINDS:  # what was published too early is made up for by what comes
        for user, client_id in clients:
            charges.append([kind.value, user, client_id, 1e8, now_ms, False])
    return charges


def random_amount_case(draw: random.Random) -> dict[str, Any]:
    window = draw.choice([Window(11, 1_000), Window(4, 2_000), Window(1, 1_000)])
    of_window = {"samples": window.samples, "window_ms": window.window_ms}
    limits = limit_records([*random_entries(draw), *random_tenants(draw)])
    return of_window | {"limits": limits, "charges": random_charges(draw, window)}


CounterSums = dict[tuple[QuotaKind, Tags | None], float]
"""Charges by kind and counter; those without a limit together, as a broker keeps one counter for many of them."""


def charged_to(limits: LimitsInForce, charges: Sequence[Sequence[Any]]) -> CounterSums:
    sums: CounterSums = {}
    for quota, user, client_id, amount, _, _ in charges:
        tenant = Tags(tenant=limits.enforced.tenants.of(user, client_id))
        if tenant.tenant and limits.enforced.limit_of(KINDS[quota], tenant) is not None:
            sums[KINDS[quota], tenant] = sums.get((KINDS[quota], tenant), 0.0) + amount
        found = limits.enforced.resolve_client(KINDS[quota], user, client_id)
        counter = KINDS[quota], None if found.limit is None else found.tags
        sums[counter] = sums.get(counter, 0.0) + amount
    return sums


def decided_by_the_job(quotas: Quotas, events: Sequence[str]) -> CounterSums:
    sums: CounterSums = {}
    for event in events:
        request = parse_request(event.encode(), Source("requests", 0, 0, START_MS), EventLimits(10**6, 10**9))
        plan_charges(plan := ChargePlan(), request, quotas, QuotaSettings())
        for entity in plan.entities.values():
            for charge in entity.charges:
                if charge.kind in CLIENT_KINDS and not charge.shadow:
                    counter = charge.kind, None if charge.limit is None else entity.tags
                    sums[counter] = sums.get(counter, 0.0) + sum(charge.amounts)
    return sums


@drawn
def test_events_sum_up_to_what_the_meters_were_charged_and_on_the_same_counters(java: JavaCases, count: int) -> None:
    draw = random.Random(4)
    cases = [random_amount_case(draw) for _ in range(count // 3)]
    properties = plugin_properties() | {"node.id": "1"}
    asked = [case | {"records": as_json(case["limits"]), "limits": None, "properties": properties} for case in cases]
    for case, events in zip(cases, java.answers("amounts", asked), strict=True):
        in_force = view_of(case["limits"]).in_force
        assert in_force is not None
        decided = decided_by_the_job(in_force.enforced, events)
        for (kind, tags), amount in charged_to(in_force, case["charges"]).items():
            if tags is None and not in_force.enforced.client_limits(kind):
                assert (kind, tags) not in decided
            elif kind is QuotaKind.REQUEST_PERCENTAGE:  # events have whole nanoseconds
                assert decided[kind, tags] == pytest.approx(amount, abs=1e-4, rel=1e-9)
            else:
                assert decided[kind, tags] == amount, (kind, tags, case)


def names_in_events(java: JavaCases, entry: QuotaEntry, charges: Sequence[tuple[str, str, bool]]) -> list[str]:
    """User and client-id of each event, if these clients produce a byte each; some have an event of theirs at once."""
    steps = [
        ["producer_byte_rate", *names, 1.0, START_MS + at_ms, then] for at_ms, (*names, then) in enumerate(charges)
    ]
    case = {"samples": 11, "window_ms": 1_000, "properties": plugin_properties() | {"node.id": "1"}, "charges": steps}
    events = java.answer("amounts", case | {"records": as_json(limit_records([entry]))})
    return [f"{event['user']}|{event['client_id']}" for event in map(json.loads, events)]


def test_events_name_the_user_and_the_client_id_that_their_requests_have_in_common(java: JavaCases) -> None:
    """The limit may be on either. A request is noted before it is charged, so names count for the next event, too."""
    of_client_id = QuotaEntry(QuotaEntity(client_id="app"), QuotaKind.PRODUCER_BYTE_RATE, 1e6)
    of_user = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 1e6)
    alice, bob = ("alice", "app", True), ("bob", "app", True)

    assert names_in_events(java, of_client_id, [alice, alice]) == ["alice|app", "alice|app"]
    assert names_in_events(java, of_client_id, [("alice", "app", False), bob, bob, bob]) == ["|app", "|app", "bob|app"]
    assert names_in_events(java, of_client_id, [alice, bob, bob]) == ["alice|app", "|app", "bob|app"]
    assert names_in_events(java, of_user, [alice, ("alice", "other", True)]) == ["alice|app", "alice|"]
    assert names_in_events(java, of_user, [("eve", "app", True)]) == ["eve|app"], "no limit at all"


def test_a_gateway_keeps_no_long_name_of_a_client_that_no_limit_names(java: JavaCases) -> None:
    of_user = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 1e6)

    assert names_in_events(java, of_user, [("alice", 256 * "x", True)]) == [f"alice|{256 * 'x'}"]
    assert names_in_events(java, of_user, [("alice", 257 * "x", True)]) == ["alice|"]


def test_a_job_can_read_a_heartbeat_that_comes_before_the_first_look_at_a_meter(java: JavaCases) -> None:
    """A share that isn't known yet would make it a dead letter, and a gateway that isn't heard loses its share."""
    records = limit_records([QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 1e6)])
    properties = plugin_properties() | {"node.id": "1"}
    clients = [("alice", "app", 1_000)]
    event, *_ = java.answer("heartbeat", {"records": as_json(records), "properties": properties, "clients": clients})

    request = parse_request(event.encode(), Source("requests", 0, 0, START_MS), EventLimits(10**6, 10**15))
    assert request.heartbeat is not None
    assert request.heartbeat.counters == 1
    assert request.heartbeat.shares == []


Served = list[tuple[int, int, float, int]]
"""Milliseconds, number of the broker, amount, number of the member of a tenant."""

BYTE_QUOTAS = ("producer_byte_rate", "consumer_byte_rate")
REQUEST_SIZES_S = [(quota, size_s) for quota in BYTE_QUOTAS for size_s in (0.02, 0.3, 1.0)]
REQUEST_SIZES_S += [("request_percentage", 0.02), ("request_percentage", 0.3)]
"""Seconds of the quota. Kafka's waits for request time end after a second: a request is a second of a share at most."""


def served_by_brokers(
    java: JavaCases, quota: str, size_s: float, phases: Sequence[Sequence[Any]], **more: object
) -> Served:
    """The amount that three brokers serve to a client with 1000 per second; a request is so many seconds of it."""
    asked = {"quota": quota, "limit": 1_000.0, "size": 1_000 * size_s, "brokers": 3, "latency_ms": 300}
    served: Served = java.answer("brokers", asked | {"phases": phases, "connections": 1} | more)
    return served


def served_s(served: Served, from_s: float, until_s: float) -> float:
    """Seconds of the quota that were served in a time."""
    return sum(amount for time_ms, _, amount, _ in served if from_s * 1_000 <= time_ms < until_s * 1_000) / 1_000


def worst_minute(served: Served, from_s: int, until_s: int) -> float:
    of_second = [0.0] * until_s
    for time_ms, _, amount, _ in served:
        if time_ms < until_s * 1_000:
            of_second[time_ms // 1_000] += amount / 1_000
    return max(sum(of_second[begin_s : begin_s + 60]) for begin_s in range(from_s, until_s - 59)) / 60


def test_a_heartbeat_names_the_heaviest_clients_without_a_limit_and_a_hundred_have_meters(java: JavaCases) -> None:
    records = limit_records([QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 1e6)])
    invented = [("eve", f"x-{number}", 100.0) for number in range(1_000)]
    clients = [("alice", "app", 1e9), ("bob", "", 1e9), ("bob", 257 * "x", 1e9), ("bob", "noisy", 5e7), *invented]
    clients += [("bob", "noisy", 5e7), ("bob", "too late", 1e9)]
    asked = {"records": as_json(records), "properties": plugin_properties() | {"node.id": "1"}, "clients": clients}
    now, later, meters = java.answer("heartbeat", asked)

    request = parse_request(now.encode(), Source("requests", 0, 0, START_MS), EventLimits(10**6, 10**15))
    assert request.heartbeat is not None
    heaviest = request.heartbeat.unlimited
    assert len(heaviest) == 10
    assert (heaviest[0].user, heaviest[0].client_id) == ("bob", "noisy")
    assert heaviest[0].bytes_in_per_s == pytest.approx(1e7, rel=0.2)
    assert meters == 1 + 2 + 100, "alice's, what bob's and eve's other clients share, and those of a hundred names"
    assert "unlimited" not in later


@pytest.mark.parametrize("quota", BYTE_QUOTAS)
@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("request_s", [0.02, 0.3, 3.0, 15.0])
def test_a_client_at_full_speed_is_paced_by_its_share(
    java: JavaCases, quota: str, part: float, request_s: float
) -> None:
    """A request is so many seconds of the share. Kafka's meter alone bursts and pauses by turns, 10 s of the share."""
    more = {"brokers": 1, "limit": 1_000.0 / part, "size": 1_000 * request_s, "part": part}
    served = served_by_brokers(java, quota, request_s, [(600, [0])], **more)

    later = [row for row in served if row[0] >= 60_000]
    longest_s = max(request_s, 0.25)  # fetches of small batches hold a quarter of a second
    assert served_s(later, 0, 600) == pytest.approx(540, abs=2 * longest_s)
    gaps_ms = [after[0] - before[0] for before, after in pairwise(later)]
    assert max(gaps_ms) / 1000 <= longest_s + 0.01


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize(("least_s", "most_s"), [(0.02, 0.3), (0.1, 1.0), (0.1, 3.0), (0.01, 15.0)])
def test_a_consumer_loses_nothing_to_fetches_of_different_sizes(
    java: JavaCases, part: float, least_s: float, most_s: float
) -> None:
    """A tightened broker has a small burst, so what is lost of one wait doesn't come back."""
    draw = random.Random(1)
    sizes = [draw.uniform(least_s, most_s) for _ in range(997)]
    more = {"brokers": 1, "limit": 1_000.0 / part, "part": part, "sizes": sizes}
    served = served_by_brokers(java, "consumer_byte_rate", 1.0, [(600, [0])], **more)

    assert served_s(served, 60, 600) == pytest.approx(540, abs=2 * most_s + 3)


@pytest.mark.parametrize(("quota", "size_s"), REQUEST_SIZES_S)
@pytest.mark.parametrize("brokers", [[0, 1, 2], [0]])
def test_brokers_hold_a_client_at_full_speed_to_its_quota_together(
    java: JavaCases, quota: str, size_s: float, brokers: list[int]
) -> None:
    served = served_by_brokers(java, quota, size_s, [(300, brokers)])

    times_ms = [0, *(time_ms for time_ms, *_ in served), 300_000]
    assert 0.97 <= served_s(served, 0, 300) / 300 <= 1.02 + 10 / 300
    assert worst_minute(served, 60, 300) <= 1.05
    assert max(after - before for before, after in pairwise(times_ms)) <= 5_000


@pytest.mark.parametrize("size_s", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("latency_ms", [300, 3_000])
def test_a_producer_uses_its_quota_up_though_four_fifths_of_its_messages_go_to_one_broker(
    java: JavaCases, size_s: float, latency_ms: int
) -> None:
    more = {"latency_ms": latency_ms, "weights": [8, 1, 1]}
    served = served_by_brokers(java, "producer_byte_rate", size_s, [(300, [0, 1, 2])], **more)

    assert 0.97 <= served_s(served, 0, 300) / 300 <= 1.02 + 10 / 300
    assert worst_minute(served, 60, 300) <= 1.05


@pytest.mark.parametrize(("quota", "size_s"), REQUEST_SIZES_S)
def test_a_client_that_moves_to_another_broker_has_its_quota_there_within_12_s(
    java: JavaCases, quota: str, size_s: float
) -> None:
    served = served_by_brokers(java, quota, size_s, [(100, [0]), (200, [1])])

    assert served_s(served, 112, 172) / 60 >= 0.95


@pytest.mark.parametrize(("quota", "size_s"), [*REQUEST_SIZES_S[:-1], ("request_percentage", 0.08)])
def test_clients_of_one_quota_share_it(java: JavaCases, quota: str, size_s: float) -> None:
    served = served_by_brokers(java, quota, size_s, [(300, [0, 1, 2])], connections=4)

    assert 0.97 <= served_s(served, 60, 300) / 240 <= 1.05


@pytest.mark.parametrize(("quota", "size_s"), REQUEST_SIZES_S)
@pytest.mark.parametrize("brokers", [2, 3])
def test_a_client_that_hops_between_brokers_gets_no_more_than_its_quota(
    java: JavaCases, quota: str, size_s: float, brokers: int
) -> None:
    served = served_by_brokers(java, quota, size_s, [(end_s, [end_s // 5 % brokers]) for end_s in range(5, 305, 5)])

    assert worst_minute(served, 60, 300) <= 1.05


TENANT_SIZES_S = [("producer_byte_rate", 0.01), ("producer_byte_rate", 0.1), ("consumer_byte_rate", 0.01)]
TENANT_SIZES_S += [("request_percentage", 0.01)]


@pytest.mark.parametrize("more", [{}, {"member_limit": 60.0}])
@pytest.mark.parametrize(("quota", "size_s"), TENANT_SIZES_S)
def test_members_of_a_tenant_at_full_speed_are_held_to_its_limit_together_and_share_it(
    java: JavaCases, quota: str, size_s: float, more: dict[str, float]
) -> None:
    """Ten of them, at all brokers; a limit of their own leaves them three fifths of what the tenant has."""
    served = served_by_brokers(java, quota, size_s, [(300, [0, 1, 2])], members=10, **more)

    at_most = min(1.0, 10 * more.get("member_limit", math.inf) / 1_000)
    assert 0.97 * at_most <= served_s(served, 60, 300) / 240 <= 1.02 * at_most
    assert worst_minute(served, 60, 300) <= 1.05
    parts = [served_s([row for row in served if row[3] == member], 60, 300) / 240 for member in range(10)]
    assert min(parts) >= 0.5 * at_most / 10


@pytest.mark.parametrize("quota", [*BYTE_QUOTAS, "request_percentage"])
def test_brokers_hold_clients_to_the_smallest_and_the_largest_limit(java: JavaCases, quota: str) -> None:
    """A meter that is bound to 0 serves nobody, one of infinity everybody; one that isn't a number would, too."""
    phases = [(20, [0, 1, 2])]
    smallest, largest = (served_by_brokers(java, quota, 1.0, phases, limit=limit) for limit in EXTREME_LIMITS)

    # Kafka's waits for request time end after a second. A Fetch is never served.
    assert len(smallest) == {"producer_byte_rate": 3, "consumer_byte_rate": 0}.get(quota, 60)
    assert len(largest) == 3 * 20_000 / 5


@pytest.mark.parametrize("quota", BYTE_QUOTAS)
@pytest.mark.parametrize("brokers", [[0], [0, 1, 2]])
@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize(("slip_s", "mute_s"), [(16, MUTE_S), (600, 10)])
def test_a_limit_that_was_a_mistake_holds_nobody_for_long_once_it_is_taken_back(
    java: JavaCases, quota: str, brokers: list[int], connections: int, slip_s: int, mute_s: int
) -> None:
    """Kafka alone mutes for ten million seconds: what it has in its windows, over a limit of a millionth."""
    end_s = 60 + slip_s
    phases = [(60, brokers, 1_000.0), (end_s, brokers, 0.001), (end_s + 60, brokers, 1_000.0)]
    served = served_by_brokers(java, quota, 0.3, phases, brokers=len(brokers), connections=connections)

    first_ms = min(time_ms for time_ms, *_ in served if time_ms >= end_s * 1_000)
    assert first_ms / 1_000 - end_s <= mute_s + 0.105  # a look at the meters, and a round trip
    assert served_s(served, end_s + 10, end_s + 60) / 50 == pytest.approx(1.0, abs=0.1)
    mutes = (slip_s - 5) / MUTE_S + 1
    assert served_s(served, 65, end_s) <= 0.3 * len(brokers) * connections * mutes


def test_mutations_wait_for_a_mute_at_most_and_the_bucket_owes_the_rest(java: JavaCases) -> None:
    answer = java.answer("mutations", {"limit": 1.0, "amounts": [11, 100, 100, 3]})

    assert answer["waits_ms"] == [0, 5_000, 5_000, 5_000]
    assert answer["tokens"] == pytest.approx(11 - 214 + 15, abs=0.3)


@pytest.mark.parametrize(
    ("strict", "waits_ms"),
    [(False, [0, 5_000, 4_000, 0]), (True, [0, 0, 5_000, 0])],
    ids=["permissive", "strict"],
)
def test_a_controller_tells_of_the_waits_for_mutations_that_it_asks_for(
    java: JavaCases, strict: bool, waits_ms: list[int]
) -> None:
    """Kafka notes none of them under the quota: brokers mute the client, and strict refusals are charged nothing."""
    amounts = [11, 5, 4, 0] if not strict else [11, 5, 4, 1]
    answer = java.answer("mutations", {"limit": 1.0, "amounts": amounts, "strict": strict})

    assert answer["waits_ms"] == answer["told_ms"] == waits_ms


@pytest.mark.parametrize("limit", [0.5, 1.0, 1_000.0])
def test_a_member_has_its_own_tokens_when_a_tenants_bucket_that_others_used_up_has_some_again(
    java: JavaCases, limit: float
) -> None:
    """The bucket of 110 is at -100, so it takes 10 s."""
    answer = java.answer("borrowed", {"limit": limit, "charged": 210})

    assert answer["waits_ms"] == pytest.approx([*range(10_000, 0, -1_000), 0], abs=1)
    assert answer["tokens"] == 11 * limit


@pytest.mark.parametrize(("charged", "held_ms"), [(0, 0), (5, 0), (1_000, 500 + 20)])
def test_a_wait_is_that_of_a_bucket_alone_that_is_overdrawn(java: JavaCases, charged: int, held_ms: int) -> None:
    """Kafka says once how long a client waits, and its own bucket and its tenant's both hear of it."""
    assert java.answer("shared-wait", {"charged": charged, "throttle_ms": 500}) == held_ms


def test_a_reset_forgets_what_is_owed_but_publishes_what_was_charged(java: JavaCases) -> None:
    assert java.answer("reset", {"amount": 5_000}) == [pytest.approx(500, rel=0.1), 0.0, 5_001]


def test_a_request_whose_meter_is_removed_meanwhile_waits_for_its_tenant_all_the_same(java: JavaCases) -> None:
    """The tenant is overdrawn, so the bound is below the member's rate of 10 000 a second."""
    assert 0 < java.answer("removed", {}) < 10_000


def test_where_samples_cant_be_read_a_steady_client_is_estimated_by_its_rate(java: JavaCases) -> None:
    assert java.answer("estimate", {"amount": 1_000.0, "seconds": 200}) == pytest.approx(2_000_000, rel=0.05)


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"sluice.sum.ms": "fast"}, "sluice.sum.ms is fast; expected a whole number from 10 to 1000"),
        ({"sluice.sum.ms": "5"}, "sluice.sum.ms is 5; expected a whole number from 10 to 1000"),
        ({"sluice.max.mute.ms": "500"}, "sluice.max.mute.ms is 500; expected a whole number from 1000 to 3600000"),
        ({"sluice.request.topic": "x"}, "sluice.request.topic is unknown; expected one of sluice.bootstrap.servers"),
        ({"sluice.bootstrap.servers": ""}, "sluice.bootstrap.servers is empty"),
        ({"sluice.exempt.principals": "sluice"}, "sluice.exempt.principals has sluice; expected principals such as"),
        ({"sluice.exempt.client.id": "short"}, "sluice.exempt.client.id has 5 characters; expected at least 8"),
        (
            {"sluice.disk.min.free.percent": "101"},
            "sluice.disk.min.free.percent is 101; expected a whole number from 0",
        ),
        ({"metric.reporters": "x.Y"}, "metric.reporters is x.Y; expected sluice.kafka.SluiceMetricsReporter"),
    ],
)
def test_a_property_that_the_plugin_cant_use_is_named(
    java: JavaCases, properties: dict[str, str], problem: str
) -> None:
    asked = plugin_properties() | {"node.id": "1"} | properties
    assert java.answer("settings", {"properties": asked}).startswith(problem)


def test_properties_may_pass_anything_to_the_plugins_kafka_clients(java: JavaCases) -> None:
    asked = plugin_properties() | {"node.id": "1", "sluice.client.security.protocol": "SASL_SSL"}
    assert java.answer("settings", {"properties": asked}) is None


def test_the_same_sources_make_the_same_jar_and_one_that_is_there_is_not_compiled_again(
    classes: list[Path], tmp_path: Path
) -> None:
    first = classes[0].read_bytes()
    second = build_plugin(BROKER_JARS.paths(), tmp_path).read_bytes()
    again = build_plugin(BROKER_JARS.paths(), tmp_path, compiler=lambda _: ["no-such-javac"])
    assert first == second == again.read_bytes()
    assert again == tmp_path / JAR_NAME


@pytest.mark.parametrize("comment", [None, b"0" * 64], ids=["cut short", "of other sources"])
def test_a_jar_that_these_sources_did_not_make_is_replaced(tmp_path: Path, comment: bytes | None) -> None:
    jar, source = tmp_path / "some.jar", tmp_path / "src" / "Some.java"
    source.parent.mkdir()
    source.write_text("class Some {}")
    if comment is None:
        jar.write_bytes(b"PK")
    else:
        with zipfile.ZipFile(jar, "w") as archive:
            archive.comment = comment
    build_jar(jar, [source.parent], [], PLUGIN.release, javac)
    with zipfile.ZipFile(jar) as archive:
        assert "Some.class" in archive.namelist()


def test_the_first_error_of_the_compiler_is_told(tmp_path: Path) -> None:
    source = tmp_path / "Wrong.java"
    source.write_text("class Wrong { int one = 1L; }")
    with pytest.raises(JavaBuildError, match=r"Wrong\.java:1: error: incompatible types"):
        compile_java([source], [], tmp_path, PLUGIN.release)


def test_records_of_a_replaced_driver_are_left_out_as_a_python_gateway_does(java: JavaCases) -> None:
    draw = random.Random(5)
    headers = [None, b"", b"one", b"one:2\n", b"\xff:1", b"one:" + b"9" * 19, *(b"one:%d" % n for n in range(1, 5))]
    headers += [b"two:1", b"two:2", b"one:1003", b"one:2002", b"two:999999999999999999"]
    headers += [b"forged-%d:1" % number for number in range(20)]
    records = [(draw.randrange(2), draw.choice(headers), draw.random() < 0.8) for _ in range(2_000)]
    fence = Fence()

    def passes(partition: int, header: bytes | None, full: bool) -> bool | None:
        try:
            return fence.passes(partition, read_epoch(header), b"{}" if full else None)
        except FarEpochError:
            return None

    passed = [passes(*record) for record in records]

    asked = [
        (partition, None if header is None else b64encode(header).decode(), full) for partition, header, full in records
    ]
    answer = java.answer("fence", {"records": asked})

    assert answer == {"passes": passed, "fenced": fence.fenced}
    assert 0 < fence.fenced < 1_000
    assert 0 < passed.count(None) < 500


def topic_of(servers: str, *values: bytes) -> str:
    """A topic of one partition with these records."""
    topic = f"errors-{uuid4()}"
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    with KafkaProducer(bootstrap_servers=servers) as producer:
        for value in values:
            producer.send(topic, value).get(120)
    return topic


def test_a_thread_of_the_plugin_goes_on_whatever_a_round_throws(java: JavaCases) -> None:
    assert java.answer("thread", {}) == {"through": True, "errors": 6, "down": False}


def test_a_reader_whose_memory_was_short_reads_every_record_afterwards(java: JavaCases, kafka_broker: str) -> None:
    """An Error that a record itself causes makes it unreadable: else the reader would stop at it for good."""
    topic = topic_of(kafka_broker, b"first", b"bad", b"second")

    read = java.answer("reader", {"servers": kafka_broker, "topic": topic, "records": 2})

    assert read == {"through": True, "unreadable": 1, "errors": 2, "down": False, "read": ["first", "second"]}
    assert "Failed to close" not in java.log.read_text()  # a consumer says so of a thread that is interrupted


def test_a_reader_that_misses_records_reads_the_topic_again_but_not_all_the_time(
    java: JavaCases, kafka_broker: str
) -> None:
    topic = topic_of(kafka_broker, b"first", b"second", b"gap")

    read = java.answer("gaps", {"servers": kafka_broker, "topic": topic, "records": 6})

    assert read == {"through": True, "restarts": 1, "down": False, "read": 2 * ["first", "second", "gap"]}


def test_events_are_published_after_the_thread_of_kafkas_producer_ended(java: JavaCases, kafka_broker: str) -> None:
    sent = java.answer("sender", {"servers": kafka_broker, "topic": topic_of(kafka_broker)})
    assert sent.pop("replaced") >= 1  # again where a broker answers later than in a second
    assert sent == {"published": 2, "given_back": True}


@pytest.mark.parametrize("reachable", [True, False])
def test_the_plugin_ends_with_its_node(java: JavaCases, kafka_broker: str, reachable: bool) -> None:
    """Kafka 4.1 and newer close it as an AutoCloseable; the next node of the same id in the process begins anew.

    A call of an admin client that nobody answers would keep its thread for a minute.
    """
    topic = topic_of(kafka_broker)
    asked = {"node": "77", "servers": kafka_broker if reachable else "127.0.0.1:9", "topic": topic, "bytes": 1_234}

    ended = java.answer("closing", {**asked, "reachable": reachable})

    assert ended == {"left": [], "mbean": False, "new": True}
    if reachable:  # what was charged last is published before the node is gone
        with closing(
            KafkaConsumer(
                topic, bootstrap_servers=kafka_broker, auto_offset_reset="earliest", consumer_timeout_ms=5_000
            )
        ) as consumer:
            events = [json.loads(record.value) for record in consumer]
        assert sum(event.get("bytes", 0) for event in events if event.get("user") == "alice") == 1_234


def test_nodes_of_one_id_in_one_process_have_gateways_of_their_own(java: JavaCases, tmp_path: Path) -> None:
    """Two clusters in one process, as tests with embedded brokers have them, number their nodes alike."""
    folders = [str(tmp_path / cluster) for cluster in ("first", "second")]

    twins = java.answer("twins", {"node": "78", "folders": folders})

    assert twins == {"gateways": 2, "first_has_mbean": True, "mbean": False}
