"""The recorded decisions of a span, out of the Delta table `decisions`, in the order in which they were decided.

Clients whose charges never meet on one counter can be replayed apart, in several processes.
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.state.contract.records import Mutation, Request, TopicPartition, Verdict
from sluice.state.decisions.charge_plan import MUTATION_APIS
from sluice.state.decisions.plan_key import planned_api
from sluice.state.quotas.entry import QuotaEntry
from sluice_insight.arrays import Flags, Integers
from sluice_insight.reports.columns import coded, column_of, distinct, is_empty, is_valid, list_sums, numbers
from sluice_insight.reports.events import Events, FilePart, joined
from sluice_insight.reports.recorded_waits import LANE, client_waits_ms, wait_fields
from sluice_insight.reports.span import Span
from sluice_insight.waits import WaitEnds
from sluice_insight.whatif.metering import Batch, Lane, NamedKey
from sluice_insight.whatif.replay import Recorded
from sluice_insight.whatif.whose import Part

ORDER = ("decided_at_ms", "source_partition", "source_offset", "timestamp_ms")

_MAX_ROWS = 200_000
"""Rows that are charged at once."""

_BATCH_ROWS = 20_000
"""Rows that are made requests at once."""

Chosen = Callable[[pa.RecordBatch], Flags]
"""Flags for the wanted rows."""


class Recording:
    """The decisions of a span, and of `lead_ms` before. Of row groups those that overlap in time are in memory.

    `rows` are those of the span so far, `without_amounts` some of them, and `unknown` those of an unknown user, or
    client-id.
    """

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, str],
        span: Span,
        chosen: Chosen | None = None,
        ends: WaitEnds | None = None,
        lead_ms: int = 0,
    ) -> None:
        """Open the table at `path`; of its rows only those that `chosen` flags. Raises QueryError."""
        self.rows = 0
        self.without_amounts = 0
        self.unknown = dict.fromkeys(Part, 0)
        self._ends = ends or WaitEnds()
        self._start_ms = span.start_ms
        span = Span(span.start_ms - lead_ms, span.end_ms)
        fields = (*ORDER, *wait_fields(self._ends), "verdict", "amounts")
        self._events = Events(path, storage_options, span, fields)
        self._chosen = chosen

    @property
    def most_rows(self) -> int:
        """No fewer than it reads."""
        return self._events.most_rows

    def __iter__(self) -> Iterator[Recorded]:
        """Each request, in the order in which the job decided it. Raises QueryError."""
        for rows in self._slices(_BATCH_ROWS):
            yield from _requests(rows, self._ends)

    def batches(self) -> Iterator[Batch]:
        """The same, many at once. Raises QueryError."""
        return (batch_of(rows, self._ends) for rows in self._slices(_MAX_ROWS))

    def _slices(self, most: int) -> Iterator[pa.RecordBatch]:
        for batch in self._in_order():
            for start in range(0, batch.num_rows, most):
                rows = batch.slice(start, most)
                counts = numbers(rows["timestamp_ms"]) >= self._start_ms
                self.rows += int(counts.sum())
                self.without_amounts += int((counts & ~is_valid(rows["amounts"])).sum())
                for part in Part:
                    self.unknown[part] += int((counts & is_empty(rows[part.value])).sum())
                yield rows

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        """Rows, in order, each micro-batch whole: those before every row that isn't read yet."""
        kept: list[pa.RecordBatch] = []
        for part, next_ms in self._events.parts():
            kept += self._read(part)
            if kept:
                ready, kept = _divided(joined(kept), next_ms)
                if ready.num_rows:
                    yield _in_decided_order(ready)
        if kept:
            yield _in_decided_order(joined(kept))

    def _read(self, part: FilePart) -> Iterator[pa.RecordBatch]:
        for batch in self._events.read(part):
            yield batch if self._chosen is None else batch.filter(column_of(self._chosen(batch)))


def _divided(batch: pa.RecordBatch, next_ms: int | None) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """The rows before a micro-batch, and the others; None stands for the end of all."""
    before = numbers(batch[ORDER[0]]) < next_ms if next_ms is not None else np.ones(len(batch), np.bool_)
    return batch.filter(column_of(before)), [] if before.all() else [batch.filter(column_of(~before))]


def _in_decided_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    order = decided_order(*(numbers(batch[name]) for name in ORDER))
    return batch if (order[1:] > order[:-1]).all() else batch.take(column_of(order))


def decided_order(decided_at_ms: Integers, partitions: Integers, offsets: Integers, times_ms: Integers) -> Integers:
    """The positions of n rows in the order in which the job charged them: (n,) each -> (n,).

    Micro-batch by micro-batch, which `decided_at_ms` names; within one as `pipeline.in_charge_order` has it: a
    partition keeps its order, and partitions are merged by the newest event time seen in each.

    >>> decided_order(*(np.array(rows) for rows in ([9, 9, 5], [1, 0, 0], [3, 8, 7], [40, 50, 90]))).tolist()
    [2, 0, 1]
    """
    order: Integers = np.lexsort((offsets, partitions, decided_at_ms))
    ordered_ms, decided_ms, of_partition = times_ms[order], decided_at_ms[order], partitions[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (decided_ms[1:] != decided_ms[:-1]) | (of_partition[1:] != of_partition[:-1])
    groups = np.cumsum(begins)
    # The running maximum of each group: the groups are lifted above each other, so that one pass finds it in all.
    lift = groups * (int(times_ms.max()) - int(times_ms.min()) + 1)
    newest_ms = np.maximum.accumulate(ordered_ms + lift) - lift
    merged: Integers = order[np.lexsort((newest_ms, decided_ms))]
    return merged


def _requests(batch: pa.RecordBatch, ends: WaitEnds) -> Iterator[Recorded]:
    said, times_ms = _amounts(batch), numbers(batch["timestamp_ms"])
    values: dict[str, list[Any]] = {name: _names(batch[name]) for name in ("api", "user", "client_id", "instance")}
    values |= {name: _plain(said[name], default) for name, default in _PLAIN.items() if _has_any(said[name])}
    for name, made in (("topic_partitions", TopicPartition), ("mutations", Mutation)):
        if _has_any(said[name]):
            values[name] = _entries(said[name], made)
    waits_ms = client_waits_ms(batch, ends)
    lanes = [f"{api}|{instance}" for api, instance in zip(values["api"], values["instance"], strict=True)]
    names = tuple(values)
    for time_ms, wait_ms, was_refused, lane, row in zip(
        times_ms.tolist(),
        waits_ms.tolist(),
        _are_refused(batch).tolist(),
        lanes,
        zip(*values.values(), strict=True),
        strict=True,
    ):
        yield Recorded(time_ms, Request(**dict(zip(names, row, strict=True))), wait_ms, was_refused, lane)


def batch_of(rows: pa.RecordBatch, ends: WaitEnds) -> Batch:
    """The requests of rows, by column."""
    said, times_ms, waits_ms = _amounts(rows), numbers(rows["timestamp_ms"]), client_waits_ms(rows, ends)
    names, lanes_of = distinct(rows, LANE)
    lanes = [Lane(*lane) for lane in names]
    values = {name: numbers(said[name]) for name in _NUMBERS}
    has = {name: is_valid(said[name]) for name in _NUMBERS}
    sums = {name: list_sums(said[name], field) for name, field in _LISTS.items()}
    oldest = np.array([MUTATION_APIS.get(lane.api, 0) for lane in lanes], np.int64)[lanes_of]
    has_partitions = sums["topic_partitions"][1] > 0
    flags = [
        (oldest > 0) & (~has["api_version"] | (values["api_version"] >= oldest)),
        *(values[name] != 0 for name in _FLAGS),
        np.where(has["bytes"], (values["bytes"] > 0) | ~has_partitions, has_partitions),  # `has_client_bytes`
        sums["mutations"][1] > 0,
        has["mutations_charged"],
        has["request_time_ns"] | has["network_time_ns"],
        *(is_valid(rows[part.value]) for part in Part),
    ]
    codes = lanes_of.astype(np.int64)
    for flag in flags:
        codes = 2 * codes + flag
    kinds, first, keys_of = np.unique(codes, return_index=True, return_inverse=True)
    keys = [
        NamedKey((lane.user, lane.client_id, planned_api(lane.api), *of_row[:-2]), *of_row[-2:])
        for lane, of_row in (
            (lanes[place], [bool(flag[row]) for flag in flags])
            for place, row in zip((kinds >> len(flags)).tolist(), first.tolist(), strict=True)
        )
    ]
    return Batch(
        times_ms,
        waits_ms,
        _are_refused(rows),
        np.where(has["requests"], values["requests"], 1),
        lanes,
        lanes_of,
        keys,
        keys_of,
        np.where(has["bytes"], values["bytes"], sums["topic_partitions"][0]),
        values["request_time_ns"],
        values["network_time_ns"],
        np.where(has["mutations_charged"], values["mutations_charged"], sums["mutations"][0]),
    )


_FLAGS = ("validate_only", "cluster_action", "authenticating", "withheld")
"""The flags of `amounts`, in the order of a plan's key."""

_NUMBERS = (
    "bytes",
    "request_time_ns",
    "network_time_ns",
    "mutations_charged",
    "api_version",
    "requests",
    *_FLAGS,
)
_LISTS = {"topic_partitions": "bytes", "mutations": "partitions"}
"""The lists of `amounts`, and the field of their items that is summed up."""


def _amounts(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    amounts = rows["amounts"]
    return {field.name: part for field, part in zip(amounts.type, amounts.flatten(), strict=True)}


def _are_refused(rows: pa.RecordBatch) -> Flags:
    verdicts, verdict_of = coded(rows["verdict"])
    refused: Flags = np.array([verdict == Verdict.REJECT for verdict in verdicts])[verdict_of]
    return refused


_PLAIN: dict[str, Any] = {
    "bytes": None,
    "request_time_ns": None,
    "network_time_ns": None,
    "mutations_charged": None,
    "api_version": None,
    "validate_only": False,
    "cluster_action": False,
    "authenticating": False,
    "purgatory_ms": 0,
    "withheld": False,
    "requests": 1,
}
"""The single values of `amounts`, with what stands for one that is absent."""


def _has_any(column: pa.Array) -> bool:
    return bool(column.null_count < len(column))


def _names(column: pa.Array) -> list[str | None]:
    """The names of a column, each made once: clients have many rows."""
    texts, places = coded(column)
    names = [*texts[:-1], None]
    return [names[place] for place in places.tolist()]


def _plain(column: pa.Array, default: Any) -> list[Any]:
    values: list[Any] = (column if default is None else column.fill_null(default)).to_pylist()
    return values


def _entries(column: pa.Array, made: type) -> list[list[Any]]:
    """The structs of each row; none where the event said none."""
    parts = dict(zip((field.name for field in column.type.value_type), column.flatten().flatten(), strict=True))
    names = made.__struct_fields__  # type: ignore[attr-defined] # of msgspec's structs
    values = [_names(parts[name]) if name == "topic" else _plain(parts[name], 0) for name in names]
    entries = [made(*row) for row in zip(*values, strict=True)]
    lengths = pc.list_value_length(column).fill_null(0).to_pylist()
    found, start = [], 0
    for length in lengths:
        found.append(entries[start : start + length])
        start += length
    return found


def independent_by(entries: Iterable[QuotaEntry]) -> Part | None:
    """The part of a client that every counter with an enforced limit is kept for; None if there is none.

    Requests of two users share no counter if every limit is set on a user, or on a user and a client-id.

    >>> from sluice.state.quotas.entity import DEFAULT, QuotaEntity
    >>> from sluice.state.quotas.kinds import QuotaKind
    >>> def limits(*entities: QuotaEntity) -> list[QuotaEntry]:
    ...     return [QuotaEntry(entity, QuotaKind.PRODUCER_BYTE_RATE, 1.0) for entity in entities]
    >>> independent_by(limits(QuotaEntity(user=DEFAULT), QuotaEntity(user="alice", client_id="app"))).value
    'user'
    >>> independent_by(limits(QuotaEntity(client_id="app"))).value
    'client_id'
    >>> print(independent_by(limits(QuotaEntity(client_id="app"), QuotaEntity(user="alice"))))
    None
    """
    entities = [entry.entity for entry in entries if not entry.shadow and not entry.entity.is_member]
    if all(entity.user is not None for entity in entities):
        return Part.USER
    if all(entity.client_id is not None for entity in entities):
        return Part.CLIENT_ID
    return None


def rows_of(part: Part, share: int, shares: int, only: Collection[str] | None) -> Chosen:
    """Flags the rows whose `part` falls into this share of them, and is one of `only`; None stands for all names."""

    def is_chosen(name: str) -> bool:
        return (only is None or name in only) and zlib.crc32(name.encode()) % shares == share

    def chosen(rows: pa.RecordBatch) -> Flags:
        names, name_of = coded(rows[part.value])
        flags: Flags = np.array([is_chosen(name) for name in names])[name_of]
        return flags

    return chosen
