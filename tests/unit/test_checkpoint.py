"""Sluice's own files beside Spark's checkpoint."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sluice.configs.settings import Settings
from sluice.state.decisions.checks import EventLimits
from sluice.state.quotas.kinds import QuotaSettings, RequestPolicy, Window
from sluice.streaming.checkpoint.batch_log import Batch, BatchLog
from sluice.streaming.checkpoint.folder import Checkpoint, is_locked, locked
from sluice.streaming.checkpoint.origin import check_origin
from sluice.streaming.checkpoint.store import CreateFile
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.repetition import topic_ids_of_answers
from sluice.streaming.errors import CheckpointError
from sluice_shared_storage.stores import create_by_link
from tests.accounts import STRANGER, as_account, as_root
from tests.builders import DEFAULTS, changed


def creator(checkpoint: Checkpoint) -> CreateFile:
    return partial(create_by_link, checkpoint.location)


def settings_in(folder: Path) -> Settings:
    return changed(DEFAULTS, "enforce", checkpoint=str(folder))


def test_a_replayed_batch_is_begun_as_it_was_the_first_time(tmp_path: Path) -> None:
    """Also by a process that was started after a crash: same quotas, same time."""
    folder = Checkpoint(str(tmp_path))
    first = BatchLog(folder).begin(7, quota_version=3, now_ms=1000)

    replayed = BatchLog(folder).begin(7, quota_version=4, now_ms=2000)
    following = BatchLog(folder).begin(8, quota_version=4, now_ms=3000)

    assert first == (Batch(7, 3, 1000), False)
    assert replayed == (Batch(7, 3, 1000), True)
    assert following == (Batch(8, 4, 3000), False)


def test_a_replayed_batch_splits_the_same_pages(tmp_path: Path) -> None:
    """Those that the micro-batch before it left, which is stored then."""
    folder = Checkpoint(str(tmp_path))
    BatchLog(folder).begin(7, quota_version=3, now_ms=1000, pages=256)
    first = BatchLog(folder).begin(8, quota_version=3, now_ms=2000, pages=1024)

    assert first == (Batch(8, 3, 2000, pages=1024, pages_before=256), False)
    assert BatchLog(folder).begin(8, quota_version=3, now_ms=3000, pages=4096) == (first[0], True)
    assert BatchLog(folder).last.pages == 1024


@pytest.mark.parametrize(
    ("now", "begun", "ids"),
    [("a", "a", {"a"}), ("a", None, {"a", None}), (None, "a", {"a", None}), (None, None, {None}), ("b", "a", {"b"})],
)
def test_answers_to_a_replayed_batch_give_the_id_of_its_topic_whichever_job_knows_it(
    now: str | None, begun: str | None, ids: set[str | None]
) -> None:
    """Those that a job wrote which knew it are left out by one that doesn't, and the other way round."""
    assert topic_ids_of_answers(now, begun) == ids


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_replayed_batch_is_judged_by_the_settings_it_was_begun_with(tmp_path: Path, is_shared: bool) -> None:
    """All that can change an answer, but that topics may take smaller records now."""
    folder = Checkpoint(tmp_path.as_uri() if is_shared else str(tmp_path))
    create = creator(folder) if is_shared else None
    before = PipelineSettings.of(changed(DEFAULTS, "quota", policy=RequestPolicy.KIP124_DRAFT))._replace(
        topic_id="A", limits=EventLimits(4096, 1, 2, 3), max_record_bytes=32_768
    )
    now = PipelineSettings.of(DEFAULTS)._replace(topic_id="A", max_record_bytes=16_384)
    BatchLog(folder, create).begin(7, quota_version=3, now_ms=1000, batch_settings=before.batch_settings("1.0"))

    batch, _ = BatchLog(folder, create).begin(7, quota_version=3, now_ms=2000, batch_settings=now.batch_settings("1.1"))

    assert batch.batch_settings == before.batch_settings("1.0")
    assert now.with_batch_settings(batch.batch_settings) == before._replace(max_record_bytes=16_384)


def test_two_drivers_on_one_batch_begin_it_alike_and_the_second_knows(tmp_path: Path) -> None:
    """Each has read the checkpoint before the other one wrote."""
    folder = Checkpoint(tmp_path.as_uri())
    stale, leader = (BatchLog(folder, creator(folder)) for _ in range(2))

    assert stale.begin(7, quota_version=3, now_ms=1000) == (Batch(7, 3, 1000), False)
    assert leader.begin(7, quota_version=4, now_ms=2000) == (Batch(7, 3, 1000), True)


def test_a_driver_that_was_replaced_begins_no_batch_that_others_are_past(tmp_path: Path) -> None:
    """Also where its file is gone: only the newest are kept."""
    folder = Checkpoint(tmp_path.as_uri())
    stale, leader = (BatchLog(folder, creator(folder)) for _ in range(2))
    for batch_id in range(7, 12):
        leader.begin(batch_id, quota_version=3, now_ms=1000)
    assert len(folder.sluice.names("batches")) == 2

    for batch_id in (7, 10):
        with pytest.raises(CheckpointError, match="another driver has begun micro-batch 11"):
            stale.begin(batch_id, quota_version=3, now_ms=1000)
    assert BatchLog(folder).last.batch_id == 11


def test_batches_of_a_release_without_files_of_their_own_are_known(tmp_path: Path) -> None:
    folder = Checkpoint(tmp_path.as_uri())
    BatchLog(folder).begin(7, quota_version=3, now_ms=1000)

    assert BatchLog(folder, creator(folder)).begin(7, quota_version=4, now_ms=2000) == (Batch(7, 3, 1000), True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: changed(s, "state", pages=8), "state.pages"),
        (lambda s: changed(s, "topics", requests="other"), "topics.requests"),
        (lambda s: replace(s, quota=QuotaSettings(client_window=Window(5, 1000))), "quota.window.num"),
        (lambda s: replace(s, quota=QuotaSettings(controller_window=Window(11, 2000))), "controller.quota.window.num"),
    ],
)
def test_a_checkpoint_made_with_other_settings_is_refused(tmp_path: Path, change, named: str) -> None:  # type: ignore[no-untyped-def] # lambdas
    """One line that names the setting, both values and the ways on."""
    settings = settings_in(tmp_path)
    folder = Checkpoint(str(tmp_path))
    check_origin(folder, settings)
    check_origin(folder, settings)

    with pytest.raises(CheckpointError, match=named) as raised:
        check_origin(folder, change(settings))

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"{", b'{"\xff": 1}', b'{"catalog":"\xff"}'])
def test_a_damaged_origin_is_refused(tmp_path: Path, content: bytes) -> None:
    """Rather than taken for a new checkpoint."""
    folder = Checkpoint(str(tmp_path))
    folder.sluice.write("sluice.json", content)

    with pytest.raises(CheckpointError, match="damaged"):
        check_origin(folder, settings_in(tmp_path))


_HOLD = """
import sys, time
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.folder import locked
with locked(Checkpoint(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_checkpoint_is_held_until_its_process_ends_even_if_it_is_killed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match="is in use by a job or another command"), locked(checkpoint):
            pass
        holder.kill()

    with locked(checkpoint):
        assert [path.name for path in (tmp_path / "sluice").iterdir()] == ["lock"]
        assert checkpoint.is_new()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file stands in its way."""
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match="can't write"):
        Checkpoint(str(tmp_path / "file")).sluice.write("x", b"")


@as_root
def test_an_account_that_cannot_see_the_checkpoint_does_not_know_whether_a_job_runs(everybodys: Path) -> None:
    """A job makes its files for its own account alone, and operators have others: `sluice top` showed no trouble."""
    checkpoint = Checkpoint(str(everybodys / "checkpoint"))
    with locked(checkpoint):
        (everybodys / "checkpoint").chmod(0o700)
        with as_account(STRANGER):
            assert is_locked(checkpoint) is None
        assert is_locked(checkpoint)
