"""Replay of a span of the decisions table under several sets of quotas at once, in one process or several.

The sets may be steps from the quotas in force to those that are wanted.
"""

import multiprocessing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from sluice.state.contract.gateway_topics import Overrides
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import EntryKind, Family, Membership, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice_insight.arrays import Integers
from sluice_insight.reports.left_out import LeftOut, Sent, left_out
from sluice_insight.reports.span import Span
from sluice_insight.waits import Waited, WaitEnds
from sluice_insight.whatif.advice import Advisor, Seen
from sluice_insight.whatif.metering import Batch, Meters, WaitSums
from sluice_insight.whatif.overrides import RecordedOverrides
from sluice_insight.whatif.recording import Recording, independent_by, rows_of
from sluice_insight.whatif.replay import ClientName, ClientReplay, Replay, ReplayedCounters, Side, moves_bytes
from sluice_insight.whatif.whose import Part, Whose

MAX_PROCESSES = 8

LEAST_ROWS = 20_000
"""Rows of the table for which another process pays: it starts in the second in which one replays as many."""

LEAD_MS = 60_000
"""Time before its span that a replay reads too: the quotas are then as if they had been in force before."""

ResultT = TypeVar("ResultT")

SeenByQuota = dict[tuple[QuotaEntity, QuotaKind], Seen]


@dataclass(frozen=True)
class Task:
    """A replay to do: the decisions of a span, once under each scenario, which is a list of quotas.

    `only` names the clients that are asked for; None stands for all. A client-id of None stands for all of the user.
    """

    path: str
    storage_options: Mapping[str, str]
    span: Span
    scenarios: Sequence[Sequence[QuotaEntry]]
    quota: QuotaSettings
    idle_expiry_ms: int
    only: Collection[tuple[str, str | None]] | None = None
    share: int = 0
    shares: int = 1
    ends: WaitEnds = field(default_factory=WaitEnds)
    recorded: Sequence[Overrides] = ()

    @property
    def overrides(self) -> RecordedOverrides:
        """The overrides of the span."""
        return RecordedOverrides(self.recorded)


@dataclass
class Replayed:
    """The result of a replay: for each scenario every client then and now; the first has the quotas of then.

    `rows` is the number of decisions. Those `without_amounts` were free. `unknown` counts those whose user, or
    client-id, the gateway didn't know. `given_up` counts requests that were never sent because too many others waited,
    for each scenario.
    """

    clients: list[dict[ClientName, ClientReplay]]
    rows: int = 0
    without_amounts: int = 0
    given_up: list[int] = field(default_factory=list)
    unknown: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(Part, 0))

    def left_out(self, kafka: Mapping[str, str]) -> LeftOut:
        """The clients that have no place in a report; `kafka` has the properties of Sluice's own."""
        sides = {name: client.then for name, client in self.clients[0].items()}
        return left_out(
            {name: Sent(each.requests, each.bytes, each.throttled > 0) for name, each in sides.items()}, kafka
        )

    def without(self, names: LeftOut) -> "Replayed":
        """The same without these clients."""
        kept = [{name: client for name, client in each.items() if not names.has(name)} for each in self.clients]
        return replace(self, clients=kept)


class Figure(NamedTuple):
    """A figure as it was recorded, by the replay under the quotas of then, and by that under others.

    The replay's own error is the difference of the first two, and its effect that of the last two.
    """

    then: float
    same: float
    now: float

    @property
    def is_known(self) -> bool:
        """True unless the error is larger than the effect. Where both are small, so is the change.

        >>> Figure(5.0, 3.4, 3.6).is_known, Figure(5.0, 3.4, 0.2).is_known, Figure(5.0, 4.8, 4.9).is_known
        (False, True, True)
        """
        error, effect = abs(self.same - self.then), abs(self.now - self.same)
        return error <= effect or error <= _SMALL * self.then


_SMALL = 0.05
"""Share of a figure that is a small error of it."""


def replay(task: Task, processes: int) -> Replayed:
    """Replay in up to this many processes, if charges of different clients are independent. Raises QueryError."""
    part = independent_by(entry for entries in task.scenarios for entry in entries)
    return _joined(in_shares(replay_share, task, part, processes))


def in_shares(
    work: Callable[[Task, Part | None], ResultT], task: Task, part: Part | None, processes: int
) -> list[ResultT]:
    """The results of `work` on each share of the requests, told apart by `part`, each in a process of its own.

    Raises QueryError.
    """
    shares = min(processes, MAX_PROCESSES, 1 + recording_of(task, None).most_rows // LEAST_ROWS)
    if part is None or shares == 1:
        return [work(task, part)]
    with ProcessPoolExecutor(shares, multiprocessing.get_context("spawn")) as pool:
        tasks = [replace(task, share=share, shares=shares) for share in range(shares)]
        return list(pool.map(work, tasks, [part] * shares))


def replay_share(task: Task, part: Part | None) -> Replayed:
    """Replay one share of the requests. Raises QueryError.

    Clients whose requests were and would all be served at once are only counted; the others are replayed. Without a
    `part` these may delay any client, and all are replayed.
    """
    if part is None:
        return _replayed(task, recording_of(task, part, lead_ms=LEAD_MS))
    recording = recording_of(task, part, lead_ms=LEAD_MS)
    meters = [Meters(Quotas(entries), task.quota, task.overrides) for entries in task.scenarios]
    counts, late = Counts(task.span), set[str]()
    for batch in recording.batches():
        counts.add(batch)
        late |= _names_in(batch, np.flatnonzero(batch.waits_ms > 0), part)
        for each in meters:
            late |= late_names(each, batch, part)
    nothing = Replayed([{} for _ in meters], given_up=[0 for _ in meters])
    replayed = _replayed(task, recording_of(task, part, late, LEAD_MS)) if late else nothing
    served = _asked(
        {name: client for name, client in counts.clients().items() if name[part is Part.CLIENT_ID] not in late},
        task.only,
    )
    clients = [served | of_scenario for of_scenario in replayed.clients]
    return replace(
        replayed,
        clients=clients,
        rows=recording.rows,
        without_amounts=recording.without_amounts,
        unknown=recording.unknown,
    )


def late_names(meters: Meters, batch: Batch, part: Part) -> set[str]:
    """The users, or client-ids, of whom a request would wait, or asks for mutations, which may be refused."""
    late: list[Integers] = []
    for metered in meters.charge(batch):
        waits = metered.rates > metered.limits
        late.append(metered.rows if metered.kind.family is Family.MUTATIONS else metered.rows[waits])
    return _names_in(batch, np.concatenate([np.zeros(0, np.int64), *late]), part)


def _names_in(batch: Batch, rows: Integers, part: Part) -> set[str]:
    return {getattr(batch.lanes[lane], part.value) for lane in np.unique(batch.lanes_of[rows]).tolist()}


def _replayed(task: Task, recording: Recording) -> Replayed:
    replays = [
        Replay(ReplayedCounters(Quotas(entries), task.quota, task.idle_expiry_ms, task.overrides).decide, task.span)
        for entries in task.scenarios
    ]
    for recorded in recording:
        for each in replays:
            each.replay_request(recorded)
    clients = [_asked(each.finish(), task.only) for each in replays]
    given_up = [each.given_up for each in replays]
    return Replayed(clients, recording.rows, recording.without_amounts, given_up, recording.unknown)


class Counts:
    """The recorded requests of clients, and their waits then."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._names: dict[ClientName, int] = {}
        self._sums: list[Integers] = []  # (clients, 4): requests, those throttled and refused, and bytes
        self._waits = WaitSums()

    def add(self, batch: Batch) -> None:
        """Count some requests."""
        numbers = [self._names.setdefault(lane[:2], len(self._names)) for lane in batch.lanes]
        clients = np.array(numbers, np.int64)[batch.lanes_of]
        requests = batch.requests * (batch.times_ms >= self._span.start_ms)
        moved = np.array([moves_bytes(key.request()) for key in batch.keys])[batch.keys_of] * batch.bytes
        counted = (requests, requests * (batch.waits_ms > 0), requests * batch.refused, moved * (requests > 0))
        self._sums.append(np.stack([np.bincount(clients, each, len(self._names)) for each in counted], axis=1))
        self._waits.add(clients, batch, np.arange(len(clients)))

    def clients(self) -> dict[ClientName, ClientReplay]:
        """Each client as it was then; now it sends the same, and never waits."""
        sums = np.zeros((len(self._names), 4), np.int64)
        for part in self._sums:
            sums[: len(part)] += part.astype(np.int64)
        found = zip(self._names, sums.tolist(), self._waits.waited_ms(len(sums), self._span).tolist(), strict=True)
        return {
            name: ClientReplay(
                Side(requests, throttled, refused, moved, Waited(waited_ms)), Side(requests, bytes=moved), {}
            )
            for name, (requests, throttled, refused, moved), waited_ms in found
            if requests
        }


def rates_seen(
    task: Task, whose: Whose, kinds: Collection[QuotaKind], processes: int, others: Sequence[QuotaEntry] = ()
) -> SeenByQuota:
    """The rates of each entity in the span of the task; its scenarios don't count.

    `others` are members of tenants, and quotas whose clients have no part in these rates.

    Raises QueryError.
    """
    work = partial(_rates_of_share, whose, kinds, others)
    return {key: seen for share in in_shares(work, task, whose.part, processes) for key, seen in share.items()}


def _rates_of_share(
    whose: Whose, kinds: Collection[QuotaKind], others: Sequence[QuotaEntry], task: Task, part: Part | None
) -> SeenByQuota:
    advisor = Advisor(whose, kinds, task.quota, others)
    for batch in recording_of(task, part).batches():
        advisor.read_batch(batch)
    return advisor.seen()


def recording_of(task: Task, part: Part | None, names: Collection[str] | None = None, lead_ms: int = 0) -> Recording:
    """The requests of a share: of clients with these names, or else of those asked for. Raises QueryError."""
    chosen = None
    names = names or (None if part is None else _names(task.only, part))
    if part is not None and (task.shares > 1 or names is not None):
        chosen = rows_of(part, task.share, task.shares, names)
    return Recording(task.path, task.storage_options, task.span, chosen, task.ends, lead_ms)


def _names(only: Collection[tuple[str, str | None]] | None, part: Part) -> Collection[str] | None:
    """The users, or client-ids, of the clients asked for; None if they can be any."""
    if only is None:
        return None
    names = {user if part is Part.USER else client_id for user, client_id in only}
    return None if None in names else {str(name) for name in names}


def _asked(
    clients: dict[ClientName, ClientReplay], only: Collection[tuple[str, str | None]] | None
) -> dict[ClientName, ClientReplay]:
    """The clients asked for among those whose requests were replayed because they share counters with them."""
    if only is None:
        return clients
    return {
        (user, client_id): client
        for (user, client_id), client in clients.items()
        if (user, client_id) in only or (user, None) in only
    }


def _joined(parts: Sequence[Replayed]) -> Replayed:
    """The shares as one; no client is in two of them."""
    clients: list[dict[ClientName, ClientReplay]] = [{} for _ in parts[0].clients]
    for part in parts:
        for joined, of_share in zip(clients, part.clients, strict=True):
            joined.update(of_share)
    return Replayed(
        clients,
        sum(part.rows for part in parts),
        sum(part.without_amounts for part in parts),
        [sum(each) for each in zip(*(part.given_up for part in parts), strict=True)],
        {part: sum(share.unknown[part] for share in parts) for part in Part},
    )


def stepped(present: Iterable[QuotaEntry], wanted: Sequence[QuotaEntry], steps: int) -> list[list[QuotaEntry]]:
    """The quotas of each step, the last one being those wanted. A limit moves by an equal amount with every step.

    A quota that isn't in force yet has its wanted limit from the first step on. Limits of whole numbers stay whole.

    >>> alice = QuotaEntity(user="alice")
    >>> def limit(value: float) -> list[QuotaEntry]:
    ...     return [QuotaEntry(alice, QuotaKind.PRODUCER_BYTE_RATE, value)]
    >>> [entry.value for (entry,) in stepped(limit(1000.0), limit(500.0), 3)]
    [833.0, 667.0, 500.0]
    """
    limits: dict[tuple[QuotaEntity, EntryKind, bool], float] = {_key(entry): entry.value for entry in present}
    return [
        [_moved(entry, limits.get(_key(entry), entry.value), step / steps) for entry in wanted]
        for step in range(1, steps + 1)
    ]


def _moved(entry: QuotaEntry, start: float, share: float) -> QuotaEntry:
    if isinstance(entry.kind, Membership):
        return entry
    value = entry.value if share == 1.0 else start + (entry.value - start) * share
    value = max(1.0, float(round(value))) if entry.kind.family.whole else value
    return msgspec.structs.replace(entry, value=value)


def _key(entry: QuotaEntry) -> tuple[QuotaEntity, EntryKind, bool]:
    return entry.entity, entry.kind, entry.shadow
