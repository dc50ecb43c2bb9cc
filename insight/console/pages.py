"""What each page shows, as values for its template."""

import hashlib
from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from sluice.insight.console import svg
from sluice.insight.console.check import APIS, Answer, Asked, answers
from sluice.insight.console.clients import BANDS, PAGE_SIZE, ClientsQuery, Row, Sort, band_of, row_of, select, tenant_of
from sluice.insight.console.health import JobHealth
from sluice.insight.console.tables import Tables, WeekMinutes
from sluice.insight.errors import QueryError
from sluice.insight.feed import TopicFeed
from sluice.insight.format import NOTHING, amount, duration, moment, percent, printable, short
from sluice.insight.live import POINT_MS, POINTS, CounterKey, CounterState, LiveModel, Wait
from sluice.insight.reports.tenants import Tenants
from sluice.state.quotas.entity import DEFAULT, EntityName
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, KINDS_BY_NAME, TOPIC_KINDS, Family, QuotaKind, QuotaSettings
from sluice.state.quotas.limits import LimitsView
from sluice.state.quotas.resolution import PRECEDENCE_LEVELS, Part, PrecedenceLevel

LONGEST_IN_ADDRESS = 1_000
"""Characters of names in an address; a counter with longer ones is addressed by its digest."""

MOST_WAITS = 50
MOST_COUNTERS = 20
MOST_DEAD_LETTERS = 200
MOST_ID = 300


Values = dict[str, Any]


class _Error(msgspec.Struct):
    field: str = ""
    problem: str = ""


class _DeadLetter(msgspec.Struct):
    error: _Error


_DEAD_LETTER = msgspec.json.Decoder(_DeadLetter)


@dataclass
class DeadLetters:
    """Dead letters by field and problem; further ones than MOST_DEAD_LETTERS count as others."""

    reasons: Tally[tuple[str, str]] = field(default_factory=Tally)

    def take(self, value: bytes | None) -> None:
        """Count one record."""
        try:
            error = _DEAD_LETTER.decode(value or b"").error
            reason = (error.field[:200], error.problem[:200])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            reason = ("", "unreadable record")
        if reason not in self.reasons and len(self.reasons) >= MOST_DEAD_LETTERS:
            reason = ("", "others")
        self.reasons[reason] += 1


class QuotaRow(NamedTuple):
    """A quota as it is set: one row for each entity, also for a default or a user with a client-id."""

    entity: str
    kind: QuotaKind
    shadow: bool
    limit: float
    counters: int
    highest: float | None
    waiting: int


@dataclass
class Facts:
    """All that pages are made of."""

    model: LiveModel
    limits: LimitsView
    dead_letters: DeadLetters
    week: WeekMinutes
    tables: Tables
    health: JobHealth
    settings: QuotaSettings
    decisions_topic: str
    feeds: Sequence[TopicFeed]
    tenants: Tenants | None = None


def clients(facts: Facts, given: Mapping[str, str], now_ms: int) -> Values:
    """The page of clients."""
    query = ClientsQuery.read(given)
    page = select(facts.model, query, now_ms, facts.week.minutes, facts.tenants)
    pages = max(1, -(-page.found // PAGE_SIZE))
    return {
        "query": query,
        "page": page,
        "pages": pages,
        "bands": [(band, f"{band * 100:.0f}", page.bands.get(band, 0)) for band in reversed(BANDS) if band],
        "sorts": Sort,
        "tenants": facts.tenants.names if facts.tenants else [],
        "rows": [_shown(row, now_ms) | _tenant_shown(row, facts.tenants) for row in page.rows],
        "week_trouble": facts.week.trouble,
        "evicted": facts.model.evicted,
    }


def client(facts: Facts, given: Mapping[str, str], now_ms: int) -> Values:
    """The page of one client: all counters with its tags."""
    model = facts.model
    with model.lock:
        counters = _counters_of(model, given)[:MOST_COUNTERS]
        rows = [row_of(model, counter, now_ms, facts.week.minutes) for counter in counters]
    keys = [row.key for row in rows]
    waits = [wait for wait, _ in zip(model.waits(keys), range(MOST_WAITS), strict=False)]
    user, client_id, topic = _named(keys, given)
    return {
        "user": user,
        "client_id": client_id,
        "topic": topic,
        "rows": [_shown(row, now_ms) | {"chart": _rate_chart(row)} for row in rows],
        "waits": [_shown_wait(wait) for wait in waits],
        "waits_chart": _waits_chart(waits, now_ms),
        "quotas": _quotas_of(facts, user, client_id, topic),
        "changes": _changes_of(facts, user, client_id, topic),
        "week_trouble": facts.week.trouble,
    }


def quotas(facts: Facts, _given: Mapping[str, str], now_ms: int) -> Values:
    """The page of quotas: each as it is set, with what its counters use."""
    model, in_force = facts.model, facts.limits.in_force
    used: dict[tuple[str, QuotaKind, bool], list[float]] = {}
    with model.lock:
        charged = model.counters()
        for counter, share in zip(charged, model.usage.shares(charged, now_ms), strict=True):
            entity = _quota_entity(counter)
            if entity is None:
                continue
            found = used.setdefault((entity, counter.key.kind, counter.key.shadow), [0, 0.0, 0])
            found[0] += 1
            found[1] = max(found[1], share)  # not for NaN, which is greater than nothing
            found[2] += counter.until_ms > now_ms
    rows = []
    for entry in list(facts.limits.entries.values()):
        entity = entity_text(entry)
        counters, highest, waiting = used.get((entity, entry.kind, entry.shadow), (0, None, 0))
        rows.append(QuotaRow(entity, entry.kind, entry.shadow, entry.value, int(counters), highest, int(waiting)))
    rows.sort(key=lambda row: (-(row.highest or 0.0), row.entity, row.kind, row.shadow))
    return {"rows": rows[:1000], "known": len(rows), "version": in_force.version if in_force else None}


def overview(facts: Facts, _given: Mapping[str, str], now_ms: int) -> Values:
    """The page of the whole: decisions, verdicts, lag, dead letters, gateways, the job."""
    model = facts.model
    seconds = model.seconds(now_ms)
    last = seconds[-10:]
    per_s = sum(second.decisions for second in last) / len(last)
    lag_ms = max(second.lag_ms for second in last)
    counts = [float(second.decisions) for second in seconds]
    lags = [second.lag_ms / 1000 if second.lag_ms else float("nan") for second in seconds]
    span = f"the last {len(seconds) // 60} minutes, second by second"
    return {
        "per_s": per_s,
        "lag_ms": lag_ms if any(second.lag_ms for second in last) else None,
        "total": dict(sorted(model.total.items())),
        "known": model.known,
        "evicted": model.evicted,
        "unreadable": model.unreadable,
        "decisions_chart": svg.chart(
            counts, None, f"decisions per second over {span}; now {per_s:.0f}", ("", f"{max(counts):.0f}/s"), span
        ),
        "lag_chart": svg.chart(
            lags,
            None,
            f"age of an event when its decision was read, over {span}; now {duration(lag_ms)}",
            ("", duration(max(second.lag_ms for second in seconds))),
            span,
        ),
        "dead_letters": facts.dead_letters.reasons.most_common(20),
        "dead_letter_count": sum(facts.dead_letters.reasons.values()),
        "gateways": [
            {
                "name": short(seen.name) or NOTHING,
                "instance": short(seen.instance, 40),
                "age": duration(max(0, now_ms - seen.at_ms)),
                "late": now_ms - seen.at_ms > 30_000,
                "staleness": duration(seen.heartbeat.staleness_ms),
                "counters": seen.heartbeat.counters,
                "shares": [
                    {
                        "who": _tags_text(share.entity.user, share.entity.client_id, share.entity.topic),
                        "quota": printable(share.quota)[:60],
                        "share": percent(share.share / share.limit) if share.limit else NOTHING,
                        "charged": _plain(share.quota, share.charged),
                        "wait": duration(share.throttle_ms) if share.throttle_ms else NOTHING,
                    }
                    for share in seen.heartbeat.shares[:5]
                ],
            }
            for seen in model.gateways()[:100]
        ],
        "health": _flat(facts.health.answer) if facts.health.answer is not None else [],
        "health_trouble": facts.health.trouble,
        "skipped": [(feed.topic, feed.skipped) for feed in facts.feeds if feed.skipped],
        "waits": [_shown_wait(wait) for wait, _ in zip(model.waits(), range(10), strict=False)],
    }


def check(facts: Facts, given: Mapping[str, str], now_ms: int) -> Values:
    """The form "would this be limited?", and its answers once something is asked."""
    asked, in_force = Asked.read(given), facts.limits.in_force
    found: list[Values] = []
    if given and in_force is not None:
        found = [_shown_answer(each) for each in answers(asked, in_force, facts.model, facts.settings, now_ms)]
    return {
        "asked": asked,
        "is_asked": bool(given),
        "apis": APIS,
        "answers": found,
        "version": in_force.version if in_force else None,
    }


def request(facts: Facts, given: Mapping[str, str], _now_ms: int) -> Values:
    """The page of one decision, from the topic if it was read lately, else from the table."""
    decision_id = given.get("id", "").strip()[:MOST_ID]
    decision, trouble = None, None
    if decision_id:
        value = facts.model.recent(decision_id)
        try:
            decision = msgspec.json.decode(value) if value else facts.tables.decision(decision_id)
        except QueryError as error:
            trouble = str(error)
    waits = [_shown_wait(wait) for wait, _ in zip(facts.model.waits(), range(20), strict=False)]
    return {
        "id": decision_id,
        "decision": decision,
        "trouble": trouble,
        "waits": waits,
        "charges": [_charge_of(charge, decision) for charge in (decision or {}).get("charges") or ()],
        "applied": [
            {
                "who": _tags_text(*(wait["entity"].get(part) for part in ("user", "client_id", "topic"))),
                "quota": printable(wait["quota"]),
                "wait": duration(wait["ms"]),
            }
            for wait in (decision or {}).get("throttled_by") or ()
        ],
        "sentence": _why(decision) if decision else "",
    }


def address_of(key: CounterKey) -> str:
    """The address of the page of a counter's client."""
    if key.name_length > LONGEST_IN_ADDRESS:
        return "/client?" + urlencode({"digest": digest_of(key)})
    parts = {"user": key.user, "client_id": key.client_id}
    if key.topic is not None:
        parts = {"topic": key.topic, "partition": str(key.partition)}
    return "/client?" + urlencode({name: value for name, value in parts.items() if value}, errors="replace")


def digest_of(key: CounterKey) -> str:
    """Stands for the tags of a counter whose names are too long for an address."""
    tags = "\0".join((key.user, key.client_id, key.topic or "", str(key.partition)))
    return hashlib.sha256(tags.encode("utf-8", "replace")).hexdigest()[:32]


def entity_text(entry: QuotaEntry) -> str:
    """The entity of a quota in words."""
    return _entity_words(entry.entity.user, entry.entity.client_id, entry.entity.topic)


def _entity_words(user: EntityName, client_id: EntityName, topic: EntityName) -> str:
    parts = (("user", user), ("client-id", client_id), ("topic", topic))
    return ", ".join(
        f"default {part}" if name is DEFAULT else f"{part} {short(str(name))}"
        for part, name in parts
        if name is not None
    )


def _quota_entity(counter: CounterState) -> str | None:
    """The entity of the quota that gave the counter's limit, in the words of `entity_text`."""
    key = counter.key
    if key.topic is not None:
        own = counter.matched == PrecedenceLevel.TOPIC
        return _entity_words(None, None, key.topic if own else DEFAULT) if counter.limit is not None else None
    parts = PRECEDENCE_LEVELS.get(counter.matched)  # type: ignore[call-overload] # a PrecedenceLevel is the string that decisions have
    if parts is None:
        return None
    if Part.OWN not in parts:
        return _default_words(parts)
    pairs = zip(parts, (key.user, key.client_id), strict=True)
    user, client_id = (name if part is Part.OWN else DEFAULT if part is Part.DEFAULT else None for part, name in pairs)
    return _entity_words(user, client_id, None)


@lru_cache
def _default_words(parts: tuple[Part, Part]) -> str:
    """The words of a quota on default entities, which most counters may share."""
    user, client_id = (DEFAULT if part is Part.DEFAULT else None for part in parts)
    return _entity_words(user, client_id, None)


def _counters_of(model: LiveModel, given: Mapping[str, str]) -> list[CounterState]:
    if digest := given.get("digest"):
        long = [counter for counter in model.counters() if counter.key.name_length > LONGEST_IN_ADDRESS]
        return [counter for counter in long if digest_of(counter.key) == digest]
    topic, partition = given.get("topic"), given.get("partition", "-1")
    number = int(partition) if partition.isascii() and partition.isdigit() and len(partition) < 11 else -1
    tags = (given.get("user", ""), given.get("client_id", ""), topic, number if topic is not None else -1)
    keys = (CounterKey(kind, shadow, *tags) for kind in QuotaKind for shadow in (False, True))
    return [counter for key in keys if (counter := model.counter(key)) is not None]


def _named(keys: Sequence[CounterKey], given: Mapping[str, str]) -> tuple[str, str, str | None]:
    if keys:
        return keys[0].user, keys[0].client_id, keys[0].topic
    return given.get("user", ""), given.get("client_id", ""), given.get("topic")


def _shown(row: Row, now_ms: int) -> Values:
    kind, key = row.key.kind, row.key
    waits = duration(row.wait_ms) if row.wait_ms else ""
    is_tokens = kind.family is Family.MUTATIONS
    text = f"highest rate each {POINT_MS // 1000} seconds of the last {POINTS * POINT_MS // 60_000} minutes"
    return {
        "id": "c" + hashlib.sha256(repr(key).encode("utf-8", "replace")).hexdigest()[:16],
        "address": address_of(key),
        "who": _tags_text(key.user, key.client_id, key.topic, key.partition),
        "quota": kind.value,
        "shadow": key.shadow,
        "band": band_of(row.share),
        "share": percent(row.share),
        "meter": min(1.0, row.share or 0.0),
        "rate": amount(kind, row.rate),
        "limit": amount(kind, row.limit),
        "remaining": amount(kind, row.remaining, per_s=not is_tokens) + (" tokens" if is_tokens and row.limit else ""),
        "level": printable(row.matched)[:60],
        "wait": waits,
        "hour": row.hour_minutes,
        "week": NOTHING if row.week_minutes is None else row.week_minutes,
        "seen": duration(max(0, now_ms - row.seen_ms)) + " ago",
        "spark": svg.sparkline(row.points, row.limit, text),
    }


def _tenant_shown(row: Row, tenants: Tenants | None) -> Values:
    return {"tenant": short(tenant_of(row.key, tenants)) if tenants else ""}


def _shown_wait(wait: Wait) -> Values:
    kind = wait.key.kind
    return {
        "at": moment(wait.timestamp_ms),
        "wait": duration(wait.wait_ms),
        "who": _tags_text(wait.key.user, wait.key.client_id, wait.key.topic, wait.key.partition),
        "address": address_of(wait.key),
        "id": wait.decision_id[:MOST_ID],
        "api": printable(wait.api)[:60],
        "gateway": short(wait.gateway or "", 40),
        "reason": (
            f"{kind.value}: {amount(kind, wait.rate)} of {amount(kind, wait.limit)}"
            + (", applied by the gateway in line" if wait.in_line else ", by the decision")
        ),
    }


def _shown_answer(answer: Answer) -> Values:
    kind, key, waits = answer.kind, answer.counter, (answer.least_ms, answer.most_ms)
    if answer.limit is None:
        would_wait = "no limit"
    elif answer.tokens is None and kind.family is Family.MUTATIONS:
        would_wait = "unknown: no decision of its counter"
    elif answer.refused:
        would_wait = f"refused, {duration(answer.most_ms)}"
    elif waits[0] == waits[1]:
        would_wait = duration(waits[0])
    else:
        would_wait = f"{duration(waits[0])} to {duration(waits[1])}"
    used = NOTHING if not answer.known else amount(kind, answer.rate)
    if answer.tokens is not None:
        used = f"{answer.tokens:.4g} tokens left"
    return answer._asdict() | {
        "who": _tags_text(key.user, key.client_id, key.topic, key.partition),
        "limit": amount(kind, answer.limit),
        "used": used,
        "amount": amount(kind, answer.amount, per_s=False),
        "waits_now": duration(answer.waits_now_ms) if answer.waits_now_ms else NOTHING,
        "would_wait": would_wait,
    }


def _rate_chart(row: Row) -> Any:
    kind = row.key.kind
    span = f"the last {POINTS * POINT_MS // 60_000} minutes, {POINT_MS // 1000} s each"
    highest = max((point for point in row.points if point == point), default=0.0)  # not NaN
    limit = amount(kind, row.limit)
    text = f"{kind.value}: highest rate {amount(kind, highest)} over {span}, limit {limit}"
    return svg.chart(row.points, row.limit, text, (f"limit {limit}", f"highest {amount(kind, highest)}"), span)


def _waits_chart(waits: Sequence[Wait], now_ms: int) -> Any:
    """The longest wait that began in each ten seconds."""
    newest = now_ms // POINT_MS
    points = [float("nan")] * POINTS
    for wait in waits:
        index = POINTS - 1 - (newest - wait.timestamp_ms // POINT_MS)
        if 0 <= index < POINTS and not points[index] >= wait.wait_ms / 1000:
            points[index] = wait.wait_ms / 1000
    longest = max((point for point in points if point == point), default=0.0)  # not NaN
    span = f"the last {POINTS * POINT_MS // 60_000} minutes"
    text = f"waits over {span}: the longest is {duration(longest * 1000)}"
    return svg.chart(points, None, text, ("", f"longest {duration(longest * 1000)}"), span)


def _quotas_of(facts: Facts, user: str, client_id: str, topic: str | None) -> list[Values]:
    in_force = facts.limits.in_force
    if in_force is None:
        return []
    rows = []
    for quotas in (in_force.enforced, in_force.shadow):
        for kind in CLIENT_KINDS if topic is None else TOPIC_KINDS:
            if not quotas.enabled(kind):
                continue
            found = quotas.resolve(kind, user, client_id) if topic is None else quotas.resolve_topic(kind, topic, -1)
            rows.append(
                {
                    "quota": kind.value,
                    "shadow": found.shadow,
                    "limit": amount(kind, found.limit),
                    "level": found.level.value,
                    "counted": _tags_text(found.tags.user, found.tags.client_id, found.tags.topic),
                }
            )
    return rows


def _changes_of(facts: Facts, user: str, client_id: str, topic: str | None) -> list[Values]:
    """The last changes of quotas that requests of this client may have met."""

    def may_meet(name: EntityName, own: str | None) -> bool:
        return name is None or name is DEFAULT or not own or name == own

    return [
        {
            "at": change.changed_at.strftime("%Y-%m-%d %H:%M:%S"),
            "by": short(change.changed_by, 60),
            "entity": _entity_words(change.entity.user, change.entity.client_id, change.entity.topic),
            "quota": change.kind.value,
            "old": amount(change.kind, change.old.value if change.old else None),
            "new": amount(change.kind, change.new.value if change.new else None),
        }
        for change in facts.week.changes
        if (change.entity.topic is None) == (topic is None)
        and may_meet(change.entity.user, user)
        and may_meet(change.entity.client_id, client_id)
        and may_meet(change.entity.topic, topic)
    ][:20]


def _charge_of(charge: Mapping[str, Any], decision: Mapping[str, Any] | None) -> Values:
    quota, entity = str(charge.get("quota")), charge.get("entity") or {}
    return {
        "quota": printable(quota),
        "shadow": charge.get("mode") == "shadow",
        "who": _tags_text(*(entity.get(part) for part in ("user", "client_id", "topic", "partition"))),
        "level": printable(str(charge.get("matched"))),
        "limit": _plain(quota, charge.get("limit")),
        "value": _plain(quota, charge.get("value"), per_s=False),
        "rate": _plain(quota, charge.get("rate")),
        "tokens": NOTHING if charge.get("tokens") is None else f"{charge['tokens']:.6g}",
        "wait": duration(charge.get("throttle_ms") or 0),
        "violated": bool(charge.get("violated")),
        "decided": bool(decision) and quota == (decision or {}).get("decided_by"),
    }


def _why(decision: Mapping[str, Any]) -> str:
    """One sentence on what the decision means for the client."""
    decided_by, ms = decision.get("decided_by"), decision.get("throttle_time_ms") or 0
    applied = decision.get("throttled_by")
    if decision.get("verdict") == "REJECT":
        return f"Refused: the tokens of {printable(str(decided_by))} are spent; they are back in {duration(ms)}."
    if applied:
        longest = max(applied, key=lambda wait: wait["ms"])
        return f"The gateway made it wait {duration(longest['ms'])} in line, for {printable(longest['quota'])}."
    if ms and applied is not None:
        return (
            f"By {printable(str(decided_by))} it would wait {duration(ms)}; its gateway charges in line and held it by"
            " its own share, not by this decision."
        )
    if ms:
        return f"It waits {duration(ms)} because its rate is over the limit of {printable(str(decided_by))}."
    return "It did not wait."


def _plain(quota: str, value: float | None, *, per_s: bool = True) -> str:
    """A figure in the unit of its quota, also of a quota that nobody knows."""
    if value is None:
        return NOTHING
    kind = KINDS_BY_NAME.get(quota)
    return f"{value:.6g}" if kind is None else amount(kind, value, per_s=per_s)


def _tags_text(user: str | None, client_id: str | None, topic: str | None = None, partition: int | None = None) -> str:
    """Whom a counter is kept for, in words."""
    if topic is not None:
        return f"topic {short(topic)}" + (
            f", partition {partition}" if partition is not None and partition >= 0 else ""
        )
    parts = [short(user) if user else "", f"client-id {short(client_id)}" if client_id else ""]
    return " / ".join(part for part in parts if part) or "(no name)"


def _flat(answer: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The job's answer as lines of name and value; bounded, whatever it says."""
    lines: list[tuple[str, str]] = []
    for name, value in list(answer.items())[:100]:
        if isinstance(value, dict) and prefix.count(".") < 4:
            lines += _flat(value, f"{prefix}{name}.")
        else:
            lines.append((short(f"{prefix}{name}"), short(str(value), 300)))
    return lines[:100]


PAGES = OrderedDict(
    clients=("/", "Clients", clients),
    quotas=("/quotas", "Quotas", quotas),
    overview=("/overview", "Overview", overview),
    request=("/request", "Request", request),
    check=("/check", "Would this be limited?", check),
    client=("/client", "Client", client),
)
"""Template -> path, title and values."""
