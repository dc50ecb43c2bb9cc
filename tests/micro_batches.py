"""The enforce query's pipeline without Spark: micro-batches through plan, decide and combine, with stored state."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from sluice.state.quotas.resolution import Quotas
from sluice.state.store.pages import Page
from sluice.streaming.enforce import pipeline
from sluice.streaming.enforce.engine import PageToDecide
from sluice.streaming.enforce.pipeline import ChargedRows
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import (
    ChargeRow,
    Keyed,
    OutputRecord,
    Outputs,
    PageBatch,
    PartialDecision,
    Source,
    decode_group,
    decode_page_batch,
    encode_page_batch,
    encoded_groups,
    packed,
)
from tests.decided_pages import check_engine

Shuffle = Callable[[list[ChargeRow | OutputRecord]], list[ChargeRow | OutputRecord]]


class MicroBatches:
    """Runs the pipeline on one micro-batch after another; rows and state are encoded in between, as in Spark.

    The engine of this process decides each page as well, and has to decide the same.
    """

    def __init__(self, settings: PipelineSettings, idle_expiry_ms: int = 3_600_000) -> None:
        self._settings = settings._replace(idle_expiry_ms=idle_expiry_ms)
        self.state: dict[int, bytes] = {}
        self.waits: list[tuple[bytes, bytes | None]] = []
        """Key and value of each record for the waits topic so far."""

    def run(
        self,
        events: Sequence[tuple[bytes | None, Source]],
        quotas: Quotas,
        shuffle: Shuffle = list,
        decided_at_ms: int = 0,
    ) -> list[OutputRecord]:
        """Decide one micro-batch; `shuffle` puts a page's rows in the order in which Spark happens to give them."""
        rows_by_page: dict[int, list[ChargeRow | OutputRecord]] = defaultdict(list)
        for page_batches in pipeline.plan(events, quotas, self._settings, decided_at_ms):
            for number, page_batch in page_batches.items():
                decoded = decode_page_batch(page_batch)
                rows_by_page[number] += [*decoded.charge_rows, *decoded.records]
        records: list[OutputRecord] = []
        partial: list[PartialDecision] = []
        for number, rows in rows_by_page.items():
            decided = self._decide(number, shuffle(rows))
            records += decided.outputs.records()
            for packed_row in packed(Outputs(), encoded_groups(decided.partial_decisions)):
                for payload in packed_row.values:
                    partial += decode_group(payload or b"")
        return [*records, *pipeline.combine(partial, self._settings).records()]

    def _decide(self, number: int, rows: list[ChargeRow | OutputRecord]) -> ChargedRows:
        settings = self._settings
        page = Page(number, settings.pages, self.state.get(number))
        page_batches = [encode_page_batch(_page_batch(row)) for row in rows]
        check_engine([PageToDecide(number, self.state.get(number), page_batches)], settings)
        decided = pipeline.decide(page, page_batches, settings)
        waits = decided.outputs.pop(settings.waits_topic, Keyed())
        self.waits += [(key or b"", value) for key, value in zip(waits.keys, waits.values, strict=True)]
        self.state[number] = page.to_bytes(settings.idle_expiry_ms, settings.quota)
        return decided


def _page_batch(row: ChargeRow | OutputRecord) -> PageBatch:
    return PageBatch([row], []) if isinstance(row, ChargeRow) else PageBatch([], [row])
