"""What Sluice keeps beside Spark's checkpoint."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from configs.settings import Settings, load_settings
from state.quotas.kinds import QuotaSettings, Window
from streaming.checkpoint.batch_log import Batch, BatchLog
from streaming.checkpoint.folder import Checkpoint
from streaming.checkpoint.lock import locked
from streaming.checkpoint.origin import check_origin
from streaming.errors import CheckpointError

DEFAULTS = load_settings(environment={})


def settings_in(folder: Path) -> Settings:
    return replace(DEFAULTS, enforce=replace(DEFAULTS.enforce, checkpoint=str(folder)))


def test_a_replayed_batch_is_begun_as_it_was_the_first_time(tmp_path: Path) -> None:
    """Also by a process that was started after a crash: same quotas, same time."""
    folder = Checkpoint(str(tmp_path))
    first = BatchLog(folder).begin(7, quota_version=3, now_ms=1000)

    replayed = BatchLog(folder).begin(7, quota_version=4, now_ms=2000)
    following = BatchLog(folder).begin(8, quota_version=4, now_ms=3000)

    assert replayed == first == Batch(7, 3, 1000)
    assert following == Batch(8, 4, 3000)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: replace(s, state=replace(s.state, pages=8)), "state.pages"),
        (lambda s: replace(s, topics=replace(s.topics, requests="other")), "topics.requests"),
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


def test_a_damaged_origin_is_refused(tmp_path: Path) -> None:
    """Rather than taken for a new checkpoint."""
    folder = Checkpoint(str(tmp_path))
    folder.sluice.write("sluice.json", b"{")

    with pytest.raises(CheckpointError, match="damaged"):
        check_origin(folder, settings_in(tmp_path))


_HOLD = """
import sys, time
from streaming.checkpoint.folder import Checkpoint
from streaming.checkpoint.lock import locked
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


def test_a_checkpoint_with_its_pages_under_other_keys_is_refused(tmp_path: Path) -> None:
    """Its balances would not be found, and everybody's bucket be full again."""
    settings, folder = settings_in(tmp_path), Checkpoint(str(tmp_path))
    made_before_there_were_layouts = {
        "shards": 32,
        "requests_topic": "quota-requests",
        "quota_window": [11, 1000],
        "controller_window": [11, 1000],
    }
    folder.sluice.write("sluice.json", json.dumps(made_before_there_were_layouts).encode())

    with pytest.raises(CheckpointError, match="has layout 1, this release has 2; run `sluice state export`"):
        check_origin(folder, settings)
