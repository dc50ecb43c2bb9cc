"""Decisions that count when a driver was replaced and publishes on."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.decisions.leader_epochs import (
    EpochSpan,
    Fence,
    FencedFrom,
    LeaderEpoch,
    epoch_of,
    fenced_from,
    read_epoch,
)
from sluice.state.errors import FarEpochError

FIRST, SECOND = (LeaderEpoch("job", number) for number in (1, 2))

Record = tuple[int, LeaderEpoch | None, bytes | None]
"""Partition, epoch and value; a marker has no value."""

records = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.none() | st.builds(LeaderEpoch, st.sampled_from(["one", "two"]), st.integers(1, 4)),
        st.none() | st.just(b"{}"),
    ),
    max_size=40,
)


def offsets(read: Sequence[Record]) -> list[tuple[int, int]]:
    """Partition and offset of each record."""
    ends = [0, 0, 0]
    found = []
    for partition, _, _ in read:
        found.append((partition, ends[partition]))
        ends[partition] += 1
    return found


def test_what_is_no_epoch_is_none() -> None:
    for value in (None, b"", b"job", b"job:", b"job:x", b":1", b"job:1\n", b"job:" + b"9" * 19, b"\xff:1"):
        assert read_epoch(value) is None
    assert read_epoch(FIRST.header()) == FIRST


def test_of_several_headers_with_the_name_the_last_counts() -> None:
    assert epoch_of([("epoch", b"job:1"), ("other", b"job:3"), ("epoch", b"job:2")]) == SECOND
    assert epoch_of([]) is epoch_of(None) is None


def test_an_epoch_far_above_the_highest_is_unreadable_and_fences_nobody() -> None:
    """One record with an epoch that no driver will reach would else fence the job for good."""
    fence = Fence()
    assert fence.passes(0, SECOND, b"{}")
    for partition in (0, 1):  # of a job that another partition has, too
        with pytest.raises(FarEpochError, match="epoch 1003 is more than 1000 above 2"):
            fence.passes(partition, LeaderEpoch("job", 1_003), None)

        assert fence.passes(partition, SECOND, b"{}")
    assert fence.passes(0, LeaderEpoch("job", 1_002), b"{}")
    assert not fence.passes(0, SECOND, b"{}")


@given(numbers=st.lists(st.sampled_from([1, 2, 900, 1_002, 1_003, 1_950, 10**18 - 1]), min_size=1, max_size=8))
def test_a_reader_of_parts_finds_the_same_epochs_too_far(numbers: list[int]) -> None:
    """Each epoch once, in one partition: of several records of one epoch a part judges all by the first."""
    epochs = [LeaderEpoch("job", number) for number in dict.fromkeys(numbers)]
    fence, far = Fence(), set[LeaderEpoch]()
    fence.passes(0, FIRST, None)
    for epoch in epochs:
        try:
            fence.passes(0, epoch, b"{}")
        except FarEpochError:
            far.add(epoch)

    fenced, highest = fenced_from([EpochSpan(0, epoch, at, at) for at, epoch in enumerate(epochs)], {0: {"job": 1}})

    assert {each.epoch for each in fenced if each.is_far} == far
    assert highest == fence.highest


def test_a_partition_that_is_read_again_begins_anew() -> None:
    fence = Fence()
    fence.passes(0, SECOND, b"{}")
    fence.passes(1, SECOND, b"{}")
    fence.forget(0)

    assert fence.passes(0, FIRST, b"{}")
    assert not fence.passes(1, FIRST, b"{}")


def test_forged_jobs_fill_no_memory() -> None:
    fence = Fence()
    for number in range(1000):
        fence.passes(0, LeaderEpoch(f"forged-{number}", 1), b"{}")
    assert len(fence.highest[0]) <= 16


@given(read=records)
def test_what_counts_of_a_partition_is_what_no_newer_epoch_precedes(read: list[Record]) -> None:
    """Said without any state: a decision counts if no earlier record has a newer epoch of its job.

    A new checkpoint begins with epoch 1 again, as a new job. A marker is no decision, and a late one of an old driver
    changes nothing. Decisions of a job whose checkpoint is a path have no epoch, and count whatever came before.
    """
    fence, left_out = Fence(), 0
    for index, (partition, epoch, value) in enumerate(read):
        earlier = [other for where, other, _ in read[:index] if where == partition and other is not None]
        newer = epoch is not None and any(
            other.job_id == epoch.job_id and other.number > epoch.number for other in earlier
        )
        marker = epoch is not None and value is None
        assert fence.passes(partition, epoch, value) == (not newer and not marker)
        left_out += newer and not marker
    assert fence.fenced == left_out


@given(read=records, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_a_reader_of_parts_leaves_out_what_a_reader_of_records_does(read: list[Record], cuts: list[int]) -> None:
    """However the topic is cut into micro-batches."""
    fence = Fence()
    passed = [fence.passes(*record) for record in read]
    places = offsets(read)
    before: dict[int, dict[str, int]] = {}
    bounds = [0, *sorted(min(cut, len(read)) for cut in cuts), len(read)]
    for begin, end in pairwise(bounds):
        spans: dict[tuple[int, LeaderEpoch], EpochSpan] = {}
        for (partition, epoch, _), (_, offset) in zip(read[begin:end], places[begin:end], strict=True):
            if epoch is not None:
                first = spans[partition, epoch].first if (partition, epoch) in spans else offset
                spans[partition, epoch] = EpochSpan(partition, epoch, first, offset)
        fenced, before = fenced_from(spans.values(), before)
        for index in range(begin, end):
            partition, epoch, value = read[index]
            left_out = any(_covers(each, partition, epoch, places[index][1]) for each in fenced)
            marker = epoch is not None and value is None
            assert passed[index] == (not left_out and not marker)


def _covers(fenced: FencedFrom, partition: int, epoch: LeaderEpoch | None, offset: int) -> bool:
    return (fenced.partition, fenced.epoch) == (partition, epoch) and offset > fenced.after


drivers = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40)


@given(steps=drivers)
def test_each_event_has_exactly_one_decision_that_counts(steps: list[tuple[int, int]]) -> None:
    """Drivers take over one after the other, and each publishes at any time what it still has to.

    A driver writes its marker, reads which events have a decision that counts, and publishes the rest. Records that
    an older one publishes between or after that counts for nobody.
    """
    topic: list[Record] = []
    events = [b"%d" % number for number in range(6)]
    unpublished: dict[int, list[bytes]] = {}
    for driver, count in [*steps, (4, 0), (4, 6)]:
        epoch = LeaderEpoch("job", driver + 1)
        if driver not in unpublished:
            if any(newer > driver for newer in unpublished):
                continue  # it can't claim what a newer one has claimed
            topic.append((0, epoch, None))
            unpublished[driver] = [event for event in events if event not in _counting(topic)]
        for event in unpublished[driver][:count]:
            topic.append((0, epoch, event))
        del unpublished[driver][:count]

    assert sorted(_counting(topic)) == events


def _counting(topic: Sequence[Record]) -> list[bytes]:
    fence = Fence()
    return [value for partition, epoch, value in topic if fence.passes(partition, epoch, value) and value is not None]
