"""The facts that the job polls for what is wrong now."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from kafka.errors import LeaderNotAvailableError

from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.topic_needs import needs
from sluice.state.troubles import BrokersSeen, DeadLettersSeen, Facts, Flow, TopicsSeen, troubles_of
from sluice_reading.newest_records import NewestRecords
from sluice_toolbox import topics_seen, troubles_watch
from sluice_toolbox.troubles_watch import TroublesWatch
from tests.builders import DEFAULTS
from tests.waiting import eventually


def test_no_broker_is_silent_to_a_job_that_has_just_begun_to_read_or_was_suspended() -> None:
    """After a suspension of six minutes all brokers were said to be silent, and the cure to restart them."""
    at_s = [0.0]
    watch = TroublesWatch(DEFAULTS, lambda _: Facts(beats={}, heard_s=60), tuple, clock_s=lambda: at_s[0])
    heard_s = {}
    for at_s[0] in (5.0, 34.0, 63.0, 423.0, 452.0, 481.0, 484.0):
        watch.note_poll()
        heard_s[at_s[0]] = watch.facts().heard_s

    assert heard_s == {5.0: 0, 34.0: 0, 63.0: 60, 423.0: 0, 452.0: 0, 481.0: 0, 484.0: 60}


def poll_that_fails(watch: TroublesWatch) -> str:
    """The error of the first poll, in one line."""
    polling, _ = watch.services()
    with polling:
        eventually(lambda: polling.last_error.line is not None)
    return polling.last_error.line or ""


def test_a_fault_that_makes_one_poll_fail_is_seen_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a leader made the poll of the newest records fail, and with it the search for leaders."""
    seen, logged = BrokersSeen([], leaderless=["quota-requests-0"]), DeadLettersSeen(3, "garbage")

    def no_leader(_: object) -> Flow:
        raise LeaderNotAvailableError("partition 0 of topic quota-requests has no leader")

    monkeypatch.setattr(NewestRecords, "flow", no_leader)
    monkeypatch.setattr(NewestRecords, "dead_letters", lambda *_: logged)
    for name, answer in {"topics_seen": TopicsSeen(), "connect": nullcontext(Mock()), "read_replicas": seen}.items():
        monkeypatch.setattr(troubles_watch, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(troubles_watch, "silent_servers", lambda _: [])
    monkeypatch.setattr(troubles_watch, "read_broker_configs", lambda _: {})
    monkeypatch.setattr(troubles_watch, "client_quotas", lambda _: Mock(entries=[]))
    monkeypatch.setattr(troubles_watch, "own_login", lambda *_: Mock(limited=("", "")))
    watch = TroublesWatch(DEFAULTS, lambda _: Facts(), tuple)

    assert "has no leader" in poll_that_fails(watch)
    assert watch.facts().brokers == seen
    assert watch.facts().dead_letters == logged
    assert "no_leader" in {each.name for each in troubles_of(watch.facts(), 0)}


def test_addresses_that_are_silent_are_known_where_no_broker_answers_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise KafkaUnavailableError("no Kafka broker answers")

    monkeypatch.setattr(troubles_watch, "topics_seen", nobody)
    monkeypatch.setattr(troubles_watch, "connect", nobody)
    monkeypatch.setattr(troubles_watch, "silent_servers", lambda _: ["b:9092"])
    monkeypatch.setattr(NewestRecords, "flow", nobody)
    monkeypatch.setattr(NewestRecords, "dead_letters", nobody)
    watch = TroublesWatch(DEFAULTS, lambda _: Facts(), tuple)

    assert "no Kafka broker answers" in poll_that_fails(watch)
    assert watch.facts().brokers == BrokersSeen(silent=["b:9092"])


@pytest.mark.parametrize("missing", [["quota-sums"], []])
def test_a_missing_topic_is_told_of_though_the_others_can_not_be_compared(
    missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison may fail by the same fault; without a missing topic it is the one that is raised."""

    def broken(*_: object, **__: object) -> None:
        raise LeaderNotAvailableError("partition 0 of topic quota-requests has no leader")

    admin = Mock(list_topics=lambda: [name for name in needs(DEFAULTS.topics) if name not in missing])
    monkeypatch.setattr(topics_seen, "connect", lambda *_: nullcontext(admin))
    monkeypatch.setattr(topics_seen, "differing_topics", broken)

    if missing:
        assert topics_seen.topics_seen(DEFAULTS.topics, DEFAULTS.kafka, {}) == TopicsSeen(missing)
    else:
        with pytest.raises(LeaderNotAvailableError):
            topics_seen.topics_seen(DEFAULTS.topics, DEFAULTS.kafka, {})
