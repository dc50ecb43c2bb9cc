"""The ends of the requests topic when a micro-batch of the audit query began."""

from collections.abc import Callable, Set
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.streaming.audit.answers import RequestEnds
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError

Batches = list[tuple[list[int], str]]
"""The ends of the topic in each micro-batch, and its id."""


def ends_in(folder: Path, known_ids: Callable[[], Set[str]] = frozenset) -> RequestEnds:
    """As a start of the query finds them."""
    return RequestEnds(Checkpoint(str(folder)), "requests", known_ids)


def test_a_repeated_micro_batch_has_the_ends_of_its_first_attempt(tmp_path: Path) -> None:
    """Else a record that the first attempt has called unreadable would be a row of another table too."""
    assert ends_in(tmp_path).of_batch(5, [10, 20]).ends == [10, 20]

    assert ends_in(tmp_path).of_batch(5, [11, 21]).ends == [10, 20]
    assert ends_in(tmp_path).of_batch(6, [11, 21]).ends == [11, 21]


WITHOUT_ID = b'{"batch_id":5,"ends":[10]}'


@pytest.mark.parametrize(
    ("before", "known_ids", "batches", "found"),
    [
        # A topic that is made again or missing takes no event away: decisions of its records may still be unread.
        (None, set(), [([10, 20], ""), ([], "")], ([10, 20], [""], "")),
        (None, set(), [([10, 20], ""), ([], ""), ([15], "")], ([15, 20], [], "")),
        # A topic may gain partitions.
        (None, set(), [([10], ""), ([10, 3], "")], ([10, 3], [], "")),
        # Answers without an id are of the topic that was there when no id was known ...
        (WITHOUT_ID, set(), [([12], "first")], ([12], [], "first")),
        (WITHOUT_ID, set(), [([12], "first"), ([1], "second")], ([1], ["first"], "first")),
        # ... and of a former topic if it was made again meanwhile.
        (WITHOUT_ID, set(), [([3], "second")], ([3], [""], "")),
        # A new checkpoint knows the topics whose events the tables have, also if the topic was missing at first.
        (None, {"first", "second", ""}, [([3], "second")], ([3], ["", "first"], "")),
        (None, set(), [([3], "second")], ([3], [], "second")),
        (None, {"first", ""}, [([], ""), ([3], "second")], ([3], ["", "first"], "")),
    ],
)
def test_the_topics_and_their_ends_are_known(
    tmp_path: Path, before: bytes | None, known_ids: set[str], batches: Batches, found: tuple[list[int], list[str], str]
) -> None:
    if before is not None:
        Checkpoint(str(tmp_path)).sluice.write("request_ends.json", before)
    for batch_id, (ends, topic_id) in enumerate(batches, 6):
        last = ends_in(tmp_path, lambda: known_ids).of_batch(batch_id, ends, topic_id)

    assert (last.ends, last.former, last.unnamed) == found


def test_a_restored_checkpoint_knows_the_topics_that_came_since_by_the_tables(tmp_path: Path) -> None:
    ends_in(tmp_path).of_batch(0, [10], "first")

    found = ends_in(tmp_path, lambda: {"first", "second", "third"}).of_batch(1, [3], "third")

    assert (found.ends, found.former) == ([3], ["first", "second"])


def test_a_topic_with_another_id_begins_anew_and_events_of_the_one_before_stay_known(tmp_path: Path) -> None:
    """Also when it is used again, such as that of another cluster.

    Where it ended isn't known: requests may have come after the last look, or after a backup that was restored.
    """
    ends_in(tmp_path).of_batch(0, [10, 20], "first")

    second = ends_in(tmp_path).of_batch(1, [1, 0], "second")
    away = ends_in(tmp_path).of_batch(2, [], "")
    first = ends_in(tmp_path).of_batch(3, [11, 20], "first")

    assert (second.ends, second.topic_id, second.former) == ([1, 0], "second", ["first"])
    assert (away.ends, away.topic_id, away.former) == ([1, 0], "second", ["first", "second"])
    assert (first.ends, first.topic_id, first.former) == ([11, 20], "first", ["second"])


@pytest.mark.parametrize("topic_id", ["first", ""])
def test_decisions_on_the_last_requests_of_a_topic_that_is_gone_are_read(topic_id: str, tmp_path: Path) -> None:
    """Nobody can say any more where it ended; once it is there, or another one is, its end is known as before."""
    ends_in(tmp_path).of_batch(0, [10], topic_id)

    away = [ends_in(tmp_path).of_batch(batch_id, [], "") for batch_id in (1, 1, 2)]
    back = ends_in(tmp_path).of_batch(3, [12], topic_id)

    ids, partitions, offsets = (pa.chunked_array([values]) for values in ([topic_id], [0], [11]))
    topics = pa.chunked_array([["requests"]])
    assert [found.lacks(topics, ids, partitions, offsets).tolist() for found in away] == [[False]] * 3
    assert (back.ends, back.topic_id, back.former) == ([12], topic_id, [])


@pytest.mark.parametrize("content", [b"{broken", b'{"batch_id": 1, "ends": [], "topic_id": "\xff"}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    Checkpoint(str(tmp_path)).sluice.write("request_ends.json", content)

    with pytest.raises(CheckpointError, match=r"request_ends\.json in .* is damaged"):
        ends_in(tmp_path)
