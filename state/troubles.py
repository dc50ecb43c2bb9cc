"""The one model of what is wrong now: facts in, troubles out. Pure: time is an argument, in epoch milliseconds.

`sluice doctor`, `sluice top`, the console, `/healthz`, `/readyz` and `/metrics` show these, and have no rule of their
own. A fact that a viewer doesn't know is None, and makes no trouble.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple

import msgspec

from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.instances import server_text
from sluice.state.contract.records import MAX_TIMESTAMP_MS, RELEASE, Heartbeat
from sluice.state.quotas.limits import OPERATOR
from sluice.state.quotas.overrides import overrides_now
from sluice.state.shares.load import FULL_LOAD, BrokerLimits, broker_loads

STALE_MS = 15_000
"""Decisions that are so much older than the newest request are of then: a few micro-batches of a busy machine."""

AT_ONCE_MS = 5_000
"""The same if no process has the lock: a job on another machine leaves requests waiting for a micro-batch too."""

START_MS = 120_000
"""Time that a step of the job's start may take, the first micro-batch too, while requests wait."""

AUDIT_LATE_MS = 60_000
"""Age beyond the audit query's trigger from which an answer should be in its table."""

HOUR_MS = 3_600_000
"""Time in which dead letters count as new."""

MAX_AHEAD_MS = 1_000
"""The shortest sample of a quota."""

MAX_BEHIND_MS = 2_000
"""A heartbeat is read some tenths of a second after it was sent."""

MAX_SKEW_MS = 60_000
"""Skew of a clock from which it is a failure."""

MOST_NAMED = 5
"""Most clients, brokers and so on that a line names."""

Severity = Literal["fail", "warn"]

KNOWN: Mapping[str, tuple[Severity, ...]] = {
    "job_away": ("fail",),
    "decisions_stale": ("fail",),
    "starting": ("warn",),
    "enforce_down": ("fail",),
    "audit_down": ("warn",),
    "audit_behind": ("warn",),
    "foreign_decisions": ("fail",),
    "broker_away": ("warn",),
    "no_leader": ("fail",),
    "topic_unfit": ("warn", "fail"),
    "plugin_missing": ("fail",),
    "plugin_deaf": ("fail",),
    "plugin_old": ("warn",),
    "gateway_silent": ("fail",),
    "threads_down": ("fail",),
    "disk_low": ("fail",),
    "broker_full": ("warn",),
    "tightened": ("warn",),
    "hold": ("warn",),
    "dead_letters": ("warn",),
    "own_login": ("warn",),
    "input_unreadable": ("warn",),
    "table_unreadable": ("fail",),
    "mirror_down": ("warn",),
    "native_missing": ("warn",),
    "clocks": ("warn", "fail"),
}
"""Name and severities of each kind of trouble, in the order in which they are shown."""

_BROKER = re.compile("broker ([0-9]+)")
"""A broker as `server_text` calls it."""


class Trouble(msgspec.Struct, frozen=True):
    """One thing that is wrong now. `name` is one of KNOWN, and keeps its meaning: metrics have it as a label."""

    name: str
    severity: Severity
    text: str
    since_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)] | None = None
    meanwhile: str = ""
    """The effect meanwhile: all that goes on, or doesn't."""
    next: str = ""
    """The operator's next step."""

    @property
    def line(self) -> str:
        """All of it in one line.

        >>> Trouble("x", "warn", "no decision", 5_000, "shares hold", "see the log").line
        'no decision since 00:00:05 UTC: shares hold; see the log'
        """
        since = "" if self.since_ms is None else f" since {_clock(self.since_ms)}"
        meanwhile = f": {self.meanwhile}" if self.meanwhile else ""
        return f"{self.text}{since}{meanwhile}{f'; {self.next}' if self.next else ''}"


class Flow(NamedTuple):
    """The newest request, and the newest decision or dead letter, by the times of their records; None for no record.

    `waiting` are the requests behind the last one of their partition that has an answer.
    """

    request_ms: int | None
    answer_ms: int | None
    waiting: int = 0
    still_ms: int = 0
    """Time, by a clock of the reader that nobody sets, in which requests waited and it saw no answer come."""
    is_measured: bool = False
    """True once it saw an answer come, or no request wait: then the times of records don't count."""


class JobSeen(NamedTuple):
    """Signs of life of the job: the lock of its checkpoint, and an answer at its health port. None is unknown."""

    is_locked: bool | None = None
    answers: bool | None = None
    step_ms: int | None = None
    """Age of the present step of its start, by its own word; None once it has committed a micro-batch."""


class DeadLettersSeen(NamedTuple):
    """Dead letters of the last hour, and the commonest problem among the newest of them."""

    number: int
    problem: str = ""


class Unwritten(NamedTuple):
    """Decisions and dead letters that should be in the tables by now, and when the job saw the last commit of audit."""

    number: int
    since_ms: int | None = None


class BrokersSeen(NamedTuple):
    """Brokers that are away: addresses of bootstrap.servers, node ids with replicas, partitions without a leader."""

    silent: Sequence[str] = ()
    away: Mapping[int, str] = {}
    """Node id -> a topic of Sluice of which it has replicas."""
    leaderless: Sequence[str] = ()


class TopicsSeen(NamedTuple):
    """Topics of Sluice that aren't there, and the words on each that differs from what it needs, with the cure."""

    missing: Sequence[str] = ()
    unfit: Mapping[str, bool] = {}
    """Words -> True if the topic loses records."""


Plugin = Literal["there", "missing", "deaf"]
"""The plugin in the configuration of a broker; `deaf` is without its reporter of metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known; None is unknown."""

    job: JobSeen | None = None
    flow: Flow | None = None
    looked_ms: int | None = None
    """Time of these two; None is now."""
    queries: Mapping[str, str | None] | None = None
    """Name of a query -> the reason why it doesn't run; None if it does."""
    foreign: Sequence[str] | None = None
    """Ids of other jobs whose decisions are in the topic."""
    brokers: BrokersSeen | None = None
    topics: TopicsSeen | None = None
    plugins: Mapping[int, Plugin] | None = None
    """By node id; empty where no broker has it."""
    beats: Mapping[str, Heartbeat] | None = None
    """The last heartbeat of each gateway that was heard in the last `heard_s`, by `server_text`."""
    heard_s: int = 10
    """0 is for a reader that hasn't read for so long: it can't say yet that one is silent."""
    capacities: BrokerLimits | None = None
    ahead_ms: Mapping[str, int] | None = None
    """Clocks of gateways, so much ahead of this machine's; below 0 is behind."""
    overrides: Mapping[str, Overrides] | None = None
    """The last record of each decider."""
    dead_letters: DeadLettersSeen | None = None
    unwritten: Unwritten | None = None
    own_login: tuple[str, str] | None = None
    """Words on the quota that limits Sluice's own login, and the cure; "" if none does."""
    inputs: Mapping[str, str | None] | None = None
    """Inputs beside the requests -> the reason why one can't be read."""
    tables: Mapping[str, str | None] | None = None
    """Tables that the job writes -> the reason why one can't be read."""
    mirror: str | None = None
    """The reason why the cluster's quotas aren't mirrored."""
    native: str | None = None
    """The reason why native code is wanted, and not there."""


def troubles_of(facts: Facts, now_ms: int) -> list[Trouble]:
    """All that is wrong by these facts, failures first, then in the order of KNOWN."""
    found = [trouble for kind in _KINDS for trouble in kind(facts, now_ms)]
    return in_order(found)


def in_order(troubles: Iterable[Trouble]) -> list[Trouble]:
    """Failures first, then in the order of KNOWN; of each name the first."""
    names = list(KNOWN)
    first = {each.name: each for each in reversed(list(troubles))}
    places = {name: names.index(name) if name in KNOWN else len(names) for name in first}
    return sorted(first.values(), key=lambda each: (each.severity != "fail", places[each.name]))


def is_stale(flow: Flow | None, now_ms: int, longest_ms: int = STALE_MS) -> bool:
    """True if requests have waited for more than `longest_ms`, and no answer came: figures are of then.

    >>> [is_stale(Flow(90_000, answer_ms, 7), 91_000) for answer_ms in (None, 70_000, 89_000)], is_stale(None, 91_000)
    ([True, True, False], False)
    >>> is_stale(Flow(90_000, 89_000, 7, still_ms=16_000), 91_000), is_stale(Flow(90_000, 1, 7, 900, True), 91_000)
    (True, False)
    """
    if flow is None or flow.request_ms is None or not flow.waiting:
        return False
    is_old = flow.answer_ms is None or min(flow.request_ms, now_ms) - flow.answer_ms > longest_ms
    return flow.still_ms > longest_ms or (is_old and not flow.is_measured)


def still_since_ms(flow: Flow, looked_ms: int) -> int | None:
    """Time since which no answer came, for a flow that was seen at `looked_ms`; None where none ever came.

    It is the time of the newest answer, the same for all who look, unless clocks are off by what this one has seen.

    >>> flow = Flow(90_000, 70_000, 7, still_ms=20_500, is_measured=True)
    >>> fresh, ahead = flow._replace(still_ms=0, is_measured=False), flow._replace(answer_ms=3_670_000)
    >>> [still_since_ms(each, 91_000) for each in (flow, fresh, ahead, flow._replace(answer_ms=40_000))]
    [70000, 70000, 70500, 70500]
    """
    if flow.answer_ms is None:
        return None
    seen_ms = looked_ms - flow.still_ms
    is_off = flow.is_measured and abs(flow.answer_ms - seen_ms) > STALE_MS
    return seen_ms if is_off or flow.answer_ms > looked_ms else flow.answer_ms


def job_troubles(facts: Facts, now_ms: int) -> Iterator[Trouble]:
    """The job is away, or stands still, although requests wait: a gateway sends a heartbeat each second."""
    seen, flow = facts.job or JobSeen(), facts.flow
    if flow is None or not flow.waiting:
        return
    wait = f"{flow.waiting} requests wait" + (", and the topic has no decision" if flow.answer_ms is None else "")
    meanwhile = "gateways go on with their last shares and limits, and all figures are of then"
    looked_ms = now_ms if facts.looked_ms is None else facts.looked_ms
    is_late, since_ms = is_stale(flow, now_ms), still_since_ms(flow, looked_ms)
    # without a lock it may be on another machine, whose health port isn't asked, and at a long micro-batch
    may_be_gone = seen.is_locked is None and seen.answers is False and is_late
    is_gone = seen.is_locked is False and is_stale(flow, now_ms, AT_ONCE_MS)
    if (is_gone or may_be_gone) and not seen.answers:
        start = "its log says why it ended; start it with `sluice run`"
        yield Trouble("job_away", "fail", f"no job runs, {wait}", since_ms, meanwhile, start)
    elif is_late and seen.answers is False:
        log = "a process has the lock of its checkpoint: see its log, and end it before you start it again"
        text = f"the job doesn't answer at its health port, {wait}"
        yield Trouble("job_away", "fail", text, since_ms, meanwhile, log)
    elif is_late and seen.step_ms is not None and seen.step_ms < START_MS:
        step = f"it may take {START_MS // 1000} s to its first micro-batch; its log says what it waits for"
        waits = f"the job starts, {flow.waiting} requests wait"
        yield Trouble("starting", "warn", waits, looked_ms - seen.step_ms, meanwhile, step)
    elif is_late and not (facts.queries or {}).get("enforce"):
        look = "the job's log says what it waits for"
        yield Trouble("decisions_stale", "fail", f"no decision, {wait}", since_ms, meanwhile, look)


def query_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """A query that doesn't run, by the job's own words, or writes nothing, and decisions of another job."""
    reasons = facts.queries or {}
    if reason := reasons.get("enforce"):
        meanwhile = "nothing is decided; gateways go on with their last shares and limits"
        next_step = "it starts again by itself; see the log if it doesn't"
        yield Trouble("enforce_down", "fail", f"query enforce {reason}", meanwhile=meanwhile, next=next_step)
    meanwhile = "requests are decided; tables, and what is read from them, stay behind"
    if reason := reasons.get("audit"):
        next_step = "it starts again by itself, and then catches up; see the log if it doesn't"
        yield Trouble("audit_down", "warn", f"query audit {reason}", meanwhile=meanwhile, next=next_step)
    elif facts.unwritten is not None and facts.unwritten.number:
        number, since_ms = facts.unwritten
        text = f"{number} decisions and dead letters should be in tables by now and are in none"
        text += "" if since_ms is None else ", no micro-batch of audit was committed"
        meanwhile = "tables, and what is read from them, stay behind"
        step = "see the micro-batches of audit in the job's log, and whether the storage of the tables answers"
        yield Trouble("audit_behind", "warn", text, since_ms, meanwhile, step)
    if facts.foreign:
        meanwhile = "each request is charged again, or somebody forges decisions"
        step = "stop that job, or give it topics of its own"
        text = f"the decisions topic has decisions of another job ({some(facts.foreign)})"
        yield Trouble("foreign_decisions", "fail", text, meanwhile=meanwhile, next=step)


def broker_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """Brokers that are away, by their addresses and by the replicas of Sluice's topics."""
    seen = facts.brokers
    if seen is None:
        return
    step = "look at its process and its log"
    if seen.leaderless:
        text = f"no broker leads {some(seen.leaderless)}"
        meanwhile = "records of these partitions are neither written nor read"
        yield Trouble("no_leader", "fail", text, meanwhile=meanwhile, next=step)
    texts = [f"{some(seen.silent)} of bootstrap.servers doesn't answer"] if seen.silent else []
    texts += [f"broker {node} has replicas of {topic} and is away" for node, topic in sorted(seen.away.items())]
    if texts:
        meanwhile = "partitions with replicas on other brokers go on, with fewer"
        yield Trouble("broker_away", "warn", "; ".join(texts[: MOST_NAMED + 1]), meanwhile=meanwhile, next=step)


def topic_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """Topics that somebody has removed or altered."""
    seen = facts.topics or TopicsSeen()
    step = "`sluice topics` makes them, as `sluice run` does at its start"
    texts = [f"not there: topic {', '.join(seen.missing)} ({step})"] if seen.missing else []
    texts += list(seen.unfit)[:MOST_NAMED]
    if texts:
        severity: Severity = "fail" if seen.missing or any(seen.unfit.values()) else "warn"
        meanwhile, cures = "all that needs no such topic goes on", "; ".join(texts)  # that end with a command to copy
        yield Trouble("topic_unfit", severity, "topics are not as Sluice needs them", meanwhile=meanwhile, next=cures)


def plugin_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """Brokers without the plugin beside brokers with it, and those whose plugin is deaf, silent or half dead."""
    plugins, beats = facts.plugins, facts.beats
    nodes = {node for node, state in (plugins or {}).items() if state != "missing"}
    count = len(plugins or {})
    step = "name it again, in server.properties and where kafka-configs.sh --entity-type brokers has set it: no restart"
    known = {int(node[1]): beat for name, beat in (beats or {}).items() if (node := _BROKER.fullmatch(name))}
    having = f"of {len(nodes) or len(known)} with the plugin"
    if plugins and nodes and (missing := sorted(plugins.keys() - nodes)):
        text = f"broker {_names(missing)} of {count} is without client.quota.callback.class of the plugin"
        add = "run sluice broker-plugin and add its lines to server.properties"
        meanwhile = "what clients send there counts for no quota"
        yield Trouble("plugin_missing", "fail", text, meanwhile=meanwhile, next=add)
    unheard = ""
    if deaf := sorted(node for node in nodes if (plugins or {})[node] == "deaf"):
        unheard = f"broker {_names(deaf)} of {count} is without the plugin's reporter in metric.reporters"
    elif blind := sorted(node for node, beat in known.items() if not beat.metrics_seen):
        unheard = f"broker {_names(blind)} {having} doesn't hand it its metrics"
    if unheard:
        meanwhile = "no charge there is published, though known shares hold"
        yield Trouble("plugin_deaf", "fail", unheard, meanwhile=meanwhile, next=f"{step} is needed")
    releases = {node: _numbers(beat.release) for node, beat in known.items()}
    if old := sorted(node for node, numbers in releases.items() if numbers < _numbers(RELEASE)):
        has = ", ".join(sorted({".".join(map(str, releases[node])) or f"a release before {RELEASE}" for node in old}))
        text = f"broker {_names(old)} {having} has {has} of it, the job is {RELEASE}"
        meanwhile, copy = "clients there are throttled as it does", "copy the jar of `sluice broker-plugin` there"
        yield Trouble("plugin_old", "warn", text, meanwhile=meanwhile, next=f"{copy}, and restart the broker")
    log = "lines with sluice in its log say why, and a restart of the broker ends it"
    stay = "shares stay as they are there"
    if beats is not None and facts.heard_s and (silent := sorted(nodes - known.keys())):
        text = f"broker {_names(silent)} {having}: no heartbeat in {facts.heard_s} s"
        yield Trouble("gateway_silent", "fail", text, meanwhile=stay, next=log)
    if down := sorted(node for node, beat in known.items() if beat.threads_down):
        text = f"broker {_names(down)} {having}: threads that don't work"
        yield Trouble("threads_down", "fail", text, meanwhile=stay, next=log)


def load_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """Log directories below the floor, and brokers at their capacity."""
    limits = facts.capacities
    if limits is None:
        return
    measured = {name: beat.load for name, beat in (facts.beats or {}).items() if beat.load}
    low = sorted(found for load in measured.values() if (found := limits.floor.low(load)) is not None)
    if low:
        step = "delete records, or give it a larger volume"
        yield Trouble("disk_low", "fail", some(low), meanwhile="producers are stopped", next=step)
    loads = broker_loads(measured, limits.capacities)
    if full := sum(load.rho >= FULL_LOAD for load in loads.values()):
        busiest = max(loads, key=lambda name: loads[name].rho)
        text = f"{full} of {len(loads)} brokers are at their capacity; the busiest of {len(loads)} is {busiest}"
        meanwhile = "quotas hold, and clients below theirs may wait for it too"
        step = "lower the quotas of its busiest clients, or add brokers"
        yield Trouble("broker_full", "warn", f"{text}: {loads[busiest].reason}", meanwhile=meanwhile, next=step)


def override_troubles(facts: Facts, now_ms: int) -> Iterator[Trouble]:
    """Gateways that are tightened, and clients that are stopped, whatever their quotas say."""
    now = list(overrides_now(facts.overrides or {}, now_ms))
    tight = {each.gateway: each for _, each in now if each.kind == "tighten"}
    if tight:
        factors = sorted(each.factor for each in tight.values())
        reasons = some([_tightened(name, each.reason) for name, each in sorted(tight.items(), key=str)])
        get = f"clients get {factors[0]:.2f} to {factors[-1]:.2f} of their shares there, or their reservations"
        text = f"{len(tight)} brokers are tightened, {get} ({reasons})"
        meanwhile = "the other brokers give whole shares"
        step = "it ends by itself, with the load of the busiest clients there"
        yield Trouble("tightened", "warn", text, meanwhile=meanwhile, next=step)
    held = [
        f"{scope_text(each)}{_until(each)} by {decider} ({each.reason})" for decider, each in now if each.kind == "hold"
    ]
    if held:
        by_operator = any(decider == OPERATOR for decider, each in now if each.kind == "hold")
        step = "`sluice quotas release` ends a hold of an operator" if by_operator else "it ends with its reason"
        text, meanwhile = f"throttled whatever their limits are: {some(held)}", "all other clients have their limits"
        yield Trouble("hold", "warn", text, meanwhile=meanwhile, next=step)


def dead_letter_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """Events of the last hour that break the contract."""
    seen = facts.dead_letters
    if seen is not None and seen.number:
        most = f', most "{seen.problem}"' if seen.problem else ""
        meanwhile = "nothing is charged for them, and all other requests are decided"
        text = f"{seen.number} dead letters in the last hour{most}"
        step = "the tables dead_letters and unreadable have each; see who else writes to these topics"
        yield Trouble("dead_letters", "warn", text, meanwhile=meanwhile, next=step)


def login_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """A quota that limits Sluice itself."""
    if facts.own_login and any(facts.own_login):
        text, step = facts.own_login
        yield Trouble("own_login", "warn", text, None, "clients keep their shares, and changes come late", step)


def source_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """Tables, files and quotas that can't be read, and native code that isn't there."""
    if tables := [reason for _, reason in sorted((facts.tables or {}).items()) if reason]:
        meanwhile = "requests are decided; commands and pages that read it fail or lack rows"
        step = "no restart is needed once it can be read"
        yield Trouble("table_unreadable", "fail", "; ".join(tables), meanwhile=meanwhile, next=step)
    inputs = [f"{name}: {reason}" for name, reason in sorted((facts.inputs or {}).items()) if reason]
    if inputs:
        text, step = f"the job goes on with what it read last of {'; '.join(inputs)}", "mend it: no restart is needed"
        yield Trouble("input_unreadable", "warn", text, meanwhile="changes of it don't count", next=step)
    if facts.mirror:
        text, meanwhile = f"the cluster's quotas aren't mirrored ({facts.mirror})", "the last ones stay in force"
        step = "mend it: no restart is needed"
        yield Trouble("mirror_down", "warn", text, meanwhile=meanwhile, next=step)
    if facts.native:
        meanwhile, step = (
            "decisions are the same",
            "line `native code` of `sluice doctor` on the job's machine has the cure",
        )
        yield Trouble("native_missing", "warn", facts.native, meanwhile=meanwhile, next=step)


def clock_troubles(facts: Facts, _now_ms: int) -> Iterator[Trouble]:
    """Clocks of gateways that are off."""
    ahead = sorted((facts.ahead_ms or {}).items())
    troubles, effects = [], []
    if fast := [f"{name} by {ms / 1000:.0f} s" for name, ms in ahead if ms > MAX_AHEAD_MS]:
        troubles.append(f"clocks ahead of this machine's: gateway {', '.join(fast)}")
        effects.append(
            "after a request through one that is ahead, mutations of the same client are refused elsewhere until its"
            " time is reached"
        )
    if slow := [f"{name} by {-ms / 1000:.0f} s" for name, ms in ahead if ms < -MAX_BEHIND_MS]:
        troubles.append(f"clocks behind this machine's: gateway {', '.join(slow)}")
        effects.append(
            "tables have requests of one that is behind at times that were over, and waits for them are over elsewhere"
            " so much too early"
        )
    if troubles:
        severity: Severity = "fail" if max(abs(ms) for _, ms in ahead) >= MAX_SKEW_MS else "warn"
        text, meanwhile = "; ".join(troubles), ", and ".join(effects)
        yield Trouble("clocks", severity, text, meanwhile=meanwhile, next="set the clocks by NTP")


_KINDS: Sequence[Callable[[Facts, int], Iterator[Trouble]]] = (
    job_troubles,
    query_troubles,
    broker_troubles,
    topic_troubles,
    plugin_troubles,
    load_troubles,
    override_troubles,
    dead_letter_troubles,
    login_troubles,
    source_troubles,
    clock_troubles,
)


def scope_text(hold: Override) -> str:
    """The clients of a hold.

    >>> from sluice.state.contract.records import CountedEntity
    >>> tenant = CountedEntity(tenant="shop")
    >>> scope_text(Override("hold")), scope_text(Override("hold", entity=tenant, gateway="b-1-0a1b2c3d"))
    ('all producers', 'producers of tenant shop at broker 1')
    """
    names = {} if hold.entity is None else msgspec.to_builtins(hold.entity)
    clients = "clients" if hold.consumers else "producers"
    of = " and ".join(f"{part.replace('_', '-')} {name}" for part, name in names.items())
    scope = f"{clients} of {of}" if of else f"all {clients}"
    return scope if hold.gateway is None else f"{scope} at {server_text(hold.gateway)}"


def _tightened(instance: str | None, reason: str) -> str:
    """The reason, which begins with the broker in the records of a job."""
    name = server_text(instance)
    return reason if reason.startswith(f"{name}: ") else f"{name}: {reason}"


def some(texts: Collection[str]) -> str:
    """The first MOST_NAMED of texts, and the number of the others."""
    more = len(texts) - MOST_NAMED
    return ", ".join(list(texts)[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _until(hold: Override) -> str:
    return "" if hold.until_ms is None else f" until {_clock(hold.until_ms)}"


def _numbers(release: str | None) -> tuple[int, ...]:
    """(0, 10, 2) of "0.10.2rc1"; nothing of a heartbeat that names none."""
    return tuple(map(int, re.findall(r"\d{1,4}", release or "")[:3]))


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S UTC")


def _names(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))
