"""Limits from the topic."""

from sluice.kafka_io.topic_follower import Reading
from sluice.state.quotas.limits import LimitsView


def reading_of_limits(topic: str, view: LimitsView) -> Reading:
    """The limits topic, for one who only looks: a record that holds no limit is counted by the view alone."""
    return Reading(topic, view.take_readable, on_restart=view.begin_again, has_gaps=lambda: view.missed_removals)
