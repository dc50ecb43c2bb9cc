"""The id of the requests topic that a start of the enforce query goes on with."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import charged_topic_id, write_topic_id
from sluice.streaming.enforce.requests_topic import RequestsTopicWatch
from tests.builders import DEFAULTS, changed


@pytest.mark.parametrize("charged", ["first", None])
def test_a_topic_whose_id_no_broker_says_now_is_taken_for_the_one_that_was_charged(
    charged: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may not know the topic yet. Decisions without an id would be of another topic."""
    settings = changed(DEFAULTS, "enforce", checkpoint=str(tmp_path))
    checkpoint = Checkpoint(str(tmp_path))
    if charged is not None:
        write_topic_id(checkpoint, charged)
    monkeypatch.setattr("sluice.streaming.enforce.requests_topic.connect", lambda *_: nullcontext())
    monkeypatch.setattr("sluice.streaming.enforce.requests_topic.topic_id_now", lambda *_: None)

    watch = RequestsTopicWatch(settings)
    watch.begin()

    assert watch.id == charged
    assert charged_topic_id(checkpoint) == charged
