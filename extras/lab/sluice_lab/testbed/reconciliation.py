"""Reconciliation of a run: each request is answered exactly once, in the topics and in Delta, by the right decision."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deltalake import DeltaTable

from sluice.configs.settings import Settings
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.decision_id import answered_event
from sluice.state.decisions.leader_epochs import Fence
from sluice.state.errors import FarEpochError
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from sluice_demo.counts import records, rows, stored
from sluice_demo.job import TABLES, Json
from sluice_reading.query import run_query

_BY_RUN = {"decided_at_ms": 0, "job_id": None, "source_topic_id": None}
"""Fields that a decision and its simulation don't have in common: compared as if they were these."""

_Record = tuple[str, int, int]
"""Topic, partition and offset."""

_Place = tuple[int, int]
"""Partition and offset of a request."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Counts over the whole life of the topics and tables. `different` counts decisions that `simulate` contradicts.

    `duplicates` counts further answers to a request, `different_copies` those of them that differ from the first one,
    and `fenced` records of a driver that was replaced, which no reader counts. `unreadable` counts records of the
    answer topics that the table `unreadable` has, which are no answers; `unaccounted` those that are no answers and not
    in that table, and its rows beyond one for a record. `simulated` is false when the order of the requests is unknown:
    with several partitions or after deleted records.
    """

    requests: int
    decisions: int
    dead_letters: int
    duplicates: int
    decision_rows: int
    dead_letter_rows: int
    charges: int
    metered_charges: int
    different: int
    simulated: bool
    unreadable: int = 0
    unaccounted: int = 0
    different_copies: int = 0
    fenced: int = 0

    @property
    def answered(self) -> bool:
        """True if requests = decisions + dead letters, each once, and no decision is different."""
        return self.requests == self.decisions + self.dead_letters and not self.duplicates and not self.different

    @property
    def balanced(self) -> bool:
        """True if every request has one answer, every answer is one row in Delta, and every charge is counted once."""
        rows = (self.decision_rows, self.dead_letter_rows, self.metered_charges, self.unaccounted)
        return self.answered and rows == (self.decisions, self.dead_letters, self.charges, 0)

    def __str__(self) -> str:
        """All counts in one line."""
        simulated = f"{self.different} different from simulate" if self.simulated else "not simulated"
        others = f"; {self.unreadable} unreadable records" if self.unreadable else ""
        others += f", {self.unaccounted} unaccounted for" if self.unaccounted else ""
        return (
            f"{self.requests} requests = {self.decisions} decisions + {self.dead_letters} dead letters"
            f" ({self.duplicates} duplicates){others}; in Delta {self.decision_rows} decisions,"
            f" {self.dead_letter_rows} dead letters, {self.metered_charges} of {self.charges} charges; {simulated}:"
            f" {'balanced' if self.balanced else 'NOT BALANCED'}"
        )


def reconcile(settings: Settings) -> Reconciliation:
    """Read everything, and simulate the decisions. The quotas must not have changed since the job's first start."""
    topics, delta = settings.topics, settings.delta
    requests = list(records(settings, topics.requests))
    unreadable = _unreadable(delta.unreadable)
    decided = _read_answers(settings, topics.decisions, unreadable)
    lettered = _read_answers(settings, topics.dead_letters, unreadable)
    simulated = [record.offset for record in requests] == list(range(len(requests)))
    # The simulation knows no record times, so it does not refuse events that are ahead of their record's time.
    decidable = (
        record.value if (record.partition, record.offset) not in lettered.first else None for record in requests
    )
    return Reconciliation(
        requests=len(requests),
        decisions=len(decided.first),
        dead_letters=len(lettered.first),
        duplicates=decided.copies + lettered.copies + len(decided.first.keys() & lettered.first.keys()),
        decision_rows=rows(delta.decisions),
        dead_letter_rows=rows(delta.dead_letters),
        charges=sum(len(decision["charges"]) for decision in decided.first.values()),
        metered_charges=sum(DeltaTable(delta.quota_metrics).to_pyarrow_table(columns=["count"])["count"].to_pylist()),
        different=_different(settings, decidable, decided.first) if simulated else 0,
        simulated=simulated,
        unreadable=len(unreadable),
        unaccounted=decided.others + lettered.others + rows(delta.unreadable) - len(unreadable),
        different_copies=decided.different_copies + lettered.different_copies,
        fenced=decided.fenced,
    )


def reconcile_counts(settings: Settings) -> Reconciliation:
    """The same counts by SQL, for runs of any size: nothing is simulated, and topics are not read.

    Duplicates are those in Delta, which has a row for each source record. Requests are counted by offsets: none may be
    the marker of a transaction.
    """
    topics, delta = settings.topics, settings.delta
    tables = {name: path for name in TABLES if DeltaTable.is_deltatable(path := getattr(delta, name))}
    unreadable: dict[str, int] = dict(run_query(_UNREADABLE, tables, {})) if "unreadable" in tables else {}
    sources = " UNION ALL ".join(_SOURCES.format(table=table) for table in _ANSWERS if table in tables)
    ((duplicates,),) = run_query(_DUPLICATES.format(sources=sources), tables, {})
    ((charges,),) = run_query("SELECT coalesce(sum(cardinality(charges)), 0) FROM decisions", tables, {})
    ((metered,),) = run_query("SELECT coalesce(sum(count), 0) FROM quota_metrics", tables, {})
    return Reconciliation(
        requests=stored(settings, topics.requests),
        decisions=stored(settings, topics.decisions) - unreadable.get(topics.decisions, 0),
        dead_letters=stored(settings, topics.dead_letters) - unreadable.get(topics.dead_letters, 0),
        duplicates=int(duplicates),
        decision_rows=rows(delta.decisions),
        dead_letter_rows=rows(delta.dead_letters),
        charges=int(charges),
        metered_charges=int(metered),
        different=0,
        simulated=False,
        unreadable=sum(unreadable.values()),
    )


_ANSWERS = ("decisions", "dead_letters")
_UNREADABLE = "SELECT topic, count(*) FROM unreadable GROUP BY topic"
_SOURCES = "SELECT source_partition, source_offset FROM {table}"
_DUPLICATES = """
SELECT coalesce(sum(times - 1), 0)
FROM (SELECT count(*) AS times FROM ({sources}) GROUP BY source_partition, source_offset)
"""


@dataclass(slots=True)
class _Answers:
    """The first answer to each request in a topic, and counts of all other records."""

    first: dict[_Place, Json] = field(default_factory=dict)
    copies: int = 0
    different_copies: int = 0
    others: int = 0
    fenced: int = 0


def _read_answers(settings: Settings, topic: str, unreadable: set[_Record]) -> _Answers:
    """The answers in a topic, by request. Records that the table `unreadable` has and epoch markers are left out."""
    found, fence = _Answers(), Fence()
    for record in records(settings, topic):
        if (topic, record.partition, record.offset) in unreadable:
            continue
        try:
            if not fence.passes_record(record):
                continue
        except (FarEpochError, ValueError, LookupError):  # a producer chooses the bytes of a header
            found.others += 1
            continue
        event = answered_event(record.value)
        if event is None:
            found.others += 1
            continue
        request, answer = (event.partition, event.offset), json.loads(record.value or b"")
        if request in found.first:
            found.copies += 1
            found.different_copies += found.first[request] != answer
        else:
            found.first[request] = answer
    found.fenced = fence.fenced
    return found


def _unreadable(path: str) -> set[_Record]:
    """The records in the table `unreadable`, if there is one."""
    if not DeltaTable.is_deltatable(path):
        return set()
    table = DeltaTable(path).to_pyarrow_table(columns=["topic", "partition", "offset"])
    return set(zip(*table.to_pydict().values(), strict=True))


def _different(settings: Settings, values: Iterable[bytes | None], decisions: Mapping[_Place, Json]) -> int:
    """Number of decisions that are missing, or differ from the simulated ones in more than time and id of the job."""
    quotas = Quotas(QuotasTable(settings.delta.quotas).entries(0))
    different = 0
    for record in Simulation(quotas, settings).decide(value or b"" for value in values):
        event = answered_event(record.value)
        if record.topic == settings.topics.decisions and event is not None:
            decision = decisions.get((event.partition, event.offset), {})
            different += {**json.loads(record.value or b""), **_BY_RUN} != {**decision, **_BY_RUN}
    return different
