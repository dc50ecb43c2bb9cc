"""The events of a span, read out of those files of the table of decisions, and rows, that count by Delta's log."""

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties

from recorded import DECISIONS, START_MS, event, simulated, without, write_decisions
from sluice.sinks.tables.decisions import decisions_table
from sluice.sinks.tables.delta import create_table
from sluice.sinks.tables.overrides import OverridesTable
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.tenants import Tenants
from sluice_insight.reports.columns import numbers
from sluice_insight.reports.events import Events
from sluice_insight.reports.slo import slo
from sluice_insight.reports.span import By, Per, Span
from sluice_insight.reports.usage import usage
from sluice_insight.whatif.overrides import recorded_overrides
from sluice_insight.whatif.recording import Recording
from sluice_reading.errors import QueryError
from sluice_reading.query import Tables
from tests.builders import quota

AT = datetime(2026, 1, 1, tzinfo=UTC)
SPAN = Span(START_MS, START_MS + 600_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions"


def produced(*sizes: int, first_ms: int = 0) -> list[bytes]:
    return [event(first_ms + place, bytes=size) for place, size in enumerate(sizes)]


def bytes_in(path: Path) -> int:
    """The bytes of all reports, which agree."""
    tables = Tables(str(path), str(path.parent / "quotas"), {})
    found, _ = usage(tables, SPAN, By.USER, Per.SPAN, Tenants())
    replayed = [each.request.bytes or 0 for each in Recording(str(path), {}, SPAN)]
    ((summed, rows),) = tables.rows("SELECT sum(amounts['bytes']), count(*) FROM decisions")
    assert found["bytes_in"].to_pylist() == [summed] == [sum(replayed)]
    assert found["requests"].to_pylist() == [rows] == [len(replayed)]
    assert slo(tables, SPAN, 5, 10).clients == 1
    return int(summed)


def test_rows_that_a_compaction_has_written_again_count_once(path: Path) -> None:
    for number in range(3):
        write_decisions(path, simulated(produced(1, 2, first_ms=number * 1000), []))
    DeltaTable(str(path)).optimize.compact()

    assert len(list(path.rglob("*.parquet"))) == 4
    assert bytes_in(path) == 9


@pytest.mark.parametrize("most", [1, 1_000_000])
def test_rows_with_a_deletion_vector_dont_count(path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice_insight.reports.events.MAX_ROWS", most)
    write_decisions(path, simulated(produced(1, 2, 4, 8), []))
    delete(path, [0, 2])

    assert bytes_in(path) == 10


def test_other_tables_that_spark_has_deleted_rows_of_are_read_without_them(tmp_path: Path) -> None:
    """`DELETE` of Spark leaves the file and writes a deletion vector, where the table has that feature."""
    quotas, overrides = QuotasTable(str(tmp_path / "quotas")), OverridesTable(str(tmp_path / "overrides"), {})
    quotas.create([quota(QuotaKind.PRODUCER_BYTE_RATE, 1.0, user=user) for user in "abcd"], "carol", AT)
    overrides.append(("disks", Overrides(number, START_MS + number, 1_000, [])) for number in range(4))
    for table in ("quotas", "overrides"):
        delete(tmp_path / table, [0, 3])

    assert {entry.entity.user for entry in quotas.entries()} == {"b", "c"}
    assert [each.number for each in recorded_overrides(str(tmp_path / "overrides"), {}, SPAN)] == [1, 2]


@pytest.mark.parametrize("lacking", ["instance", "amounts.withheld"])
def test_a_file_of_an_earlier_release_has_nothing_where_the_table_has_a_new_column(path: Path, lacking: str) -> None:
    write_decisions(path, simulated(produced(1, 2), []), without(DECISIONS, lacking))
    create_table(decisions_table(str(path)), {})
    write_decisions(path, simulated(produced(4, first_ms=1000), []))

    assert bytes_in(path) == 7


@pytest.mark.parametrize("most", [1, 1_000_000])
def test_files_of_several_row_groups_are_read_whole_and_in_order(
    path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_insight.reports.events.MAX_ROWS", most)
    decided = [
        answer | {"decided_at_ms": START_MS + number // 2 * 1000}
        for number, answer in enumerate(simulated(produced(1, 2, 4, 8, 16, 32), []))
    ]
    for some in (decided[3:], decided[:3]):
        write_decisions(path, some)
    DeltaTable(str(path)).optimize.compact(writer_properties=WriterProperties(max_row_group_size=2))

    (name,) = DeltaTable(str(path)).file_uris()
    assert pq.read_metadata(name).num_row_groups == 3
    assert [each.request.bytes for each in Recording(str(path), {}, SPAN)] == [1, 2, 4, 8, 16, 32]
    assert bytes_in(path) == 63


def test_a_file_without_statistics_is_read(path: Path) -> None:
    write_decisions(path, simulated(produced(1, 2), []))
    log = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    log.write_text("\n".join(map(json.dumps, actions)))

    assert bytes_in(path) == 3


def test_other_times_and_heartbeats_are_left_out(path: Path) -> None:
    events = [event(at_ms, bytes=size) for size, at_ms in enumerate((-1, 0, 599_999, 600_000))]
    write_decisions(path, simulated([*events, event(5, api="GatewayHeartbeat")], []))

    (batch,) = Events(str(path), {}, SPAN, ["timestamp_ms"]).batches(1000)
    assert sorted(numbers(batch["timestamp_ms"]) - START_MS) == [0, 599_999]
    assert [each.request.bytes for each in Recording(str(path), {}, SPAN)] == [1, 2]
    assert list(Events(str(path), {}, Span(0, 1), ["api"]).batches(1000)) == []


def test_a_table_that_maps_names_is_refused_in_one_line(path: Path) -> None:
    write_decisions(path, simulated(produced(1), []))
    metadata = next(action for action in actions_of(path, 0) if "metaData" in action)
    metadata["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    schema = json.loads(str(metadata["metaData"]["schemaString"]))
    annotate(schema, count(1))
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    commit(path, [metadata, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}])

    with pytest.raises(QueryError, match=r"has delta\.columnMapping\.mode.*expected none"):
        Events(str(path), {}, SPAN, ["api"])


def test_a_file_that_is_gone_is_one_line(path: Path) -> None:
    write_decisions(path, simulated(produced(1), []))
    for file in path.rglob("*.parquet"):
        file.unlink()

    with pytest.raises(QueryError, match=r"^the table .*decisions can't be read: "):
        list(Events(str(path), {}, SPAN, ["api"]).batches(1))


def actions_of(path: Path, version: int) -> list[dict[str, dict[str, object]]]:
    log = path / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in log.read_text().splitlines()]


def annotate(kind: Any, numbers: Iterator[int]) -> None:
    """Say which names of files the fields of a type of Delta's have."""
    if isinstance(kind, dict):
        annotate(kind.get("elementType"), numbers)
        for field in kind.get("fields", ()):
            names = {"delta.columnMapping.id": next(numbers), "delta.columnMapping.physicalName": field["name"]}
            field["metadata"] = names
            annotate(field["type"], numbers)


def commit(path: Path, actions: Sequence[object]) -> None:
    version = DeltaTable(str(path)).version() + 1
    (path / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def delete(path: Path, rows: Sequence[int]) -> None:
    """Delete these rows of the table's only file, an even number, as Delta does with a deletion vector in its log.

    Source: Delta's protocol, "Deletion Vector Format", and the portable format of Roaring bitmaps.
    """
    versions = range(DeltaTable(str(path)).version() + 1)
    (add,) = (action["add"] for version in versions for action in actions_of(path, version) if "add" in action)
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    vector = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    b85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    inline = base64.b85encode(vector).translate(bytes.maketrans(b85, z85)).decode()
    deleted = {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": len(vector), "cardinality": len(rows)}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    at_ms = int(datetime.now(UTC).timestamp() * 1000)
    commit(
        path,
        [
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features},
            {"remove": {"path": add["path"], "deletionTimestamp": at_ms, "dataChange": True}},
            {"add": add | {"deletionVector": deleted}},
        ],
    )
