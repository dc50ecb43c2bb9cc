"""Deciding a file of events without Spark or Kafka, with the very code of the job."""

from collections.abc import Iterable, Iterator

from configs.settings import Settings
from state.errors import InvalidRequestError
from state.request import MAX_TIMESTAMP_MS
from state.resolution import Quotas
from state.shard import Shard
from streaming.deciding import combine_rows, decide_rows
from streaming.events import Source, parse_request
from streaming.planning import PlanSettings, plan_request
from streaming.records import ChargeRow, OutputRecord, Parcel, dead_letter_record, decode_partials


class Simulation:
    """One source partition and one shard: events are decided in the order given."""

    def __init__(self, quotas: Quotas, settings: Settings) -> None:
        self._quotas = quotas
        plan = PlanSettings.of(settings)
        # An event's own time stands for its record's, so none can lie in the future.
        self._settings = plan._replace(shards=1, limits=plan.limits._replace(max_future_ms=MAX_TIMESTAMP_MS))
        self._shard = Shard()
        self._newest_ms = 0
        self._next_offset = 0

    def change_quotas(self, quotas: Quotas) -> None:
        """Decide later events under other quotas; the counters stay as they are."""
        self._quotas = quotas

    def decide(self, events: Iterable[bytes]) -> Iterator[OutputRecord]:
        """A decision or dead letter for each event; one without a time happens when the event before it did."""
        for value in events:
            yield self._decide(value, Source(self._settings.requests_topic, 0, self._next_offset, self._newest_ms))
            self._next_offset += 1

    def _decide(self, value: bytes, source: Source) -> OutputRecord:
        try:
            request = parse_request(value, source, self._settings.limits)
        except InvalidRequestError as error:
            return dead_letter_record(self._settings.dead_letters_topic, value, source, error)
        self._newest_ms = request.timestamp_ms or 0
        planned = plan_request(request, source, self._quotas, self._settings, decided_at_ms=self._newest_ms)
        topic, quota = self._settings.decisions_topic, self._settings.quota
        parcel = Parcel([row for _, row in planned if isinstance(row, ChargeRow)], [])
        parcel.records.extend(row for _, row in planned if isinstance(row, OutputRecord))
        (record,) = decide_rows(self._shard, [parcel], topic, quota)
        return record if record.topic is not None else combine_rows(decode_partials(record.value), topic, quota)
