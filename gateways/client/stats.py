"""The counts of a gateway."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """Counts of one gateway. A decision's age is from a heartbeat's timestamp to the arrival of what was decided.

    `decided_waits` counters wait because of decisions on events that no gateway had charged inline. `evicted_waits`
    of them were given up because there were too many; `capped_waits` asked for more than `max_wait_ms`. `sums` of
    entities were read, one for each and micro-batch. The percentiles cover the last 1 024 heartbeats of all
    gateways. `stale_s` is the age of the oldest event that may be without a decision. `unsent` events wait for
    Kafka, `dropped` ones found the buffer full, `failed` ones were given up; heartbeats are events too.
    `limits_version` is the version of the limits in force, None before they are read; the requests that were let
    through until then are `allowed_before_limits`. `is_current` is True when the waits decided earlier are read;
    requests let through until then are `allowed_before_current`. `unreadable_records` of all topics were skipped,
    `fenced_records` left out because a replaced driver wrote them, `reader_restarts` counts readers that failed and
    were started again.

    `charged_inline` requests were charged by `admit`; `throttled_inline` of them had to wait, `throttled_inline_ms`
    in all. `inline_waits` counters wait because of that. `counters` are kept, `forgotten` ones were given up
    because there were too many. `gateways` are alive, including this one; `instances` are the names of the others.
    """

    decided_waits: int
    evicted_waits: int
    capped_waits: int
    sums: int
    decision_age_p50_ms: int
    decision_age_p99_ms: int
    stale_s: float
    published: int
    unsent: int
    dropped: int
    failed: int
    limits_version: int | None
    allowed_before_limits: int
    is_current: bool
    allowed_before_current: int
    unreadable_records: int
    fenced_records: int
    reader_restarts: int
    charged_inline: int
    throttled_inline: int
    throttled_inline_ms: int
    inline_waits: int
    counters: int
    forgotten: int
    gateways: int
    instances: tuple[str, ...]
