"""Events decided one by one, as the job decides them: for `sluice simulate`, and for tests."""

from collections.abc import Iterable, Iterator

from sluice.configs.settings import Settings
from sluice.state.contract.records import MAX_TIMESTAMP_MS, Request
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import Page
from sluice.streaming.enforce.pipeline import combine, decide
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.planning import Planned, Planner, read_event
from sluice.streaming.enforce.wire import GrowingPageBatch, OutputRecord, Source


class Simulation:
    """One source partition and one page: events are decided in the order given. `job_id` marks what is decided."""

    def __init__(self, quotas: Quotas, settings: Settings, job_id: str | None = None) -> None:
        pipeline_settings = PipelineSettings.of(settings, pages=1)
        # An event's own time stands for its record's, so no event can lie in the future or the past.
        limits = pipeline_settings.limits._replace(max_future_ms=MAX_TIMESTAMP_MS, max_past_ms=MAX_TIMESTAMP_MS)
        self._settings = pipeline_settings._replace(limits=limits, job_id=job_id)
        self._planner, self._version = Planner(quotas, self._settings), quotas.version
        self._page = Page()
        self._newest_ms = 0
        self._next_offset = 0

    def decide(self, events: Iterable[bytes]) -> Iterator[OutputRecord]:
        """A decision or dead letter per event. An event without a time gets the time of the previous request."""
        return (record for record in self.records(events) if record.topic != self._settings.sums_topic)

    def records(self, events: Iterable[bytes]) -> Iterator[OutputRecord]:
        """All records of the job but waits: each event is a micro-batch, and its decision comes first."""
        for value in events:
            yield from self._decide(value, Source(self._settings.requests_topic, 0, self._next_offset, self._newest_ms))
            self._next_offset += 1

    def _decide(self, value: bytes, source: Source) -> Iterator[OutputRecord]:
        event = read_event(value, source, self._settings, self._newest_ms)
        planned: Planned
        if isinstance(event, Request):
            self._newest_ms = event.timestamp_ms or 0
        if isinstance(event, OutputRecord):
            planned = [event]
        else:
            planned = self._planner.plan(event, source, self._planner.batch_fields(self._newest_ms))
        page_batch = GrowingPageBatch()
        for each in planned:
            if isinstance(each, OutputRecord):
                page_batch.records.append(each)
            else:
                page_batch.add(each[1])
        outputs, partial_decisions, sums = decide(self._page, [page_batch.encoded()], self._settings)
        outputs.pop(self._settings.waits_topic, None)
        yield from [*outputs.records(), *combine(partial_decisions, self._settings).records()]
        for record in sums.records(self._settings.job_id, source.offset, self._version):
            yield OutputRecord(self._settings.sums_topic, b"0", record)
