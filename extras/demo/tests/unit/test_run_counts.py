"""Counts of a run on topics and tables that others used before."""

from collections import Counter

import pytest

from sluice.configs.settings import load_settings
from sluice_demo import counts
from sluice_demo.counts import Surplus, drain, missing_answers
from sluice_demo.job import RunError


def test_answers_to_requests_of_a_topic_before_are_none_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests topic was made again, while topics of answers and tables stayed."""
    settings = load_settings(environment={})
    topics, delta = settings.topics, settings.delta
    records = Counter({topics.requests: 2, topics.decisions: 40, topics.dead_letters: 2})
    in_delta = Counter({delta.decisions: 38, delta.unreadable: 1})
    monkeypatch.setattr(counts, "stored", lambda _, topic: records[topic])
    monkeypatch.setattr(counts, "rows", in_delta.__getitem__)
    before = Surplus.of(settings)

    records[topics.requests] += 3
    records[topics.decisions] += 2

    assert before == Surplus(answers=40, rows=37)
    assert missing_answers(settings, before) == 1
    with pytest.raises(RunError):
        drain(settings, 0.01, before)
    records[topics.dead_letters] += 1
    in_delta[delta.decisions] += 3
    drain(settings, 0.01, before)
    assert missing_answers(settings, before) == 0
