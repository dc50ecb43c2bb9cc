"""The folder of a run: in the checkpoint, and gone with the process."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from sluice.streaming.checkpoint.folder import RUNS, Checkpoint
from sluice.streaming.errors import RunFolderError
from sluice.streaming.runtime.run_folder import RunFolder


def test_it_is_in_the_checkpoint_which_stays_new(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "enforce"))
    folder = RunFolder(checkpoint)
    (folder.folder / "libraries").mkdir()
    (folder.folder / "libraries" / "rocksdb.so").write_bytes(b"x" * 100)

    assert folder.folder.parent == tmp_path / "enforce" / RUNS
    assert folder.folder.stat().st_mode & 0o777 == 0o700
    assert (checkpoint.is_new(), checkpoint.size_bytes()) == (True, 0)
    folder.remove()
    assert [*(tmp_path / "enforce" / "sluice").iterdir()] == []


@pytest.mark.parametrize("name", ["x" * 90, "é" * 40, "a b", "a,b", "a'b"])
def test_spark_has_a_short_path_of_plain_characters_whatever_the_checkpoints_is(tmp_path: Path, name: str) -> None:
    """A socket's path has at most 107 bytes, and Spark splits folders at commas."""
    folder = RunFolder(Checkpoint(str(tmp_path / name)))

    assert folder.path != folder.folder
    assert folder.takes_sockets
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder.path}/{'s' * 42}")
        assert os.listdir(folder.folder) == ["s" * 42]


def test_a_removed_folder_is_noticed_also_one_within(tmp_path: Path) -> None:
    folder = RunFolder(Checkpoint(str(tmp_path)))
    (folder.folder / "blockmgr-1").mkdir()
    folder.remember()
    folder.check()
    (folder.folder / "later").mkdir()
    shutil.rmtree(folder.folder / "later")
    folder.check()

    shutil.rmtree(folder.folder / "blockmgr-1")

    with pytest.raises(RunFolderError, match=r"blockmgr-1 was removed while the job runs"):
        folder.check()
    shutil.rmtree(folder.folder)
    with pytest.raises(RunFolderError, match=f"{folder.folder} was removed"):
        folder.check()


def test_what_a_killed_run_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    killed = RunFolder(checkpoint)
    (killed.folder / "blockmgr-1").mkdir()
    folder = RunFolder(checkpoint)

    folder.remove_others()

    assert (killed.folder.exists(), folder.folder.exists()) == (False, True)


def test_for_shared_storage_it_is_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    folder = RunFolder(Checkpoint("hdfs://name:8020/sluice"))

    assert folder.folder.parent == tmp_path
    folder.remove()
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(RunFolderError, match=r"\(Not a directory\); give the job a checkpoint folder"):
        RunFolder(Checkpoint(str(tmp_path / "file" / "enforce")))
