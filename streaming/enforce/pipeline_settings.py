"""The settings of the pipeline."""

from typing import NamedTuple

from sluice.configs.settings import Settings
from sluice.state.quotas.kinds import QuotaSettings
from sluice.streaming.checkpoint.page_count import new_pages
from sluice.streaming.enforce.parsing import EventLimits


class PipelineSettings(NamedTuple):
    """The job's settings that plan, decide and combine need. `job_id` marks its decisions, None without a job."""

    requests_topic: str
    decisions_topic: str
    dead_letters_topic: str
    waits_topic: str
    quota: QuotaSettings
    limits: EventLimits
    pages: int
    idle_expiry_ms: int
    max_entities: int
    job_id: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> "PipelineSettings":
        """The pipeline's part of the job's settings."""
        return cls(
            settings.topics.requests,
            settings.topics.decisions,
            settings.topics.dead_letters,
            settings.topics.waits,
            settings.quota,
            EventLimits(
                settings.enforce.max_event_bytes,
                settings.enforce.max_future_ms,
                settings.enforce.max_past_ms,
                settings.enforce.max_charges_per_event,
            ),
            new_pages(settings),
            settings.state.idle_expiry_s * 1000,
            settings.state.max_entities,
        )
