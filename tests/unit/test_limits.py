"""The limits topic as records: what a reader knows after each of them, whatever compaction has removed."""

import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import ElasticKey, QuotaKind, StorageKey
from sluice.state.quotas.limits import (
    VERSION_KEY,
    LimitsView,
    changed_limits,
    limit_key,
    limit_value,
    read_limit,
    version_end,
)
from sluice_reading.limits_topic import reading_of_limits
from tests.builders import member, quota

ALICE = quota(QuotaKind.PRODUCER_BYTE_RATE, 1024.0, user="alice")
ANYONE = quota(QuotaKind.REQUEST_PERCENTAGE, 12.5, user=DEFAULT, client_id="app")
ALICE_SHADOW = QuotaEntry(ALICE.entity, ALICE.kind, 512.0, shadow=True)

Records = list[tuple[bytes, bytes | None]]

ENTRIES = st.builds(
    QuotaEntry,
    st.sampled_from([QuotaEntity(user="a"), QuotaEntity(user=DEFAULT), QuotaEntity(user="a", client_id="<default>")]),
    st.sampled_from([QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE]),
    st.integers(1, 5).map(float),
    st.booleans(),
)
VERSIONS = st.lists(st.lists(ENTRIES, max_size=6), min_size=1, max_size=5)


def published(versions: Sequence[Iterable[QuotaEntry]]) -> Records:
    """The records of these versions, one after the other, as the job writes them."""
    records: Records = []
    before: dict[bytes, QuotaEntry] = {}
    for version, entries in enumerate(versions):
        wanted = {limit_key(entry): entry for entry in entries}
        records += changed_limits(before, wanted, version)
        records.append((VERSION_KEY, version_end(version, len(wanted))))
        before = wanted
    return records


def read(records: Records) -> LimitsView:
    view = LimitsView()
    for key, value in records:
        view.take(key, value)
    return view


def test_a_limit_reads_back_as_it_was_written() -> None:
    reservation = QuotaEntry(ALICE.entity, ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 512.0)
    budget = quota(StorageKey.STORED_BYTES, 2048.0, tenant="shop")
    topic = member(tenant="shop", topic="shop.*")
    for entry in (ALICE, ANYONE, ALICE_SHADOW, reservation, budget, topic):
        assert read_limit(limit_key(entry), limit_value(entry, version=3)) == entry


def test_the_topic_counts_as_unread_until_a_version_ends_and_then_has_both_modes() -> None:
    records = published([[ALICE, ALICE_SHADOW]])

    assert read(records[:-1]).in_force is None

    in_force = read(records).in_force
    assert in_force is not None
    assert in_force.version == 0
    assert in_force.enforced.resolve_client(QuotaKind.PRODUCER_BYTE_RATE, "alice", "app").limit == 1024.0
    assert in_force.shadow.resolve_client(QuotaKind.PRODUCER_BYTE_RATE, "alice", "app").limit == 512.0


def test_a_removed_quota_is_gone_with_the_version_that_removed_it() -> None:
    records = published([[ALICE, ANYONE], [ANYONE]])

    between, after = read(records[:-1]).in_force, read(records).in_force

    assert between is not None
    assert between.enforced.enabled(QuotaKind.PRODUCER_BYTE_RATE)
    assert after is not None
    assert not after.enforced.enabled(QuotaKind.PRODUCER_BYTE_RATE)


@given(VERSIONS)
def test_a_reader_that_comes_after_compaction_knows_the_same(versions: list[list[QuotaEntry]]) -> None:
    """Compaction keeps the last record of each key; tombstones may be gone too."""
    records = published(versions)
    last = {key: position for position, (key, _) in enumerate(records)}
    compacted = [record for position, record in enumerate(records) if last[record[0]] == position]

    without_removals: Records = [(key, value) for key, value in compacted if value is not None]
    for kept in (compacted, without_removals):
        view = read(kept)
        assert view.entries == read(records).entries
        assert view.in_force is not None
        assert view.in_force.version == len(versions) - 1


@given(VERSIONS, VERSIONS)
def test_a_reader_that_was_away_while_removals_went_notices_and_knows_all_once_it_reads_anew(
    before: list[list[QuotaEntry]], missed: list[list[QuotaEntry]]
) -> None:
    """Without its whole past no count would fit again."""
    records = published([*before, *missed])
    position = len(published(before))
    last = {key: place for place, (key, _) in enumerate(records)}
    kept: Records = [
        (key, value) for place, (key, value) in enumerate(records) if last[key] == place and value is not None
    ]
    away = read(records[:position])
    for key, value in records[position:]:
        if (key, value) in kept:
            away.take(key, value)

    fits = away.in_force is not None and away.in_force.version == len(before) + len(missed) - 1
    assert reading_of_limits("quota-limits", away).has_gaps() is not fits
    assert away.entries == read(records).entries or away.missed_removals
    assert not read(kept).missed_removals


@given(VERSIONS, st.data())
def test_a_version_with_a_lost_record_is_never_in_force(versions: list[list[QuotaEntry]], data: st.DataObject) -> None:
    first = published(versions[:1])
    if len(first) > 1:
        lost = data.draw(st.integers(0, len(first) - 2))
        assert read(first[:lost] + first[lost + 1 :]).in_force is None


def forged(**changes: object) -> bytes:
    return json.dumps({**json.loads(limit_value(ALICE, 1)), **changes}).encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, limit_value(ALICE, 1)),
        (limit_key(ALICE), b"no JSON"),
        (limit_key(ALICE), b"[" * 5000),
        (limit_key(ALICE), b"\xff"),
        (limit_key(ALICE), forged(value=0)),
        (limit_key(ALICE), forged(quota="byte_rate")),
        (limit_key(ALICE), forged(quota="topic_count")),
        (limit_key(ALICE), forged(mode="other")),
        (limit_key(ALICE), forged(entity={})),
        (limit_key(ALICE), limit_value(ANYONE, 1)),
        (VERSION_KEY, None),
        (VERSION_KEY, b"{}"),
    ],
)
def test_garbage_is_counted_and_changes_nothing(key: bytes | None, value: bytes | None) -> None:
    view = read(published([[ALICE, ANYONE]]))
    before, entries = view.in_force, dict(view.entries)

    with pytest.raises(InvalidQuotaError):
        view.take(key, value)
    reading_of_limits("quota-limits", view).on_record(key, value)  # for one who only looks it is no error

    assert view.garbage == 2
    assert view.in_force is before
    assert view.entries == entries
    view.take(VERSION_KEY, version_end(2, 2))
    assert view.in_force is not None
    assert view.in_force.version == 2


@pytest.mark.parametrize(("keys", "is_known"), [([limit_key(ALICE)], True), ([b"{\xff", b"x", VERSION_KEY], False)])
def test_a_limit_that_cant_be_read_keeps_no_other_back_until_the_next_record_of_its_key(
    keys: list[bytes], is_known: bool
) -> None:
    view = read(published([[ANYONE]])[:-1])
    for key in keys:
        view.take_readable(key, b"garbage")
    view.take(VERSION_KEY, version_end(1, 2))

    assert (view.in_force is not None, view.unreadable) == (is_known, set(keys) - {VERSION_KEY})
    for key in keys[:2]:
        view.take(key, None)
    view.take(VERSION_KEY, version_end(2, 1))
    assert view.in_force is not None
    assert (view.in_force.version, view.unreadable) == (2, set())


def test_no_limit_is_published_that_nobody_would_read() -> None:
    """As from a client that makes quotas by itself."""
    with pytest.raises(InvalidQuotaError, match="expected a whole number"):
        limit_value(quota(QuotaKind.PRODUCER_BYTE_RATE, 13_333.33, user="alice"), 1)
