"""Workers that hand many groups of `applyInPandasWithState` to their function at once.

PySpark's own workers make one pandas frame of the rows of each group and one of its state, and concatenate all of them,
which takes ten times as long as what Spark does for a group. Here a batch of groups goes from Arrow to lists and back.
The function is the same: PySpark calls it with the frames of one group, batched workers with `Groups`.

`use_batched_groups` replaces two names in `pyspark.worker`: the serializer, which reads groups from Java and writes
rows and states back, and the wrapper of the function. Their arguments and Java's format change from release to release:
`contract` tries both paths before.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from sluice.streaming.workers.groups import Decided, Group, Groups

if TYPE_CHECKING:
    import pyarrow as pa

_GROUPS = 4096
"""Groups given to the function at once: the cost of a call is nothing then, and memory stays bounded.

As many as `sluice.streaming.checkpoint.origin.MOST_SPLIT_PAGES`: a micro-batch that splits pages needs all of a task.
"""

_UPDATED = (
    '{"optionalValue": null, "batchProcessingTimeMs": 0, "eventTimeWatermarkMs": -1, "timeoutConf": "NoTimeout",'
    ' "hasTimedOut": false, "watermarkPresent": false, "defined": true, "updated": true, "removed": false,'
    ' "timeoutTimestamp": -1}'
)
"""The state that was given a value, as Java reads it; `GroupState.json` writes the same."""

_NO_TIMEOUT = -1


def use_batched_groups(worker: Any) -> None:
    """Replace the path of groups in the module `pyspark.worker` of this process.

    Raises AttributeError if it has no such path. `contract` tells whether the new one fits.
    """
    worker.ApplyInPandasWithStateSerializer = _batched_serializer(worker.ApplyInPandasWithStateSerializer)
    worker.wrap_grouped_map_pandas_udf_with_state = _wrap


class _Stored(NamedTuple):
    """The groups of a call as Java wants them back: the bytes of each key, and the value of each state as it was."""

    keys: list[bytes]
    values: list[tuple[Any, ...] | None]


def _wrap(function: Callable[[tuple[()], Groups, None], Decided], return_type: Any, _: object) -> Callable[..., Any]:
    """In place of PySpark's wrapper: called with columns of groups, whose elements are the rows of one group.

    PySpark gives it the key columns, an iterator over lists of all columns, here of one, and what `load_stream` gave as
    state.
    """

    def decide(keys: list[Any], columns: Iterator[list[Any]], stored: _Stored) -> Any:
        rows = next(columns)[-1]
        groups = Groups(Group(of[0], state, own) for of, state, own in zip(keys[0], stored.values, rows, strict=True))
        return function((), groups, None), stored.keys, return_type

    return decide


def _batched_serializer(base: type) -> type:
    """The serializer, as a class below PySpark's own, whose constructor and Arrow types it uses."""

    class BatchedGroupsSerializer(base):  # type: ignore[misc] # the class is PySpark's, found at run time
        def load_stream(self, stream: IO[bytes]) -> Iterator[tuple[Any, _Stored]]:
            groups = _groups(_record_batches(stream))
            while some := list(islice(groups, _GROUPS)):
                infos, rows = zip(*some, strict=True)
                columns = [list(column) for column in zip(*rows, strict=True)]
                stored = _Stored([key for key, _ in infos], [value and pickle.loads(value) for _, value in infos])  # noqa: S301 - Spark's own bytes
                yield iter([(columns, None)]), stored

        def dump_stream(self, iterator: Iterable[Any], stream: IO[bytes]) -> None:
            import pyarrow as pa
            from pyspark.serializers import SpecialLengths, write_int

            writer = None
            types = (self.result_count_pdf_arrow_type, self.result_state_pdf_arrow_type)
            for decided, keys, return_type in iterator:
                batch = _record_batch(decided, keys, return_type, *types)
                if writer is None:
                    write_int(SpecialLengths.START_ARROW_STREAM, stream)  # type: ignore[no-untyped-call] # PySpark's
                    writer = pa.RecordBatchStreamWriter(stream, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()

    return BatchedGroupsSerializer


def _record_batches(stream: IO[bytes]) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa  # in a worker only: the daemon must not start its threads

    yield from pa.ipc.open_stream(stream)


_Info = tuple[bytes, bytes | None]
"""The bytes of a group's key, and of its state's value."""


def _groups(batches: Iterable["pa.RecordBatch"]) -> Iterator[tuple[_Info, list[list[Any]]]]:
    """Each group with its rows by column; rows of one group may come in several batches, one after another."""
    started: tuple[_Info, list[list[Any]]] | None = None
    for batch in batches:
        *data, infos = (column.to_pylist() for column in batch.columns)
        for info in infos:
            if info is None:  # the column is as long as those of the data
                break
            first, last = info["startOffset"], info["startOffset"] + info["numRows"]
            rows = [column[first:last] for column in data]
            if started is None:
                started = (info["keyRowAsUnsafe"], info["object"] or None), rows
            else:
                for column, more in zip(started[1], rows, strict=True):
                    column += more
            if info["isLastChunk"]:
                yield started
                started = None


def _record_batch(decided: Decided, keys: list[bytes], return_type: Any, count_type: Any, state_type: Any) -> Any:
    """The batch that Java expects: columns of counts, of rows and of states, the shorter ones filled up with nulls."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    rows, states = len(decided.rows), len(decided.states)
    length = max(1, rows, states)
    counts = pa.StructArray.from_arrays(
        [pa.array([number] * length, field.type) for number, field in zip((rows, states), count_type, strict=True)],
        fields=list(count_type),
    )
    values = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for value in decided.states]
    columns = ([_UPDATED] * states, keys, values, [_NO_TIMEOUT] * states)
    state = _filled_struct(columns, state_type, length)
    data = _filled_struct(
        [list(column) for column in zip(*decided.rows, strict=True)], to_arrow_type(return_type), length
    )
    return pa.RecordBatch.from_arrays([counts, data, state], names=["_0", "_1", "_2"])


def _filled_struct(columns: Sequence[list[Any]], kind: Any, length: int) -> Any:
    """A struct array of these columns, none for no rows, filled up with nulls to a length."""
    import pyarrow as pa

    columns = columns or [[] for _ in kind]
    arrays = [_filled(column, field.type, length) for column, field in zip(columns, kind, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _filled(column: list[Any], kind: Any, length: int) -> Any:
    """An array of a column, whose lists may be Arrow's arrays, filled up with nulls to a length."""
    import pyarrow as pa

    nulls = [None] * (length - len(column))
    if not pa.types.is_list(kind):
        return pa.array(column + nulls, kind)
    arrays = [value if isinstance(value, pa.Array) else _array(value, kind.value_type) for value in column]
    *starts, end = accumulate(map(len, arrays), initial=0)
    whole = pa.concat_arrays(arrays) if arrays else pa.array([], kind.value_type)
    return pa.ListArray.from_arrays(pa.array([*starts, *nulls, end], pa.int32()), whole, kind)


def _array(values: list[Any], kind: Any) -> Any:
    """An array of values. Arrow copies long ones again and again while it is built of them; here they are joined."""
    import pyarrow as pa

    if kind != pa.binary() or None in values:
        return pa.array(values, kind)
    ends = pa.array(accumulate(map(len, values), initial=0), pa.int32())
    data = values[0] if len(values) == 1 else b"".join(values)
    return pa.Array.from_buffers(kind, len(values), [None, ends.buffers()[1], pa.py_buffer(data)])
