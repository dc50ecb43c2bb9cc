"""The batched path of groups between Java and Python, as far as it needs no Java."""

import io
import pickle
import struct
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark.worker
import pytest
from pyspark.serializers import SpecialLengths, read_int
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StructField, StructType
from pyspark.util import PythonEvalType

from sluice.configs.settings import Properties, Settings, load_settings
from sluice.streaming.checkpoint.batch_log import Batch
from sluice.streaming.enforce.query import check_can_split
from sluice.streaming.errors import CheckpointError
from sluice.streaming.runtime.session import properties_of_workers
from sluice.streaming.workers.engine_start import are_batched
from sluice_native import batched
from sluice_native.batched import RELEASES, use_batched_groups
from sluice_native.batched_daemon import use_batched_workers
from sluice_native.contract import contract
from sluice_native.groups import Group, GroupResults

PYSPARK: Any = pyspark.worker
DAEMON = "spark.python.daemon.module"
WITH_STATE = PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE
OFFSETS = (4, 1, 0, 0, 1)
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


GIVEN: dict[str, Any] = {
    "4.2": lambda: io.BytesIO(struct.pack(">ii" + len(OFFSETS) * "ix" + "i8x", 1, len(OFFSETS), *OFFSETS, 1)),
    "4.3": lambda: [SimpleNamespace(udfs=[b""], args=OFFSETS)],
}
"""The arguments of each release's `read_udfs` for one function without its pickle, key column 0, and OFFSETS."""


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


def decide(
    release: str, function: Any, batches: list[Any], return_type: StructType = RETURN_TYPE
) -> tuple[int, list[Any]]:
    """The answer to Java for these batches: the marker of a stream, and the batches in it."""
    sent, received = io.BytesIO(), io.BytesIO()
    with pa.ipc.new_stream(sent, batches[0].schema) as writer:
        for one in batches:
            writer.write_batch(one)
    sent.seek(0)
    operator = SimpleNamespace(decide_groups=function)
    worker: Any = SimpleNamespace(read_udfs=None, read_command=lambda *_: (operator, return_type))
    use_batched_groups(worker, RELEASES[release])
    mapped, profiler, reader, stream = worker.read_udfs(None, GIVEN[release](), WITH_STATE, None, None)
    assert profiler is None
    stream.dump_stream(mapped(0, reader.load_stream(sent)), received)
    received.seek(0)
    return read_int(received), list(pa.ipc.open_stream(received))  # type: ignore[no-untyped-call] # PySpark's


@pytest.mark.parametrize("release", RELEASES)
def test_groups_go_to_the_function_with_all_their_rows_and_come_back_in_order(release: str) -> None:
    """Rows of a group may come in several batches. Rows and states that come back are filled up with nulls."""
    seen: list[Group] = []

    def function(groups: list[Group]) -> GroupResults:
        seen.extend(groups)
        return GroupResults([(len(groups),)], [(1, b"".join(group.rows)) for group in groups])

    first = batch(
        [1, 1, 2], [b"a", b"b", b"c"], [("one", pickle.dumps((1, b"old")), 0, 2, True), ("two", None, 2, 1, False)]
    )
    second = batch([2, 3], [b"d", b"e"], [("two", None, 0, 1, True), ("three", None, 1, 1, True)])
    marker, (answer,) = decide(release, function, [first, second])

    assert seen == [Group(1, (1, b"old"), [b"a", b"b"]), Group(2, None, [b"c", b"d"]), Group(3, None, [b"e"])]
    assert marker == SpecialLengths.START_ARROW_STREAM
    counts, rows, states = (column.to_pylist() for column in answer.columns)
    assert counts == [{"dataCount": 1, "stateCount": 3}] * 3
    assert rows == [{"n": 3}, {"n": None}, {"n": None}]
    assert [state["keyRowAsUnsafe"] for state in states] == [b"one", b"two", b"three"]
    assert [pickle.loads(state["object"]) for state in states] == [(1, b"ab"), (1, b"cd"), (1, b"e")]  # noqa: S301 - our own
    assert {state["oldTimeoutTimestamp"] for state in states} == {-1}


@pytest.mark.parametrize("release", RELEASES)
def test_lists_of_rows_may_be_arrays_of_arrow_and_come_out_as_lists_do(release: str) -> None:
    """Slices of arrays with nulls, an empty one, and lists beside them; more states than rows, so nulls at the end."""
    lists: list[Any] = [[b"a", None, b"ccc"], [], [b"d"], [None]]
    array = pa.array([b"x", *lists[0], b"y"], pa.binary())[1:4]
    arrays = [array, array[:0], lists[2], pa.array(lists[3], pa.binary())]
    groups = batch([*range(6)], [b"p"] * 6, [(str(n), None, n, 1, True) for n in range(6)])

    def answer(column: list[Any]) -> Any:
        decided = GroupResults([(of,) for of in column], [(1, b"")] * 6)
        return decide(release, lambda *_: decided, [groups], StructType([StructField("l", ArrayType(BinaryType()))]))[1]

    assert answer(arrays)[0].column(1).to_pylist() == [{"l": one} for one in [*lists, None, None]]
    assert answer(arrays)[0].schema == answer(lists)[0].schema


@pytest.fixture
def untried() -> Iterator[None]:
    """The contract is tried anew, also after the test."""
    contract.cache_clear()
    yield
    contract.cache_clear()


@pytest.mark.usefixtures("untried")
def test_java_gets_the_same_from_this_release_of_pyspark_by_both_paths() -> None:
    own = PYSPARK.read_udfs

    assert contract()[1] is None
    assert are_batched(wanted=True)
    assert not are_batched(wanted=False)
    assert PYSPARK.read_udfs is own


def test_a_pending_split_of_pages_needs_batched_workers_and_the_start_says_so() -> None:
    """The micro-batch would fail at each attempt. One that splits nothing needs none."""
    settings = with_pages(256, batched=False)
    splits = Batch(7, 0, 1_000, pages=512, pages_before=256)
    with pytest.raises(
        CheckpointError, match=r"micro-batch 7, .* splits 256 pages into 512, .*; set enforce.batched_w"
    ):
        check_can_split(splits, settings)
    with pytest.raises(CheckpointError, match="splits 256 pages into 512"):
        check_can_split(replace(splits, pages_before=0), settings)

    check_can_split(splits, with_pages(256, batched=True))
    for batch in (Batch(-1, -1, -1), replace(splits, pages_before=512), Batch(7, 0, 1_000, pages=256)):
        check_can_split(batch, settings)


def with_pages(pages: int, batched: bool) -> Settings:
    settings = load_settings(environment={})
    enforce = replace(settings.enforce, batched_workers=batched)
    return replace(settings, enforce=enforce, state=replace(settings.state, pages=pages))


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("module", "name", "other", "reason"),
    [
        (batched, "_NO_TIMEOUT", 0, "Java would get other rows or states"),
        (batched, "_GROUPS", "many", "ValueError: Stop argument"),
        (PYSPARK, "read_udfs", lambda *_: None, "TypeError: cannot unpack"),
    ],
)
def test_a_release_with_another_contract_keeps_its_own_path(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, other: object, reason: str
) -> None:
    """PySpark changes its part; here ours is changed in some cases, which comes to the same."""
    monkeypatch.setattr(module, name, other)

    assert f": {reason}" in str(contract()[1])
    assert not are_batched(wanted=True)


@pytest.mark.usefixtures("untried")
def test_a_release_without_the_path_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(PYSPARK, "read_udfs")

    assert str(contract()[1]).count("no attribute 'read_udfs'") == len(RELEASES)
    assert not hasattr(PYSPARK, "read_udfs")


@pytest.mark.usefixtures("untried")
def test_a_daemon_whose_workers_are_not_batched_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On an executor, whose PySpark may be another one than the driver's."""
    monkeypatch.setattr(batched, "_NO_TIMEOUT", 0)
    own = PYSPARK.read_udfs

    use_batched_workers()

    assert PYSPARK.read_udfs is own
    said = capsys.readouterr().err
    assert said.startswith(
        "sluice: workers are PySpark's own, slower with many pages: each takes 0.9 ms, not 0.1 ms (as "
    )
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("wanted", "fits", "master", "module"),
    [
        (True, True, "local[2]", "sluice_native.batched_daemon"),
        (True, True, "spark://host:7077", "sluice_native.batched_daemon"),
        (False, True, "local[2]", "sluice_native.daemon"),
        (True, False, "local[2]", "sluice_native.daemon"),
        (False, True, "spark://host:7077", None),
    ],
)
def test_the_daemon_is_batched_if_that_is_wanted_and_possible(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, fits: bool, master: str, module: str | None
) -> None:
    settings = load_settings(environment={})
    monkeypatch.setattr("sluice_native.engine.contract", lambda: (None, None if fits else "other rows"))
    enforce = replace(settings.enforce, batched_workers=wanted)

    properties = properties_of_workers(replace(settings, enforce=enforce, spark=Properties({"spark.master": master})))

    assert properties.get(DAEMON) == module
