"""The ends of the requests topic when a micro-batch of the audit query began."""

from pathlib import Path

import pytest

from sluice.streaming.audit.answers import RequestEnds
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError


def ends_in(folder: Path) -> RequestEnds:
    """As a start of the query finds them."""
    return RequestEnds(Checkpoint(str(folder)))


def test_a_repeated_micro_batch_has_the_ends_of_its_first_attempt(tmp_path: Path) -> None:
    """Else a record that the first attempt has called unreadable would be a row of another table too."""
    assert ends_in(tmp_path).of_batch(5, [10, 20]) == [10, 20]

    assert ends_in(tmp_path).of_batch(5, [11, 21]) == [10, 20]
    assert ends_in(tmp_path).of_batch(6, [11, 21]) == [11, 21]


def test_a_topic_that_is_made_again_or_missing_takes_no_event_away(tmp_path: Path) -> None:
    """Decisions of its former records may still be unread."""
    ends = ends_in(tmp_path)
    ends.of_batch(0, [10, 20])

    assert ends.of_batch(1, []) == [10, 20]
    assert ends.of_batch(2, [15]) == [15, 20]


def test_a_topic_may_gain_partitions(tmp_path: Path) -> None:
    ends = ends_in(tmp_path)
    ends.of_batch(0, [10])

    assert ends.of_batch(1, [10, 3]) == [10, 3]


def test_a_micro_batch_that_an_earlier_release_began_is_known(tmp_path: Path) -> None:
    """Its commits have its number, so its repetition looks for that."""
    Checkpoint(str(tmp_path)).sluice.write("request_ends.json", b'{"batch_id":5,"ends":[10]}')
    ends = ends_in(tmp_path)
    assert ends.began_before_coverage(5)
    assert not ends.began_before_coverage(6)

    ends.of_batch(6, [10])

    assert not ends_in(tmp_path).began_before_coverage(6)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    Checkpoint(str(tmp_path)).sluice.write("request_ends.json", b"{broken")

    with pytest.raises(CheckpointError, match=r"request_ends\.json in .* is damaged"):
        ends_in(tmp_path)
