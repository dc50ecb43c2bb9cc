"""The contents of each page, for its template."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET

from sluice.kafka_io.topic_follower import TopicFollower
from sluice.process.clock import now_ms
from sluice.process.format import moment
from sluice.state.contract.gateway_topics import Measured, Override
from sluice.state.contract.instances import server_text
from sluice.state.contract.records import Decision
from sluice.state.quotas.entity import DEFAULT, EntityName, QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import (
    CLIENT_KINDS,
    KINDS_BY_NAME,
    TOPIC_KINDS,
    ElasticKey,
    EntryKind,
    QuotaKind,
    QuotaSettings,
    StorageKey,
)
from sluice.state.quotas.limits import LimitsView
from sluice.state.quotas.overrides import overrides_now
from sluice.state.quotas.resolution import Resolution, entity_at
from sluice.state.quotas.tenants import Tenants
from sluice_insight.console.check import APIS, Asked, answers, limits_of
from sluice_insight.console.clients import ClientsQuery, select
from sluice_insight.console.filters import LONGEST_IN_ADDRESS, digest_of
from sluice_insight.console.slow import MADE_LATER, SlowPage
from sluice_insight.console.tables import WeekMinutes
from sluice_insight.live import MINUTE_MS, CounterId, CounterRow, CounterState, LiveModel, SeenWait
from sluice_insight.reports.explained import decision_of, decisions_by_id
from sluice_insight.row_marks import RowMarks, stops
from sluice_insight.texts import tightened_text
from sluice_insight.troubles_now import TroublesNow
from sluice_reading.errors import QueryError
from sluice_reading.format import short
from sluice_reading.job_probe import JobProbe
from sluice_reading.newest_records import problem_of
from sluice_reading.query import Tables
from sluice_reading.quotas_admin import QuotaChange
from sluice_reading.texts import client_text, entity_text, strict_text
from sluice_reading.times import duration

MOST_WAITS = 20
MOST_COUNTERS = 20
MOST_MEMBERS = 200
MOST_DEAD_LETTERS = 200
MOST_QUOTAS = 1000
MOST_CHANGES = 20
MOST_LOADS = 100
MOST_ID = 300

Given = Mapping[str, str]
"""The parameters of an address."""

Context = dict[str, Any]
"""The variables of a template, beside the facts and the time."""


@dataclass
class DeadLetters:
    """Dead letters by field and problem; beyond MOST_DEAD_LETTERS reasons they count as others."""

    reasons: Tally[tuple[str, str]] = field(default_factory=Tally)

    def take(self, value: bytes | None) -> None:
        """Count one record."""
        reason = problem_of(value)
        if reason not in self.reasons and len(self.reasons) >= MOST_DEAD_LETTERS:
            reason = ("", "others")
        self.reasons[reason] += 1


@dataclass
class Facts:
    """The sources of all pages."""

    model: LiveModel
    limits: LimitsView
    dead_letters: DeadLetters
    week: WeekMinutes
    tables: Tables
    now: TroublesNow
    settings: QuotaSettings
    followers: Sequence[TopicFollower]
    gives_way: bool = True
    slow: SlowPage = field(default_factory=SlowPage)
    clock: Callable[[], int] = now_ms
    """The time of a page."""

    @property
    def health(self) -> JobProbe:
        """The probe of the job."""
        return self.now.probe

    @property
    def tenants(self) -> Tenants:
        """The tenants in force."""
        in_force = self.limits.in_force
        return Tenants() if in_force is None else in_force.enforced.tenants

    def overrides(self, now_ms: int) -> list[Override]:
        """The overrides that hold, as far as the job has said so lately."""
        return [each for _, each in overrides_now(self.limits.overrides, now_ms)]

    def marks(self, now_ms: int) -> RowMarks:
        """Holds and limits in force, for the rows of counters."""
        heard = self.model.gateways.heard(now_ms)
        return RowMarks.of_limits(self.limits, heard, now_ms)

    def stored(self, now_ms: int) -> list[Measured]:
        """Bytes stored by the tenants nearest to their storage budgets, if the job has said so lately."""
        said = self.limits.overrides.get(StorageKey.STORED_BYTES)
        return said.measured if said is not None and abs(now_ms - said.at_ms) <= said.fresh_ms else []


def clients(facts: Facts, given: Given, now_ms: int) -> Context:
    """The page of clients: the counters that search and filters select."""
    query = ClientsQuery.read(given)
    page = select(facts.model, query, now_ms, facts.week.minutes, facts.tenants)
    is_stale = facts.now.is_stale(now_ms)
    return {
        "query": query,
        "page": page.of_then() if is_stale else page,
        "stale": is_stale,
        "marks": facts.marks(now_ms),
    }


def client(facts: Facts, given: Given, now_ms: int) -> Context:
    """The page of a client, a tenant or a topic-partition: the counters with its tags, and those it is counted for."""
    model = facts.model
    with model.lock:
        own = _counters_of(model, given)[:MOST_COUNTERS]
        named = own[0].key if own else _tags(given)
        quotas = list(_quotas_of(facts, named))
        counted = (_key(kind, found) for kind, found in quotas)
        others = [counter for key in counted if (counter := model.counter(key)) and counter not in own]
        counters = [*own, *others]
        rows = [model.row(counter, now_ms, facts.week.minutes.get(counter.key)) for counter in counters]
    rows = [row.of_then() for row in rows] if facts.now.is_stale(now_ms) else rows
    found = model.waits([row.key for row in rows])
    waits = list(islice(found if own else (wait for wait in found if _is_of(wait, named)), MOST_WAITS))
    in_minute = (wait for wait in waits if wait.timestamp_ms > now_ms - MINUTE_MS)
    return {
        "tags": named,
        "own": {counter.key for counter in own},
        "members": list(islice(facts.tenants.of_tenant(named.tenant), MOST_MEMBERS)) if named.tenant else [],
        "used_by": list(_used_by(facts, named.tenant, now_ms)),
        "storage": [each for each in facts.stored(now_ms) if each.name == named.tenant],
        "holds": list(_holds_of(facts, named, waits, now_ms)),
        "rows": rows,
        "marks": facts.marks(now_ms),
        "waits": waits,
        "tightened": next((wait for wait in in_minute if wait.tightened is not None), None),
        "quotas": quotas,
        "changes": list(islice(_changes_of(facts, named), MOST_CHANGES)),
    }


def _key(kind: QuotaKind, found: Resolution) -> CounterId:
    tags = found.tags
    return CounterId(kind, found.shadow, tags.user, tags.client_id, tags.topic, tags.partition, tags.tenant)


def _is_of(wait: SeenWait, tags: CounterId | Tags) -> bool:
    """True if the client of this name waited, whosever counter it was."""
    return wait.user == (tags.user or wait.user) and wait.client_id == (tags.client_id or wait.client_id)


def _used_by(facts: Facts, tenant: str, now_ms: int) -> Iterator[CounterRow]:
    """The counters of a tenant's members, the highest usage first."""
    if tenant and facts.tenants:
        page = select(facts.model, ClientsQuery(tenant=tenant), now_ms, facts.week.minutes, facts.tenants)
        rows = page.of_then().rows if facts.now.is_stale(now_ms) else page.rows
        yield from islice((row for row in rows if not row.key.tenant), MOST_COUNTERS)


@dataclass(slots=True)
class QuotaRow:
    """A quota as it is set, and the usage of its counters; `highest` is the greatest share of the limit.

    `throttled` counters have clients that waited in the last minute; None while decisions are old.
    """

    entry: QuotaEntry
    reservation: float | None = None
    counters: int = 0
    throttled: int | None = 0
    highest: float | None = None

    @property
    def clients(self) -> str:
        """The address of the clients that it may limit: by the first name of its entity."""
        names = [name for name in self.entry.entity.to_mapping().values() if name and name != DEFAULT.value]
        mode = "shadow" if self.entry.shadow else ""
        return ClientsQuery(search="".join(names[:1]), quota=KINDS_BY_NAME[self.entry.kind.value], mode=mode).address()


def quotas(facts: Facts, _given: Given, now_ms: int) -> Context:
    """The page of quotas: each as it is set, with the usage of its counters."""
    model, is_stale = facts.model, facts.now.is_stale(now_ms)
    entries = list(facts.limits.entries.values())
    rows: dict[tuple[QuotaEntity | None, EntryKind, bool], QuotaRow] = {
        (entry.entity, entry.kind, entry.shadow): QuotaRow(entry, throttled=None if is_stale else 0)
        for entry in entries
        if isinstance(entry.kind, QuotaKind)
    }
    for entry in entries:
        if isinstance(entry.kind, ElasticKey) and (beside := rows.get((entry.entity, entry.kind.quota, entry.shadow))):
            beside.reservation = entry.value
    with model.lock:
        charged = model.counters()
        for counter, share in zip(charged, model.usage.shares(charged, now_ms), strict=True):
            key = counter.key
            entity = entity_at(counter.matched, key.user, key.client_id, key.topic, key.tenant)
            row = rows.get((entity, key.kind, key.shadow))
            if row is not None:
                row.counters += 1
                if is_stale:
                    continue
                row.throttled = (row.throttled or 0) + counter.throttled(now_ms)
                row.highest = max(row.highest or 0.0, share)  # not NaN, which is greater than nothing
    ordered = sorted(
        rows.values(),
        key=lambda row: (-(row.highest or 0.0), entity_text(row.entry.entity), row.entry.kind, row.entry.shadow),
    )
    strict = None
    if facts.limits.in_force is not None and any(row.reservation for row in rows.values()):
        strict = strict_text(facts.limits.in_force.enforced, gives_way=facts.gives_way)
    return {"rows": ordered[:MOST_QUOTAS], "known": len(rows), "strict": strict}


def overview(facts: Facts, _given: Given, now_ms: int) -> Context:
    """The page of the whole: decisions, lag, load, gateways, dead letters, the job."""
    seconds = facts.model.seconds(now_ms)
    last, is_stale = seconds[-10:], facts.now.is_stale(now_ms)
    return {
        "seconds": seconds,
        "per_s": None if is_stale else sum(second.decisions for second in last) / len(last),
        "lag_ms": None if is_stale else max(second.lag_ms for second in last),
        "waits": list(islice(facts.model.waits(), 10)),
        "loads": facts.model.gateways.loads(now_ms)[:MOST_LOADS],
        "unlimited": facts.model.gateways.unlimited(now_ms),
        "overrides": facts.overrides(now_ms)[:MOST_LOADS],
        "storage": facts.stored(now_ms)[:MOST_LOADS],
        "job": _flat(
            {name: each for name, each in (facts.health.answer or {}).items() if name not in ("troubles", "step_ms")}
        ),
    }


def check(facts: Facts, given: Given, now_ms: int) -> Context:
    """The form "would this be limited?", and its answers once something is asked and the limits are known."""
    asked, in_force, found = Asked.read(given), facts.limits.in_force, None
    if given and in_force is not None:
        found = answers(asked, in_force, facts.model, facts.settings, now_ms)
    return {"asked": asked, "apis": APIS, "answers": found, "stale": facts.now.is_stale(now_ms)}


def slow(facts: Facts, given: Given, now_ms: int) -> Context:
    """The page of a client that is slow: the cause, and the line of time that shows it."""
    return facts.slow.of(given, now_ms)


def request(facts: Facts, given: Given, _now_ms: int) -> Context:
    """The page of one decision, from the topic if it was read lately, else from the table."""
    decision_id = given.get("id", "").strip()[:MOST_ID]
    record, decision, trouble = None, None, None
    if decision_id:
        value = facts.model.recent(decision_id)
        try:
            if value:
                record = msgspec.json.decode(value)
            else:  # of several topics with this name the newest
                with facts.slow.turns.of(decision_id) as is_given:
                    found = decisions_by_id(facts.tables, decision_id) if is_given else ()
                record, trouble = next(iter(found), None), None if is_given else MADE_LATER
            decision = None if record is None else decision_of(record)
        except (QueryError, msgspec.ValidationError) as error:
            trouble = str(error)
    waits = list(islice(facts.model.waits(), 20))
    named = [] if decision is None else [(name, text) for name, text in _named(decision) if text]
    return {"id": decision_id, "named": named, "decision": decision, "trouble": trouble, "waits": waits}


def _named(decision: Decision) -> Iterator[tuple[str, str]]:
    """The fields of a decision beside its charges, in words; "" for nothing."""
    yield "Client", client_text(decision.user, decision.client_id)
    yield "Request", decision.api
    yield "At (UTC)", moment(decision.timestamp_ms)
    server = server_text(decision.instance, decision.gateway)
    yield "Gateway", server
    if decision.elastic is not UNSET and decision.elastic.factor < 1.0:
        yield "Limits gave way", tightened_text(server, decision.elastic.reason)
    yield "Verdict of the job", decision.verdict
    if decision.throttle_time_ms:
        yield "Throttle time, by the job", duration(decision.throttle_time_ms)
        yield "Until (UTC)", moment(decision.mute_until_ms or decision.timestamp_ms)
        yield "Because of", decision.decided_by or ""
    yield "Decided at (UTC)", moment(decision.decided_at_ms)
    yield "Version of the quotas", str(decision.quota_version)
    yield "Decision id", decision.decision_id
    yield "Request id", decision.request_id
    yield "Job id", decision.job_id or ""
    yield "Id of the topic", decision.source_topic_id or ""


def _counters_of(model: LiveModel, given: Given) -> list[CounterState]:
    if digest := given.get("digest"):
        long = [counter for counter in model.counters() if counter.key.name_length > LONGEST_IN_ADDRESS]
        return [counter for counter in long if digest_of(counter.key) == digest]
    tags = _tags(given)
    keys = (
        CounterId(kind, shadow, tags.user, tags.client_id, tags.topic, tags.partition, tags.tenant)
        for kind in QuotaKind
        for shadow in (False, True)
    )
    return [counter for key in keys if (counter := model.counter(key)) is not None]


def _tags(given: Given) -> Tags:
    topic, partition = given.get("topic"), given.get("partition", "")
    is_number = topic is not None and partition.isascii() and partition.isdigit() and len(partition) < 11
    number = int(partition) if is_number else -1
    return Tags(given.get("user", ""), given.get("client_id", ""), topic, number, given.get("tenant", ""))


def _quotas_of(facts: Facts, tags: CounterId | Tags) -> Iterator[tuple[QuotaKind, Resolution]]:
    """The limits that the next request would meet, enforced ones first."""
    in_force = facts.limits.in_force
    if in_force is None:
        return
    if not tags.tenant:
        kinds = CLIENT_KINDS if tags.topic is None else TOPIC_KINDS
        yield from limits_of(in_force, kinds, tags.user, tags.client_id, tags.topic, -1)
        return
    for quotas in (in_force.enforced, in_force.shadow):
        of_tenant = ((kind, quotas.resolve_tenant(kind, tags.tenant)) for kind in CLIENT_KINDS)
        yield from ((kind, found) for kind, found in of_tenant if found is not None)


def _holds_of(
    facts: Facts, tags: CounterId | Tags, waits: Sequence[SeenWait], now_ms: int
) -> Iterator[tuple[Override, bool]]:
    """The holds that stop this client, or tenant, or some of its requests: those that waited, or have more names.

    Each with whether it stops all of them: others are of some client whose requests are counted here.
    """
    tenant = tags.tenant or (facts.tenants.of(tags.user, tags.client_id) if tags.topic is None else "")
    clients = {(wait.user, wait.client_id) for wait in waits if _is_of(wait, tags)} | {(tags.user, tags.client_id)}
    for override in facts.overrides(now_ms):
        if (held := override.entity) is not None and held.tenant in (None, tenant):
            has_more_names = (tags.user, tags.client_id) in ((held.user, ""), ("", held.client_id))
            if has_more_names or any(
                held.user in (None, user) and held.client_id in (None, client_id) for user, client_id in clients
            ):
                yield override, stops(override, Tags(tags.user, tags.client_id, tenant=tenant))


def _changes_of(facts: Facts, tags: CounterId | Tags) -> Iterator[QuotaChange]:
    """The changes of quotas that requests of this client may have met, its tenant's too, the newest first."""
    tenant = tags.tenant or (facts.tenants.of(tags.user, tags.client_id) if tags.topic is None else "")
    tenants: list[EntityName] = [] if tags.tenant else [None]
    tenants += [DEFAULT, tenant] if tenant else []

    def may_meet(name: EntityName, own: str | None) -> bool:
        return name is None or name is DEFAULT or not own or name == own

    return (
        change
        for change in facts.week.changes
        if (change.entity.topic is None) == (tags.topic is None)
        and change.entity.tenant in tenants
        and may_meet(change.entity.user, tags.user)
        and may_meet(change.entity.client_id, tags.client_id)
        and may_meet(change.entity.topic, tags.topic)
    )


def _flat(answer: Mapping[str, Any], *path: str) -> list[tuple[str, str]]:
    """The job's answer as names and values in words, what it has no value for left out; bounded, whatever it says.

    >>> _flat({"ok": True, "queries": {"audit": {"restarts": 0, "last_error": None}}, "jobs": []})
    [('ok', 'yes'), ('queries: audit: restarts', '0')]
    """
    lines: list[tuple[str, str]] = []
    for name, value in list(answer.items())[:100]:
        named = (*path, name.replace("_", " "))
        if isinstance(value, dict) and len(path) < 4:
            lines += _flat(value, *named)
        elif value not in (None, "", []):
            lines.append((short(": ".join(named)), _in_words(value)))
    return lines[:100]


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return short(", ".join(map(str, value)) if isinstance(value, list) else str(value), 300)


PAGES: dict[str, tuple[str, str, Callable[[Facts, Given, int], Context]]] = {
    "clients": ("/", "Clients", clients),
    "quotas": ("/quotas", "Quotas", quotas),
    "overview": ("/overview", "Overview", overview),
    "request": ("/request", "Request", request),
    "check": ("/check", "Would this be limited?", check),
    "slow": ("/slow", "Why is it slow?", slow),
    "client": ("/client", "Client", client),
}
"""Template -> path, title, and the function that fills it, in the order of the navigation."""

QUERYING = frozenset({"request", "slow"})
"""Those that may wait for a table, and take turns at that."""
