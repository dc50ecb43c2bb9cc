"""Clients with quotas of their own, and the bytes that Python's objects take."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Source
from tests.builders import DEFAULTS, quota

DECIDED_AT_MS = 1_800_000_000_000
SETTINGS = PipelineSettings.of(DEFAULTS)
KINDS = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)


def own_quotas(clients: int) -> Quotas:
    """Quotas of each of so many clients."""
    return Quotas([quota(kind, 9.0 + number, user=f"user-{number}") for number in range(clients) for kind in KINDS])


def sources(count: int) -> list[Source]:
    """The places of so many events."""
    return [Source(SETTINGS.requests_topic, 0, offset, DECIDED_AT_MS) for offset in range(count)]


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Bytes that Python's objects take since the beginning."""

    def taken() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        yield taken
    finally:
        tracemalloc.stop()
