"""The overrides in force while a demo runs: holds and tightening, as lines and as marks of rows."""

from collections.abc import Collection, Sequence
from typing import Self

from sluice.configs.settings import Settings
from sluice.kafka_io.topic_follower import TopicFollower
from sluice.process.texts import override_text
from sluice.state.contract.gateway_topics import Override
from sluice.state.quotas.limits import LimitsView
from sluice.state.quotas.overrides import overrides_now
from sluice_insight.row_marks import RowMarks
from sluice_reading.limits_topic import reading_of_limits


class InForce:
    """The overrides of the limits topic, read in the background until `close`. Times are epoch milliseconds."""

    def __init__(self, limits: LimitsView, follower: TopicFollower | None = None) -> None:
        self._limits, self._follower = limits, follower

    @classmethod
    def following(cls, settings: Settings) -> Self:
        """One that reads the topic of a job with these settings."""
        limits = LimitsView()
        follower = TopicFollower(settings.kafka, reading_of_limits(settings.topics.limits, limits))
        follower.start()
        return cls(limits, follower)

    def close(self) -> None:
        """Stop reading."""
        if self._follower is not None:
            self._follower.stop()

    def overrides(self, at_ms: int) -> Sequence[Override]:
        """The overrides that hold at this time."""
        return [each for _, each in overrides_now(self._limits.overrides, at_ms)]

    def lines(self, at_ms: int) -> Sequence[str]:
        """A line for each of them."""
        return [override_text(each) for each in self.overrides(at_ms)]

    def marks(self, gateways: Collection[str], at_ms: int) -> RowMarks:
        """Their marks of rows; `gateways` are the processes that were heard lately."""
        return RowMarks.of_limits(self._limits, gateways, at_ms)
