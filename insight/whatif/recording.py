"""The recorded decisions of a span, out of the Delta table `decisions`, in the order in which they were decided.

Clients whose charges never meet on one counter can be replayed apart, in several processes.
"""

import heapq
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from numpy.typing import NDArray

from sluice.insight.errors import EarlierTableError, NoTableError, RecordingError
from sluice.insight.reports.recorded_waits import WaitEnds, distinct, longest_waits_ms
from sluice.insight.reports.span import Span
from sluice.insight.whatif.metering import Batch, Lane
from sluice.insight.whatif.replay import Recorded
from sluice.insight.whatif.whose import Part
from sluice.sinks.errors import storage_reason
from sluice.state.contract.records import HEARTBEAT_API, UNMUTE_API, Mutation, Request, TopicPartition, Verdict
from sluice.state.decisions.charge_plan import MUTATION_APIS, planned_api
from sluice.state.quotas.entry import QuotaEntry

ORDER = ("decided_at_ms", "source_partition", "source_offset", "timestamp_ms")
COLUMNS = (*ORDER, "user", "client_id", "api", "instance", "verdict", "throttle_time_ms", "throttled_by", "amounts")

_MAX_ROWS = 200_000
"""Rows of a file from which its row groups are read one by one."""

_BATCH_ROWS = 20_000
"""Rows that are made requests at once."""

_NO_REQUESTS = (HEARTBEAT_API, UNMUTE_API)

_FIRST = f"min.{ORDER[0]}"
"""Name of that column's least value in a file, in the table's log."""

Integers = NDArray[np.int64]
Chosen = Callable[[pa.Table], pa.Array]
"""Flags for the wanted rows of a table."""


class Recording:
    """The decisions of a span. The row groups that overlap in time are in memory together, and no others."""

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, str],
        span: Span,
        chosen: Chosen | None = None,
        ends: WaitEnds | None = None,
    ) -> None:
        """Open the table at `path`; of its rows only those that `chosen` flags. Raises RecordingError, NoTableError."""
        self.rows = 0
        self.without_amounts = 0
        self._ends = ends or WaitEnds()
        self._path, self._span, self._chosen = path, span, chosen
        try:
            table = DeltaTable(path, storage_options=dict(storage_options))
            self._dataset: Any = table.to_pyarrow_dataset()
            files = pa.table(table.get_add_actions(flatten=True)).select(["path", "num_records", _FIRST])
            lacking = [name for name in COLUMNS if name not in self._dataset.schema.names]
        except TableNotFoundError:
            raise NoTableError(f"decisions ({path})") from None
        except (DeltaError, OSError, ValueError, KeyError) as error:
            raise self._unreadable(error) from error
        if lacking:
            raise EarlierTableError("decisions", path, lacking[0])
        self._files = {row["path"]: row for row in files.to_pylist()}

    def __iter__(self) -> Iterator[Recorded]:
        """Each request, in the order in which the job decided it. Raises RecordingError."""
        for rows in self._slices(_BATCH_ROWS):
            yield from _requests(rows, self._ends)

    def batches(self) -> Iterator[Batch]:
        """The same, many at once. Raises RecordingError."""
        return (batch_of(rows, self._ends) for rows in self._slices(_MAX_ROWS))

    def _slices(self, most: int) -> Iterator[pa.Table]:
        """Tables of rows, in order, each of one chunk."""
        try:
            for table in self._in_order():
                for start in range(0, table.num_rows, most):
                    rows = table.slice(start, most).combine_chunks()
                    self.rows += rows.num_rows
                    self.without_amounts += rows["amounts"].null_count
                    yield rows
        except (pa.ArrowException, DeltaError, OSError) as error:
            raise self._unreadable(error) from error

    def _in_order(self) -> Iterator[pa.Table]:
        """Tables of rows, in order, each micro-batch whole: the rows before every row that isn't read yet."""
        kept: pa.Table | None = None
        for fragment, next_ms in self._fragments():
            read = self._read(fragment)
            ready, kept = _divided(read if kept is None else pa.concat_tables([kept, read]), next_ms)
            del read  # row groups are large: none is kept while its rows are replayed
            if ready.num_rows:
                yield _in_decided_order(ready)

    def _fragments(self) -> Iterator[tuple[Any, int | None]]:
        """Files and row groups by their first micro-batch, each with that of the next one."""
        due: list[tuple[int, int, Any, bool]] = []
        numbers = iter(range(2**62))

        def add(first_ms: int | None, fragment: Any, whole: bool) -> None:
            heapq.heappush(due, (first_ms or 0, next(numbers), fragment, whole))

        for fragment in self._dataset.get_fragments(filter=_within(self._span)):
            known = self._files.get(fragment.path, {})
            add(known.get(_FIRST), fragment, (known.get("num_records") or _MAX_ROWS) < _MAX_ROWS)
        while due:
            first_ms, _, fragment, whole = heapq.heappop(due)
            if not whole:
                for group in fragment.split_by_row_group(filter=_within(self._span), schema=self._dataset.schema):
                    statistics = group.row_groups[0].statistics or {}
                    add(statistics.get(ORDER[0], {}).get("min", first_ms), group, True)
                continue
            yield fragment, due[0][0] if due else None

    def _read(self, fragment: Any) -> pa.Table:
        table = fragment.to_table(schema=self._dataset.schema, columns=list(COLUMNS), filter=_within(self._span))
        return table if self._chosen is None or not table.num_rows else table.filter(self._chosen(table))

    def _unreadable(self, error: Exception) -> RecordingError:
        return RecordingError(f"the table {self._path} can't be read: {storage_reason(error)}")


def _divided(table: pa.Table, next_ms: int | None) -> tuple[pa.Table, pa.Table | None]:
    """The rows before a micro-batch, and the others; None stands for the end of all."""
    if next_ms is None:
        return table, None
    before = pc.less(table[ORDER[0]], next_ms)
    rest = table.filter(pc.invert(before))
    return table.filter(before), rest if rest.num_rows else None


def _in_decided_order(table: pa.Table) -> pa.Table:
    order = decided_order(*(table[name].to_numpy() for name in ORDER))
    return table if (order[1:] > order[:-1]).all() else table.take(pa.array(order))


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


def _within(span: Span) -> Any:
    time_ms, api = ds.field("timestamp_ms"), ds.field("api")
    return (time_ms >= span.start_ms) & (time_ms < span.end_ms) & ~api.isin(_NO_REQUESTS)


def _requests(table: pa.Table, ends: WaitEnds) -> Iterator[Recorded]:
    """The requests of a few rows, of one chunk."""
    columns, said = _columns(table)
    times_ms = columns["timestamp_ms"].to_pylist()
    values: dict[str, list[Any]] = {name: _names(columns[name]) for name in ("api", "user", "client_id")}
    values |= {name: _plain(said[name], default) for name, default in _PLAIN.items() if _has_any(said, name)}
    for name, made in (("topic_partitions", TopicPartition), ("mutations", Mutation)):
        if _has_any(said, name):
            values[name] = _entries(said[name], made)
    waits_ms = _waits_ms(columns)
    users, client_ids = ([name or "" for name in values[part]] for part in ("user", "client_id"))
    waits_ms = ends.left_of_each_ms(users, client_ids, columns["timestamp_ms"].to_numpy(), waits_ms)
    lanes = [f"{api}|{instance}" for api, instance in zip(values["api"], _names(columns["instance"]), strict=True)]
    refused = pc.equal(columns["verdict"], str(Verdict.REJECT)).to_pylist()
    names = tuple(values)
    for time_ms, wait_ms, was_refused, lane, row in zip(
        times_ms, waits_ms.tolist(), refused, lanes, zip(*values.values(), strict=True), strict=True
    ):
        yield Recorded(time_ms, Request(**dict(zip(names, row, strict=True))), wait_ms, was_refused, lane)


def batch_of(table: pa.Table, ends: WaitEnds) -> Batch:
    """The requests of rows of one chunk, by column."""
    columns, said = _columns(table)
    names, lanes_of = distinct(pa.table({name: pc.fill_null(table[name], "") for name in Lane._fields}), Lane._fields)
    lanes = [Lane(*lane) for lane in names]
    times_ms, waits_ms = columns["timestamp_ms"].to_numpy(), _waits_ms(columns)
    for number, lane in enumerate(lanes):
        if ends.any_of(lane.user, lane.client_id):
            rows = np.flatnonzero(lanes_of == number)
            waits_ms[rows] = ends.left_ms(lane.user, lane.client_id, times_ms[rows], waits_ms[rows])
    numbers = {name: _numbers(said[name]) if name in said else np.zeros(len(table), np.int64) for name in _NUMBERS}
    has = {name: _is_valid(said[name]) if name in said else np.zeros(len(table), np.bool_) for name in _NUMBERS}
    sums = {name: _sums(said[name], field) for name, field in _LISTS.items()}
    oldest = np.array([MUTATION_APIS.get(lane.api, 0) for lane in lanes], np.int64)[lanes_of]
    has_partitions = sums["topic_partitions"][1] > 0
    flags = [
        (oldest > 0) & (~has["api_version"] | (numbers["api_version"] >= oldest)),
        *(numbers[name] != 0 for name in _FLAGS),
        np.where(has["bytes"], (numbers["bytes"] > 0) | ~has_partitions, has_partitions),  # `has_client_bytes`
        sums["mutations"][1] > 0,
        has["mutations_charged"],
        has["request_time_ns"] | has["network_time_ns"],
    ]
    codes = lanes_of.astype(np.int64)
    for flag in flags:
        codes = 2 * codes + flag
    kinds, first, traits_of = np.unique(codes, return_index=True, return_inverse=True)
    traits = [
        (lanes[lane].user, lanes[lane].client_id, planned_api(lanes[lane].api), *(bool(flag[row]) for flag in flags))
        for lane, row in zip((kinds >> len(flags)).tolist(), first.tolist(), strict=True)
    ]
    return Batch(
        times_ms,
        waits_ms,
        pc.equal(columns["verdict"], str(Verdict.REJECT)).fill_null(False).to_numpy(zero_copy_only=False),
        np.where(has["requests"], numbers["requests"], 1),
        lanes,
        lanes_of,
        traits,
        traits_of,
        np.where(has["bytes"], numbers["bytes"], sums["topic_partitions"][0]),
        numbers["request_time_ns"],
        numbers["network_time_ns"],
        np.where(has["mutations_charged"], numbers["mutations_charged"], sums["mutations"][0]),
    )


_FLAGS = ("validate_only", "cluster_action", "authenticating", "withheld")
"""The flags of `amounts`, in the order of a request's traits."""

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


def _columns(table: pa.Table) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
    """The columns of a table of one chunk, and the fields of its `amounts`."""
    batch = table.to_batches()[0]
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    amounts = columns["amounts"]
    return columns, {field.name: part for field, part in zip(amounts.type, amounts.flatten(), strict=True)}


def _waits_ms(columns: Mapping[str, pa.Array]) -> Integers:
    decided_ms = columns["throttle_time_ms"].fill_null(0).to_numpy(zero_copy_only=False)
    return longest_waits_ms(columns["throttled_by"], decided_ms)


def _numbers(column: pa.Array) -> Integers:
    numbers: Integers = column.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers


def _is_valid(column: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _sums(lists: pa.Array, field: str) -> tuple[Integers, Integers]:
    """The sum of a field of the items of each of n lists, and their number: (n,) each."""
    lengths = _numbers(pc.list_value_length(lists))
    ends = np.cumsum(lengths)
    sums = np.concatenate([[0], np.cumsum(_numbers(lists.flatten().field(field)))])
    return sums[ends] - sums[ends - lengths], lengths


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


def _has_any(said: Mapping[str, pa.Array], name: str) -> bool:
    return name in said and said[name].null_count < len(said[name])


def _names(column: pa.Array) -> list[str | None]:
    """The names of a column, each made once: clients have many rows."""
    encoded = column.dictionary_encode()
    names = [*encoded.dictionary.to_pylist(), None]
    return [names[index] for index in encoded.indices.fill_null(len(names) - 1).to_pylist()]


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

    def chosen(table: pa.Table) -> pa.Array:
        names = table[part.value].combine_chunks().fill_null("").dictionary_encode()
        return pa.array([is_chosen(name) for name in names.dictionary.to_pylist()], pa.bool_()).take(names.indices)

    return chosen
