"""Numbers of drivers in a mounted folder, and files that one of them alone can make."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.store import CreateFile
from sluice_shared_storage.leader_epochs import new_epoch
from sluice_shared_storage.stores import create_by_link


def creator(checkpoint: Checkpoint) -> CreateFile:
    return partial(create_by_link, checkpoint.location)


def test_of_many_that_create_a_file_at_once_one_does_and_its_content_is_whole(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    files = Checkpoint(uri).sluice
    for name in map(str, range(20)):
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda number, name=name: create_by_link(uri, name, b"%d" % number * 1000), range(8)))
        assert sum(made) == 1
        assert files.read(name) == b"%d" % made.index(True) * 1000


def test_each_driver_gets_a_higher_epoch_and_no_two_the_same(tmp_path: Path) -> None:
    folder = Checkpoint(tmp_path.as_uri())
    assert [new_epoch(folder, creator(folder)) for _ in range(3)] == [1, 2, 3]

    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(lambda _: new_epoch(folder, creator(folder)), range(8)))
    assert sorted(epochs) == list(range(4, 12))


def test_a_restored_checkpoint_goes_on_above_the_epochs_of_the_topic_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Below them nobody would count its decisions."""
    restored = Checkpoint(tmp_path.as_uri())
    assert new_epoch(restored, creator(restored), 0) == 1

    assert new_epoch(restored, creator(restored), 1) == 2
    assert caplog.text == ""
    assert new_epoch(restored, creator(restored), 7) == 8
    assert "is older than the decisions topic" in caplog.text
    assert "it knows of epoch 2, and the topic has 7" in caplog.text


def test_an_epoch_that_no_driver_can_have_had_moves_none_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint(tmp_path.as_uri())
    new_epoch(checkpoint, creator(checkpoint))

    assert new_epoch(checkpoint, creator(checkpoint), 1_002) == 2
    assert "make the empty file 00000000000000001002 there" in caplog.text
