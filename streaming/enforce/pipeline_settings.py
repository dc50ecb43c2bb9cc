"""The part of the job's settings that plan, decide and combine need, and what a micro-batch's record keeps of it."""

from typing import NamedTuple

from sluice.configs.capacity import broker_limits
from sluice.configs.settings import Settings
from sluice.state.decisions.checks import EventLimits
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.shares.load import NO_LIMITS, BrokerLimits
from sluice.streaming.checkpoint.batch_log import BatchSettings
from sluice.streaming.checkpoint.origin import new_pages


class PipelineSettings(NamedTuple):
    """The job's settings that plan, decide and combine need. `job_id` marks its decisions, None without a job.

    `topic_id` is Kafka's id of the requests topic; None if it isn't known. `max_record_bytes` is the largest record
    that the topics of the answers take.
    """

    requests_topic: str
    decisions_topic: str
    dead_letters_topic: str
    waits_topic: str
    sums_topic: str
    quota: QuotaSettings
    limits: EventLimits
    pages: int
    idle_expiry_ms: int
    max_entities: int
    max_record_bytes: int
    job_id: str | None = None
    topic_id: str | None = None
    broker_limits: BrokerLimits = NO_LIMITS

    @classmethod
    def of(cls, settings: Settings, pages: int | None = None, limits: BrokerLimits | None = None) -> "PipelineSettings":
        """The pipeline's part of the job's settings, with as many pages as a new checkpoint has if none are given.

        `limits` are those of brokers, by default as the settings say.
        """
        return cls(
            settings.topics.requests,
            settings.topics.decisions,
            settings.topics.dead_letters,
            settings.topics.waits,
            settings.topics.sums,
            settings.quota,
            EventLimits(
                settings.enforce.max_event_bytes,
                settings.enforce.max_future_ms,
                settings.enforce.max_past_ms,
                settings.enforce.max_charges_per_event,
            ),
            new_pages(settings) if pages is None else pages,
            settings.state.idle_expiry_s * 1000,
            settings.state.max_entities,
            settings.topics.max_message_bytes,
            broker_limits=broker_limits(settings.brokers) if limits is None else limits,
        )

    def batch_settings(self, release: str) -> BatchSettings:
        """The part that a micro-batch's record keeps: all that can change a decision or a dead letter.

        Not how long and how many counters are kept: a repetition may forget other idle ones.
        """
        return BatchSettings(release, self.topic_id, self.max_record_bytes, self.limits, self.quota)

    def with_batch_settings(self, recorded: BatchSettings) -> "PipelineSettings":
        """The settings of a micro-batch that is repeated.

        The topics may take smaller records now, and would refuse a larger one at each attempt.
        """
        most = min(self.max_record_bytes, recorded.max_record_bytes)
        return self._replace(max_record_bytes=most, limits=recorded.limits, quota=recorded.quota)
