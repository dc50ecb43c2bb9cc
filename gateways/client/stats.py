"""The counts of a gateway."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple, get_type_hints


class Gauge(NamedTuple):
    """The metric `sluice_gateway_*` of a count: its text, its name where that is another one, and a divisor."""

    text: str
    name: str | None = None
    divisor: int = 1


class Counter(Gauge):
    """The metric of a count that only grows."""


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """Counts of one gateway. A decision's age is from a heartbeat's timestamp to the arrival of what was decided.

    The percentiles cover the last 1 024 heartbeats of all gateways. Heartbeats are events too. `limits_version` is None
    before the limits are read. `instances` are the names of the other gateways that are alive.
    """

    decided_waits: Annotated[int, Gauge("Counters that wait by decisions on events that weren't charged inline")]
    evicted_waits: Annotated[int, Counter("Decided waits given up because there were too many")]
    capped_waits: Annotated[int, Counter("Decided waits that asked for more than max_wait_ms")]
    sums: Annotated[int, Counter("Sums of entities that were read, one for each and micro-batch")]
    decision_age_p50_ms: int
    decision_age_p99_ms: int
    stale_s: Annotated[float, Gauge("Age of the oldest event that may be without a decision", "stale_seconds")]
    published: Annotated[int, Counter("Events that Kafka has", "published_events")]
    unsent: Annotated[int, Gauge("Events that wait for Kafka", "unsent_events")]
    dropped: Annotated[int, Counter("Events dropped because too many waited", "dropped_events")]
    failed: Annotated[int, Counter("Events given up", "failed_events")]
    limits_version: Annotated[int | None, Gauge("Version of the limits in force; -1 before one is complete")]
    allowed_before_limits: Annotated[int, Counter("Requests let through before the limits were known")]
    is_current: Annotated[bool, Gauge("1 when all waits that were decided before the start are known")]
    allowed_before_current: Annotated[int, Counter("Requests let through before all waits decided earlier were known")]
    unreadable_records: Annotated[int, Counter("Records of any topic that were skipped")]
    fenced_records: Annotated[int, Counter("Records of sums and waits left out that a replaced driver wrote")]
    reader_restarts: Annotated[int, Counter("Readers that failed and were started again")]
    charged_inline: Annotated[int, Counter("Requests charged inline")]
    throttled_inline: Annotated[int, Counter("Requests charged inline that had to wait")]
    throttled_inline_ms: Annotated[int, Counter("Their waits in all", "throttled_inline_seconds", 1000)]
    inline_waits: Annotated[int, Gauge("Counters that wait by inline charging")]
    counters: Annotated[int, Gauge("Counters of own clients that are kept")]
    forgotten: Annotated[int, Counter("Counters forgotten because there were too many", "forgotten_counters")]
    gateways: Annotated[int, Gauge("Gateways that are alive, this one included")]
    instances: tuple[str, ...]


METRICS: dict[str, Gauge] = {
    field: hint.__metadata__[0]
    for field, hint in get_type_hints(GatewayStats, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""Field of GatewayStats -> its metric."""
