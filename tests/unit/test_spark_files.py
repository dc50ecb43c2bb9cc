"""A damaged checkpoint is refused before Spark reads it: one line that names the file, never a start from zero."""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from sluice.configs.settings import Settings
from sluice.streaming.checkpoint.batch_log import BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import check_origin
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.checkpoint.spark_files import SparkBatches, check_enforce_checkpoint, check_spark_files, coverage
from sluice.streaming.errors import CheckpointError
from tests.builders import DEFAULTS, changed

METADATA = '{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2"}}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """As after the commit of micro-batch 3; Spark has dropped the files of batch 0."""
    write(tmp_path / "metadata", '{"id":"e1cedcb8-37b2-4f9d-b9cf-65059ac9bf08"}')
    write(tmp_path / "sources/0/0", '\0v1\n{"requests":{"0":0}}')
    for batch in (1, 2, 3):
        write(tmp_path / f"offsets/{batch}", f'v1\n{METADATA}\n{{"requests":{{"0":{batch}00}}}}')
        write(tmp_path / f"offsets/.{batch}.crc", "crc")
        for partition in (0, 1):
            write(tmp_path / f"state/0/{partition}/{batch + 1}.changelog", "state")
        write(tmp_path / f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
    folder = Checkpoint(str(tmp_path))
    check_origin(folder, settings_in(tmp_path))
    BatchLog(folder).begin(3, quota_version=0, now_ms=1000)
    QuotaSnapshots(folder).save(0, [])
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def settings_in(folder: Path) -> Settings:
    return changed(DEFAULTS, "enforce", checkpoint=str(folder))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def garble(file: Path) -> None:
    """Make its texts no UTF-8."""
    file.write_bytes(file.read_bytes().replace(b'"', b'"\xff'))


def cut_last_line(file: Path) -> None:
    file.write_bytes(file.read_bytes().rpartition(b"\n")[0])


def test_a_whole_checkpoint_is_taken(checkpoint: Path) -> None:
    """Committed, as well as with a micro-batch that was begun but not committed, or only planned."""
    check_enforce_checkpoint(settings_in(checkpoint))
    (checkpoint / "commits/3").unlink()
    check_enforce_checkpoint(settings_in(checkpoint))
    BatchLog(Checkpoint(str(checkpoint))).begin(2, quota_version=0, now_ms=1000)

    assert check_spark_files(Checkpoint(str(checkpoint))) == SparkBatches(planned=3, committed=2)
    check_enforce_checkpoint(settings_in(checkpoint))


@pytest.mark.parametrize("files", [(), ("metadata",), ("metadata", "offsets/0")])
def test_a_new_checkpoint_is_taken(tmp_path: Path, files: tuple[str, ...]) -> None:
    """As it is when there is none, and after a start that was cut short before or in its first micro-batch."""
    for name in files:
        write(tmp_path / name, '{"id":"x"}' if name == "metadata" else "v1\n{}\n{}")

    check_enforce_checkpoint(settings_in(tmp_path))


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *product(["offsets/3", "offsets/2", "commits/3", "metadata", "sluice/batch.json"], [empty, cut]),
        *product(["offsets/3", "offsets/2", "metadata", "sluice/batch.json", "sluice/sluice.json"], [Path.unlink]),
        *product(["offsets/3", "metadata", "sluice/batch.json"], [garble]),
        ("offsets/3", cut_last_line),
        ("commits/3", cut_last_line),
    ],
)
def test_a_damaged_file_is_named(checkpoint: Path, name: str, harm: Callable[[Path], None]) -> None:
    """Also the offsets of the micro-batch before: there the last one begins."""
    harm(checkpoint / name)

    with pytest.raises(CheckpointError, match=f"^{name} in ") as raised:
        check_enforce_checkpoint(settings_in(checkpoint))

    assert "restore the checkpoint from a backup" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("folders", "missing"),
    [(["commits"], "commits/2"), (["offsets"], "offsets/3"), (["offsets", "commits"], "offsets/3")],
)
def test_files_that_are_gone_are_named(checkpoint: Path, folders: list[str], missing: str) -> None:
    """Without its offsets Spark would decide everything again; without its commits, too old a micro-batch."""
    for folder in folders:
        shutil.rmtree(checkpoint / folder)

    with pytest.raises(CheckpointError, match=f"^{missing} in .* is damaged .it is missing"):
        check_enforce_checkpoint(settings_in(checkpoint))


def test_a_micro_batch_is_known_by_what_it_covers(checkpoint: Path) -> None:
    """Its number comes again after a backup was restored."""
    covered = coverage(Checkpoint(str(checkpoint)), 3)
    assert covered == coverage(Checkpoint(str(checkpoint)), 3)

    shutil.copy(checkpoint / "offsets" / "2", checkpoint / "offsets" / "3")

    assert coverage(Checkpoint(str(checkpoint)), 3) != covered


def test_a_micro_batch_without_offsets_is_no_batch(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^offsets/4 in .* is damaged .it is missing"):
        coverage(Checkpoint(str(checkpoint)), 4)


@pytest.mark.parametrize(("folder", "missing"), [("state", 0), ("state/0", 0), ("state/0/0", 0), ("state/0/1", 1)])
def test_state_that_is_gone_is_named(checkpoint: Path, folder: str, missing: int) -> None:
    """Spark itself would be started for it eight times, and give no advice."""
    shutil.rmtree(checkpoint / folder)

    with pytest.raises(CheckpointError, match=f"^state/0/{missing} in .* is damaged .it has no files.; restore the"):
        check_enforce_checkpoint(settings_in(checkpoint))


@pytest.mark.parametrize("harm", [empty, cut])
def test_a_damaged_snapshot_of_quotas_is_named(checkpoint: Path, harm: Callable[[Path], None]) -> None:
    """It is read by the workers; no decision is made with other quotas instead."""
    (snapshot,) = (checkpoint / "sluice/quotas").iterdir()
    harm(snapshot)

    with pytest.raises(CheckpointError, match=f"^sluice/quotas/{snapshot.name} in .* is damaged"):
        QuotaSnapshots(Checkpoint(str(checkpoint))).load(0)
