"""What a gateway counts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """Counts of one gateway. A decision's age is from the request's timestamp to the decision's arrival.

    `muted` counters have a wait that was decided, `evicted` waits were given up because there were too many, `capped`
    ones asked for more than `max_mute_ms`. The percentiles cover the last 1 024 decisions. `stale_s` is the age of the
    oldest event that may be without a decision. `unsent` events wait for Kafka, `dropped` ones found the buffer full,
    `failed` ones were given up; heartbeats are events too. `limits_version` is the version of the limits in force, None
    before they are read; the requests that were let through meanwhile are `allowed_before_limits`. `is_current` says
    whether the waits decided earlier are read; requests let through before are `allowed_before_current`.
    `unreadable_records` of all topics were skipped, `fenced_decisions` left out because a replaced
    driver wrote them, `reader_restarts` says how often a reader failed and was started
    again.

    `charged_in_line` requests were charged by `admit`; `throttled_in_line` of them had to wait, for
    `throttled_in_line_ms` in all. `held` counters wait in line. `waits_compared` of those requests are decided, and the
    waits applied differ from those decided by `wait_difference_ms` in all. `counters` are kept, `forgotten` ones were
    given up because there were too many. `gateways` are alive, oneself included; `instances` are the others.
    """

    muted: int
    evicted: int
    decisions: int
    decision_age_p50_ms: int
    decision_age_p99_ms: int
    stale_s: float
    published: int
    unsent: int
    dropped: int
    failed: int
    capped: int = 0
    limits_version: int | None = None
    allowed_before_limits: int = 0
    is_current: bool = False
    allowed_before_current: int = 0
    unreadable_records: int = 0
    fenced_decisions: int = 0
    reader_restarts: int = 0
    charged_in_line: int = 0
    throttled_in_line: int = 0
    throttled_in_line_ms: int = 0
    held: int = 0
    waits_compared: int = 0
    wait_difference_ms: int = 0
    counters: int = 0
    forgotten: int = 0
    gateways: int = 1
    instances: tuple[str, ...] = ()
