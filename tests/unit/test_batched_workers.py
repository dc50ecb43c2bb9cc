"""The batched path of groups between Java and Python, as far as it needs no Java."""

import io
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark.worker
import pytest
from pyspark.serializers import SpecialLengths, read_int
from pyspark.sql.pandas.serializers import ApplyInPandasWithStateSerializer
from pyspark.sql.types import IntegerType, StructField, StructType

from sluice.configs.settings import Properties, load_settings
from sluice.streaming.runtime.session import session_properties
from sluice.streaming.workers import batched
from sluice.streaming.workers.batched import PYSPARK_VERSION, Decided, Group, Groups, use_batched_groups

DAEMON = "spark.python.daemon.module"
RETURN_TYPE = StructType([StructField("n", IntegerType())])
INFO = pa.struct(
    [
        ("properties", pa.string()),
        ("keyRowAsUnsafe", pa.binary()),
        ("object", pa.binary()),
        ("startOffset", pa.int32()),
        ("numRows", pa.int32()),
        ("isLastChunk", pa.bool_()),
    ]
)


@pytest.fixture
def worker() -> Any:
    """The functions of the module `pyspark.worker` that are replaced."""
    original: Any = pyspark.worker
    found = SimpleNamespace(
        ApplyInPandasWithStateSerializer=original.ApplyInPandasWithStateSerializer,
        wrap_grouped_map_pandas_udf_with_state=original.wrap_grouped_map_pandas_udf_with_state,
    )
    use_batched_groups(found)
    return found


def serializer(worker: Any) -> Any:
    return worker.ApplyInPandasWithStateSerializer(
        timezone="UTC",
        safecheck=True,
        assign_cols_by_name=True,
        prefer_int_ext_dtype=False,
        state_object_schema=None,
        arrow_max_records_per_batch=100,
        prefers_large_var_types=False,
        int_to_decimal_coercion_enabled=False,
    )


def batch(keys: list[int], payloads: list[bytes], infos: list[tuple[str, bytes | None, int, int, bool]]) -> Any:
    """A batch as Java sends it: rows of several groups, and a state for each, filled up with nulls."""
    columns = [
        {"properties": "{}", "keyRowAsUnsafe": key.encode(), "object": state, "startOffset": first, "numRows": rows}
        | {"isLastChunk": last}
        for key, state, first, rows, last in infos
    ]
    padded = columns + [None] * (len(keys) - len(infos))
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int32()), pa.array(payloads, pa.binary()), pa.array(padded, INFO)], names=["k", "p", "state"]
    )


def decide(worker: Any, function: Any, batches: list[Any]) -> tuple[int, list[Any]]:
    """The answer to Java for these batches: the marker of a stream, and the batches in it."""
    sent, received = io.BytesIO(), io.BytesIO()
    with pa.ipc.new_stream(sent, batches[0].schema) as writer:
        for one in batches:
            writer.write_batch(one)
    sent.seek(0)
    wrapped, stream = worker.wrap_grouped_map_pandas_udf_with_state(function, RETURN_TYPE, None), serializer(worker)

    def mapped(of_groups: Any) -> Any:  # as in pyspark.worker, for key column 0 and value columns 0 and 1
        rows, state = of_groups
        (columns,) = (one for one, _ in rows)
        return wrapped([columns[0]], iter([columns]), state)

    stream.dump_stream(map(mapped, stream.load_stream(sent)), received)
    received.seek(0)
    return read_int(received), list(pa.ipc.open_stream(received))  # type: ignore[no-untyped-call] # PySpark's


def test_groups_go_to_the_function_with_all_their_rows_and_come_back_in_order(worker: Any) -> None:
    """Rows of a group may come in several batches. Rows and states that come back are filled up with nulls."""
    seen: list[Group] = []

    def function(_key: object, groups: Groups, _state: object) -> Decided:
        seen.extend(groups)
        return Decided([(len(groups),)], [(1, b"".join(group.rows)) for group in groups])

    first = batch(
        [1, 1, 2], [b"a", b"b", b"c"], [("one", pickle.dumps((1, b"old")), 0, 2, True), ("two", None, 2, 1, False)]
    )
    second = batch([2, 3], [b"d", b"e"], [("two", None, 0, 1, True), ("three", None, 1, 1, True)])
    marker, (answer,) = decide(worker, function, [first, second])

    assert seen == [Group(1, (1, b"old"), [b"a", b"b"]), Group(2, None, [b"c", b"d"]), Group(3, None, [b"e"])]
    assert marker == SpecialLengths.START_ARROW_STREAM
    counts, rows, states = (column.to_pylist() for column in answer.columns)
    assert counts == [{"dataCount": 1, "stateCount": 3}] * 3
    assert rows == [{"n": 3}, {"n": None}, {"n": None}]
    assert [state["keyRowAsUnsafe"] for state in states] == [b"one", b"two", b"three"]
    assert [pickle.loads(state["object"]) for state in states] == [(1, b"ab"), (1, b"cd"), (1, b"e")]  # noqa: S301 - our own
    assert {state["oldTimeoutTimestamp"] for state in states} == {-1}


def test_a_worker_process_that_is_used_again_is_replaced_once(worker: Any) -> None:
    """Else each task would put a class on top of the last one's."""
    before = worker.ApplyInPandasWithStateSerializer

    use_batched_groups(worker)

    assert worker.ApplyInPandasWithStateSerializer is before
    assert issubclass(before, ApplyInPandasWithStateSerializer)


def test_with_another_release_of_pyspark_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own path decides the same."""
    monkeypatch.setattr(batched, "version", lambda _: f"{PYSPARK_VERSION}.1")
    worker = SimpleNamespace(wrap_grouped_map_pandas_udf_with_state=None)

    use_batched_groups(worker)

    assert vars(worker) == {"wrap_grouped_map_pandas_udf_with_state": None}


@pytest.mark.parametrize(
    ("wanted", "installed", "master", "module"),
    [
        (True, PYSPARK_VERSION, "local[2]", "sluice.streaming.workers.batched_daemon"),
        (True, PYSPARK_VERSION, "spark://host:7077", "sluice.streaming.workers.batched_daemon"),
        (False, PYSPARK_VERSION, "local[2]", "sluice.streaming.workers.daemon"),
        (True, "4.3.0", "local[2]", "sluice.streaming.workers.daemon"),
        (False, PYSPARK_VERSION, "spark://host:7077", None),
    ],
)
def test_the_daemon_is_batched_if_that_is_wanted_and_possible(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, installed: str, master: str, module: str | None
) -> None:
    settings = load_settings(environment={})
    monkeypatch.setattr(batched, "version", lambda _: installed)
    enforce = replace(settings.enforce, batched_workers=wanted)

    properties = session_properties(replace(settings, enforce=enforce, spark=Properties({"spark.master": master})))

    assert properties.get(DAEMON) == module
