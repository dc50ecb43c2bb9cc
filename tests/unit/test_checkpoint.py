"""What Sluice keeps beside Spark's checkpoint."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from configs.settings import Settings, load_settings
from state.quota import QuotaSettings, Window
from streaming.checkpoint import Batch, BatchLog, CheckpointFolder, check_origin
from streaming.errors import CheckpointError

DEFAULTS = load_settings(environment={})


def settings_in(folder: Path) -> Settings:
    return replace(DEFAULTS, enforce=replace(DEFAULTS.enforce, checkpoint=str(folder)))


def test_a_replayed_batch_is_begun_as_it_was_the_first_time(tmp_path: Path) -> None:
    """Also by a process that was started after a crash: same quotas, same time."""
    folder = CheckpointFolder(str(tmp_path))
    first = BatchLog(folder).begin(7, quota_version=3, now_ms=1000)

    replayed = BatchLog(folder).begin(7, quota_version=4, now_ms=2000)
    following = BatchLog(folder).begin(8, quota_version=4, now_ms=3000)

    assert replayed == first == Batch(7, 3, 1000)
    assert following == Batch(8, 4, 3000)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: replace(s, state=replace(s.state, shards=8)), "state.shards"),
        (lambda s: replace(s, topics=replace(s.topics, requests="other")), "topics.requests"),
        (lambda s: replace(s, quota=QuotaSettings(client_window=Window(5, 1000))), "quota.window.num"),
        (lambda s: replace(s, quota=QuotaSettings(controller_window=Window(11, 2000))), "controller.quota.window.num"),
    ],
)
def test_a_checkpoint_made_with_other_settings_is_refused(tmp_path: Path, change, named: str) -> None:  # type: ignore[no-untyped-def] # lambdas
    """One line that names the setting, both values and the ways on."""
    settings = settings_in(tmp_path)
    folder = CheckpointFolder(str(tmp_path))
    check_origin(folder, settings)
    check_origin(folder, settings)

    with pytest.raises(CheckpointError, match=named) as raised:
        check_origin(folder, change(settings))

    assert "\n" not in str(raised.value)


def test_a_damaged_origin_is_refused(tmp_path: Path) -> None:
    """Rather than taken for a new checkpoint."""
    folder = CheckpointFolder(str(tmp_path))
    folder.write("sluice.json", b"{")

    with pytest.raises(CheckpointError, match="damaged"):
        check_origin(folder, settings_in(tmp_path))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file stands in its way."""
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match="can't write"):
        CheckpointFolder(str(tmp_path / "file")).write("x", b"")


def test_a_checkpoint_with_its_shards_under_other_keys_is_refused(tmp_path: Path) -> None:
    """Its balances would not be found, and everybody's bucket be full again."""
    settings, folder = settings_in(tmp_path), CheckpointFolder(str(tmp_path))
    made_before_there_were_layouts = {
        "shards": 32,
        "requests_topic": "quota-requests",
        "quota_window": [11, 1000],
        "controller_window": [11, 1000],
    }
    folder.write("sluice.json", json.dumps(made_before_there_were_layouts).encode())

    with pytest.raises(CheckpointError, match="has layout 1, this release has 2; run `sluice state export`"):
        check_origin(folder, settings)
