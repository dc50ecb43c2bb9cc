"""Notices of limits: once for each crossing, and never twice in ten minutes."""

import json
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import SETTINGS
from sluice.kafka_io import topic_reader
from sluice.process.clock import now_ms
from sluice.state.quotas.entity import Tags
from sluice_insight.commands.notices import NoticeSteps
from sluice_insight.live import LiveModel
from sluice_insight.notices import (
    LEVELS,
    QUIET_MS,
    THROTTLED,
    NoticeKey,
    NoticesTopic,
    State,
    Usage,
    notices,
    restored,
    usages_of,
)
from tests.builders import decision
from tests.commands import invoke

ALICE, BOB = Tags(user="alice"), Tags(user="bob", client_id="app")
STEPS = st.lists(st.tuples(st.integers(1_000, 300_000), st.floats(0, 3), st.integers(0, 60_000)), max_size=60)


def usage(used: float | None, waited_ms: int = 0, whose: Tags = ALICE) -> Usage:
    return Usage(whose, "producer_byte_rate", used, 1e6, waited_ms)


def told(*steps: tuple[int, float, int]) -> list[tuple[int, str]]:
    """The minute and threshold of each notice, for uses and waits by minute."""
    state, found = State(), []
    for minute, used, waited_ms in steps:
        new, state = notices(state, [usage(used, waited_ms)], minute * 60_000)
        found += [(minute, key.threshold) for key in new]
    return found


@given(STEPS)
def test_a_counter_has_no_two_notices_of_a_threshold_in_ten_minutes_nor_one_while_it_is_below(
    steps: list[tuple[int, float, int]],
) -> None:
    at_ms, state, last_ms, is_above = 0, State(), dict[str, int](), dict[str, bool]()
    for later_ms, used, waited_ms in steps:
        at_ms += later_ms
        found, state = notices(state, [usage(used, waited_ms)], at_ms)
        for key in found:
            above = waited_ms > 0 if key.threshold == THROTTLED else used >= LEVELS[key.threshold]
            assert above
            assert not is_above.get(key.threshold)
            assert at_ms - last_ms.get(key.threshold, -QUIET_MS) >= QUIET_MS
            last_ms[key.threshold] = at_ms
        for name, level in LEVELS.items():
            is_above[name] = used >= level or (is_above.get(name, False) and used >= level - 0.05)
        is_above[THROTTLED] = waited_ms > 0


def test_each_crossing_is_told_once_the_highest_of_several_and_the_first_wait() -> None:
    assert told((0, 0.6, 0), (1, 0.7, 0), (2, 1.2, 0), (3, 1.2, 900), (4, 1.1, 5)) == [
        (0, "50"),
        (2, "100"),
        (3, THROTTLED),
    ]


def test_a_counter_at_its_limit_for_hours_is_told_once_and_again_after_it_was_below() -> None:
    hours = [(minute, 1.0, 0) for minute in range(180)]
    assert told(*hours, (180, 0.3, 0), (181, 1.0, 0)) == [(0, "100"), (181, "100")]


def test_the_two_of_a_moment_are_of_two_counters() -> None:
    found, _ = notices(State(), [usage(0.5), usage(0.5, 0, BOB)], 0)
    assert {key.counter for key in found} == {ALICE, BOB}
    assert {NoticeKey.read(key.encode()) for key in found} == {*found}


def test_a_follower_that_comes_again_says_nothing_of_what_was_told_before() -> None:
    found, _ = notices(State(), [usage(0.95)], 0)
    again, _ = notices(restored(found), [usage(0.95)], 10 * QUIET_MS)
    assert again == {}


def test_shadow_quotas_and_counters_without_a_limit_have_none() -> None:
    model, at_ms = LiveModel(), now_ms()
    shadow, unlimited = {"mode": "shadow"}, {"limit": None}
    each = [decision(at_ms, user=name, charge=charge) for name, charge in (("a", {}), ("b", shadow), ("c", unlimited))]
    model.on_records((json.dumps(one).encode() for one in each), at_ms)
    assert [each.counter.user for each in usages_of(model, at_ms)] == ["a"]


class ToldTopic(NoticesTopic):
    """The topic of notices, which nobody has written to; it counts how often it is read."""

    read = 0

    def made(self) -> State:
        self.read += 1
        return State()


class NoDecisions:
    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read_to_end(self) -> list[object]:
        return []


def test_the_topic_of_notices_is_read_once_at_the_start_and_once_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_reader, "TopicReader", NoDecisions)
    told = ToldTopic({}, "quota-notices", 1)
    steps = NoticeSteps(SETTINGS, told, told.made())

    next(steps())
    assert told.read == 1
    next(steps())  # as its service begins again
    assert told.read == 2


@pytest.mark.parametrize("topic", ["quota-requests", "quota-limits", "quota-claims"])
def test_notices_go_to_no_topic_of_the_job(topic: str) -> None:
    said = invoke("notices", "--topic", topic, code=2).error

    assert f"--topic {topic} is one of the job's own topics" in said
