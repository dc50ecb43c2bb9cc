"""The engine in native code, which leaves to Python what isn't plain, and everything without the library."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

import pyarrow as pa

from sluice.state.contract.gateway_topics import Overrides
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.engine import DecidedPages, Made, PageToDecide, PlannedPages, PythonEngine
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Keyed, KeyedArrays
from sluice_native.contract import contract
from sluice_native.decide import native_charger
from sluice_native.library import native_code
from sluice_native.plan import native_planner


class NativeEngine(PythonEngine):
    """Plain events and pages in C; a page or a group of partial decisions that it declines is Python's as a whole."""

    daemon = "sluice_native.daemon"
    batched_daemon = "sluice_native.batched_daemon"

    @property
    def place(self) -> str:
        """The file of the library."""
        return str(native_code().path)

    @property
    def unusable(self) -> str | None:
        """The reason why the library can't be used; the first call loads it."""
        return native_code().reason

    def broken_contract(self) -> str | None:
        """The reason why groups can't be batched with this PySpark."""
        return contract()[1]

    def plan(
        self,
        batches: Iterable[pa.RecordBatch],
        quotas: Quotas,
        settings: PipelineSettings,
        decided_at_ms: int,
        overrides: Overrides | None,
    ) -> Iterator[PlannedPages]:
        """Page batches of Kafka records; an event that isn't plain is planned by Python, at its place."""
        native = native_planner(quotas, settings)
        if native is None:
            return super().plan(batches, quotas, settings, decided_at_ms, overrides)
        return native.plan(batches, decided_at_ms, overrides)

    def decide(self, pages: Sequence[PageToDecide], settings: PipelineSettings) -> DecidedPages:
        """Charge the counters of some pages; those that are declined come last, together."""
        native = native_charger(settings)
        if native is None:
            return super().decide(pages, settings)
        records, waits, partial, sums, stored, evicted = native.decide(pages)
        made = Made(records, waits, partial, sums)
        declined = [new is None for new in stored]
        if not any(declined):
            return DecidedPages([made], [new for new in stored if new is not None], evicted)
        rest = super().decide([*compress(pages, declined)], settings)
        of_rest = iter(rest.stored)
        whole = [next(of_rest) if new is None else new for new in stored]
        return DecidedPages([made, *rest.made], whole, evicted.plus(rest.evicted))

    def combine(
        self, payloads: Sequence[pa.Buffer], settings: PipelineSettings
    ) -> Mapping[str, Keyed] | Mapping[str, KeyedArrays]:
        """The records of encoded partial decisions by topic."""
        native = native_charger(settings)
        records = None if native is None else native.combine(payloads)
        return super().combine(payloads, settings) if records is None else records
