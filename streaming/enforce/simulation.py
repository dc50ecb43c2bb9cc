"""Deciding a file of events without Spark or Kafka, through the pipeline of the job."""

from collections.abc import Iterable, Iterator

from sluice.configs.settings import Settings
from sluice.state.contract.records import MAX_TIMESTAMP_MS, Request
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import Pages
from sluice.streaming.enforce import pipeline
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.planning import plan_request, plan_unmute, read_event
from sluice.streaming.enforce.source import Source
from sluice.streaming.enforce.wire import OutputRecord, Parcel


class Simulation:
    """One source partition and one page: events are decided in the order given."""

    def __init__(self, quotas: Quotas, settings: Settings) -> None:
        self._quotas = quotas
        pipeline_settings = PipelineSettings.of(settings)
        # An event's own time stands for its record's, so no event can lie in the future or the past.
        limits = pipeline_settings.limits._replace(max_future_ms=MAX_TIMESTAMP_MS, max_past_ms=MAX_TIMESTAMP_MS)
        self._settings = pipeline_settings._replace(limits=limits)
        self._counters = Pages()
        self._newest_ms = 0
        self._next_offset = 0

    def decide(self, events: Iterable[bytes]) -> Iterator[OutputRecord]:
        """A decision or dead letter per event. An event without a time gets the time of the previous request."""
        for value in events:
            yield self._decide(value, Source(self._settings.requests_topic, 0, self._next_offset, self._newest_ms))
            self._next_offset += 1

    def _decide(self, value: bytes, source: Source) -> OutputRecord:
        event = read_event(value, source, self._settings)
        if isinstance(event, OutputRecord):
            return event
        if isinstance(event, Request):
            self._newest_ms = event.timestamp_ms or 0
            planned = plan_request(event, source, self._quotas, self._settings, decided_at_ms=self._newest_ms)
        else:
            planned = plan_unmute(event, source, self._quotas, self._settings, decided_at_ms=self._newest_ms)
        if isinstance(planned, OutputRecord):
            return planned
        records, parts, _ = pipeline.decide(self._counters, [Parcel(planned)], self._settings)
        (record,) = [*records, *pipeline.combine(parts, self._settings)]
        return record
