"""Workers that hand many groups of `applyInPandasWithState` to their function at once.

PySpark's own workers make one pandas frame of the rows of each group and one of its state, and concatenate all of them,
which takes ten times as long as what Spark does for a group. Here a batch of groups goes from Arrow to lists and back.
The function is the same: PySpark calls it with the frames of one group, batched workers its `decide_groups` with many.

`use_batched_groups` replaces `read_udfs` of `pyspark.worker`, which makes of what Java sends a function from batches to
batches. Its arguments change from release to release: `RELEASES` has those that are known, and `contract` tries
which one this PySpark is.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from sluice_native.groups import Group, GroupResults, Operator

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

_STATE = ("properties", "keyRowAsUnsafe", "object", "oldTimeoutTimestamp")


_Function = tuple[Operator, Any, Sequence[int]]
"""A function, the type of its rows, and the columns that it gets.

Those are how many numbers follow, how many of them are columns of the key, these, and the columns of the frames.
"""


class Release(NamedTuple):
    """The difference between releases of PySpark: `given` makes of Java's bytes the arguments of `read_udfs`."""

    given: Callable[[IO[bytes]], Any]
    function: Callable[[Any, Any, Any], _Function]


def _function_of_4_2(worker: Any, pickler: Any, stream: IO[bytes]) -> _Function:
    """The bytes themselves: one function, its columns, whose names are left out, itself by one pickle, and an id."""
    from pyspark import serializers

    read: Any = serializers.read_int
    flag: Any = serializers.read_bool
    read(stream)
    offsets = [(read(stream), flag(stream))[0] for _ in range(read(stream))]
    read(stream)
    call, returns = worker.read_command(pickler, stream)
    stream.read(8)
    return call, returns, offsets


def _given_in_4_3(stream: IO[bytes]) -> Any:
    from pyspark import serializers
    from pyspark.worker_message import UDFInfo  # type: ignore[import-not-found] # new in 4.3

    read: Any = serializers.read_int
    return [UDFInfo.from_stream(stream) for _ in range(read(stream))]


def _function_of_4_3(worker: Any, pickler: Any, functions: Any) -> _Function:
    """A list, whose only element has the pickled functions and their columns (SPARK-58189, SPARK-58243)."""
    (one,) = functions
    (command,) = one.udfs
    return *worker.read_command(pickler, command), one.args


RELEASES: Mapping[str, Release] = {
    "4.2": Release(lambda stream: stream, _function_of_4_2),
    "4.3": Release(_given_in_4_3, _function_of_4_3),
}
"""Each release with a contract of its own."""


def use_batched_groups(worker: Any, release: Release) -> None:
    """Replace the path of groups in the module `pyspark.worker` of this process.

    Raises AttributeError if it has no such path. `contract` tells whether the new one fits.
    """
    own = worker.read_udfs

    def read_udfs(pickler: Any, given: Any, kind: int, *confs: Any) -> Any:
        from pyspark.sql.pandas.serializers import ArrowStreamSerializer
        from pyspark.util import PythonEvalType

        if kind != PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE:
            return own(pickler, given, kind, *confs)
        function = release.function(worker, pickler, given)
        stream = ArrowStreamSerializer(write_start_stream=True)
        return lambda _, batches: decided_batches(function, batches), None, stream, stream

    worker.read_udfs = read_udfs


def decided_batches(function: _Function, batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """The batches for Java: what the function makes of some groups at once."""
    operator, returns, (_, _, key, *_, own) = function
    found = _groups(batches)
    while some := list(islice(found, _GROUPS)):
        groups = [
            Group(columns[key][0], pickle.loads(state) if state else None, columns[own])  # noqa: S301 - Spark's own bytes
            for (_, state), columns in some
        ]
        decided = GroupResults(*operator.decide_groups(groups))
        yield _record_batch(decided, [name for (name, _), _ in some], returns)


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


def _record_batch(decided: GroupResults, keys: list[bytes], return_type: Any) -> Any:
    """The batch that Java expects: columns of counts, of rows and of states, the shorter ones filled up with nulls."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    rows, states = len(decided.rows), len(decided.states)
    length = max(1, rows, states)
    numbers = [pa.array([number] * length, pa.int32()) for number in (rows, states)]
    counts = pa.StructArray.from_arrays(numbers, names=["dataCount", "stateCount"])
    values = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for value in decided.states]
    columns = ([_UPDATED] * states, keys, values, [_NO_TIMEOUT] * states)
    kinds = zip(_STATE, (pa.string(), pa.binary(), pa.binary(), pa.int64()), strict=True)
    state = _filled_struct(columns, pa.struct([*kinds]), length)
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
