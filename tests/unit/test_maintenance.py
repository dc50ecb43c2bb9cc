"""Few large files instead of many small ones, the same rows, and the history of quotas untouched."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from configs.settings import DeltaSettings, Properties
from sinks.errors import TableMaintenanceError
from sinks.quotas_table import QuotasTable
from streaming.maintenance import maintain


@pytest.fixture
def delta(tmp_path: Path) -> DeltaSettings:
    """Decisions of five commits, quotas, and tables that aren't there yet."""
    paths = {name: str(tmp_path / name) for name in ("quotas", "decisions", "quota_metrics", "dead_letters")}
    for number in range(5):
        write_deltalake(paths["decisions"], pa.table({"source_offset": [number]}), mode="append")
    QuotasTable(paths["quotas"]).create([], changed_by="test", at=datetime.now(UTC))
    return DeltaSettings(**paths, storage_options=Properties())


def test_tables_are_compacted_and_old_files_removed(delta: DeltaSettings) -> None:
    quota_files = sorted(Path(delta.quotas).rglob("*"))

    (done,) = maintain(delta, retention_hours=0)

    assert (done.files_before, done.files_after, done.files_removed) == (5, 1, 5)
    assert len(list(Path(delta.decisions).glob("*.parquet"))) == 1
    offsets = DeltaTable(delta.decisions).to_pyarrow_table()["source_offset"].to_pylist()
    assert sorted(offsets) == [0, 1, 2, 3, 4]
    assert sorted(Path(delta.quotas).rglob("*")) == quota_files


def test_files_in_use_lately_are_kept(delta: DeltaSettings) -> None:
    """A reader of an older version goes on."""
    (done,) = maintain(delta, retention_hours=1)

    assert done.files_removed == 0
    assert DeltaTable(delta.decisions, version=4).to_pyarrow_table().num_rows == 5


def test_a_broken_table_is_one_line(delta: DeltaSettings) -> None:
    for commit in (Path(delta.decisions) / "_delta_log").iterdir():
        commit.write_text("no commit")

    with pytest.raises(TableMaintenanceError, match=r"decisions can't be maintained .*try again$"):
        list(maintain(delta, retention_hours=1))
