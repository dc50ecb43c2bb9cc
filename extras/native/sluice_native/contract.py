"""The contract that batched workers have with PySpark, tried before they are used: Java gets the same from both.

Patch releases of PySpark keep it, and a minor release may break it: nothing but a trial says so.
"""

import json
import pickle
from collections.abc import Iterable, Iterator
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

from sluice_native.batched import RELEASES, Release, use_batched_groups
from sluice_native.groups import Group

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

_ROWS = (("a", "bc"), ("d",))
"""The rows of two groups, whose keys are 0 and 1. Those of the first come in two batches."""

_STATE = (7, "old")
"""The state of the second group; the first one has none yet."""

_OFFSETS = (4, 1, 0, 0, 1)
"""Four numbers follow: one key, which is column 0, and values from columns 0 and 1."""

_PROPERTIES: dict[str, object] = {
    "optionalValue": None,
    "batchProcessingTimeMs": 0,
    "eventTimeWatermarkMs": -1,
    "timeoutConf": "NoTimeout",
    "hasTimedOut": False,
    "watermarkPresent": False,
    "updated": False,
    "removed": False,
    "timeoutTimestamp": -1,
}


@cache
def contract() -> tuple[Release | None, str | None]:
    """The release whose contract this PySpark keeps, or the reason why it keeps none. Takes some milliseconds."""
    reasons = []
    for name, release in RELEASES.items():
        if (reason := _difference(release)) is None:
            return release, None
        reasons.append(f"as {name}: {reason}")
    return None, f"each takes 0.9 ms, not 0.1 ms ({'; '.join(reasons)})"


def _difference(release: Release) -> str | None:
    """The reason why groups can't be batched with this PySpark by the contract of a release."""
    import pyspark.worker as worker

    before = dict(vars(worker))
    try:
        own = _answer(worker, release)
        use_batched_groups(worker, release)
        same = own == _answer(worker, release)
    except Exception as error:  # of any class: names, arguments and formats are PySpark's own
        return f"{type(error).__name__}: {error}"
    finally:
        vars(worker).update(before)
    return None if same else "Java would get other rows or states"


class Append:
    """A function for both paths: a row for each row, and a state of all rows after the state before."""

    def __call__(
        self, key: tuple[int], frames: "Iterator[pd.DataFrame]", state: "GroupState"
    ) -> "Iterator[pd.DataFrame]":
        """The rows of one group."""
        import pandas as pd

        texts = [text for frame in frames for text in frame["text"]]
        state.update(_appended(state.get if state.exists else None, texts))
        return iter([pd.DataFrame({"text": texts, "number": list(key) * len(texts)})])

    def decide_groups(self, groups: Iterable[Group]) -> tuple[list[tuple[str, int]], list[tuple[int, str]]]:
        """The rows and states of many groups."""
        groups = list(groups)
        rows = [(text, group.key) for group in groups for text in group.rows]
        return rows, [_appended(group.state, group.rows) for group in groups]


def _appended(state: tuple[Any, ...] | None, texts: list[str]) -> tuple[int, str]:
    number, text = state or (0, "")
    return number + len(texts), text + "".join(texts)


def _answer(worker: Any, release: Release) -> tuple[list[Any], list[Any]]:
    import pyarrow as pa
    from pyspark.util import PythonEvalType

    function, _, deserializer, serializer = worker.read_udfs(
        worker.pickleSer,
        release.given(_command()),
        PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE,
        worker.RunnerConf(),
        worker.EvalConf(_state_schema()),
    )
    received = BytesIO()
    serializer.dump_stream(function(0, deserializer.load_stream(_groups())), received)
    received.seek(len(_int(0)))  # after the marker of a stream
    rows: list[Any] = []
    states: list[Any] = []
    for counts, data, state in (
        [column.to_pylist() for column in batch.columns] for batch in pa.ipc.open_stream(received)
    ):
        rows += data[: counts[0]["dataCount"]]
        states += [_stored(one) for one in state[: counts[0]["stateCount"]]]
    return rows, states


def _stored(state: dict[str, Any]) -> dict[str, Any]:
    """A state as Java stores it, its texts and bytes decoded."""
    return state | {"properties": json.loads(state["properties"]), "object": tuple(pickle.loads(state["object"]))}  # noqa: S301 - our own


def _command() -> BytesIO:
    """The function as Java sends it: columns, which have no names, pickled function and type of its rows, and an id."""
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    rows = StructType([StructField("text", StringType()), StructField("number", IntegerType())])
    columns = b"".join(_int(offset) + b"\0" for offset in _OFFSETS)
    function = _int(1) + _with_length(pickle.dumps((Append(), rows)))
    return BytesIO(_int(1) + _int(len(_OFFSETS)) + columns + function + bytes(8))


def _state_schema() -> BytesIO:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    state = StructType([StructField("number", LongType()), StructField("text", StringType())])
    return BytesIO(_int(1) + _with_length(b"state_value_schema") + _with_length(state.json().encode()))


def _int(number: int) -> bytes:
    return number.to_bytes(4)


def _with_length(text: bytes) -> bytes:
    return _int(len(text)) + text


def _groups() -> BytesIO:
    """Two batches, as Java sends them: rows of both groups, and a column of states, filled up with nulls."""
    import pyarrow as pa

    def state(group: int, first: int, rows: int, *, last: bool) -> dict[str, Any]:
        known = group == 1
        info = {"properties": json.dumps(_PROPERTIES | {"defined": known}), "keyRowAsUnsafe": bytes([group])}
        stored = pickle.dumps(_STATE) if known else None
        return info | {"object": stored, "startOffset": first, "numRows": rows, "isLastChunk": last}

    ((one, two), (three,)) = _ROWS
    kinds = [("properties", pa.string()), ("keyRowAsUnsafe", pa.binary()), ("object", pa.binary())]
    kinds += [("startOffset", pa.int32()), ("numRows", pa.int32()), ("isLastChunk", pa.bool_())]
    schema = pa.schema([("key", pa.int32()), ("text", pa.string()), ("state", pa.struct(kinds))])
    batches = [
        ([0], [one], [state(0, 0, 1, last=False)]),
        ([0, 1], [two, three], [state(0, 0, 1, last=True), state(1, 1, 1, last=True)]),
    ]
    stream = BytesIO()
    with pa.ipc.new_stream(stream, schema) as writer:
        for columns in batches:
            writer.write_batch(pa.record_batch(list(columns), schema=schema))
    stream.seek(0)
    return stream
