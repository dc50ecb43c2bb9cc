"""The situation that is simulated: a quota, gateways, clients, and what happens to them."""

from dataclasses import dataclass, replace
from enum import StrEnum

from sluice.state.quotas.kinds import QuotaKind


class Spread(StrEnum):
    """How the traffic of a client is spread over the gateways; the last two are for real brokers alone."""

    EVEN = "even"
    SKEW = "skew"
    ONE = "one"
    MOVE = "move"
    HOP = "hop"


SIMULATED = (Spread.EVEN, Spread.SKEW, Spread.ONE)
"""The spreads of a simulation."""


class Counters(StrEnum):
    """Whether all clients are charged to one counter or each to its own."""

    SHARED = "shared"
    OWN = "own"


class Waits(StrEnum):
    """Which waits hold clients back: those that gateways find in line, those of the decisions, or the longer one."""

    IN_LINE = "in-line"
    DECIDED = "decided"
    BOTH = "both"


SKEW = 0.7
"""Part of the traffic that goes to the first gateway with Spread.SKEW."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything one simulation depends on.

    `limit` and `demand` are in units of the quota per second (bytes/s; percent), `size` is one request in units of the
    quota (bytes; percent-seconds, so 10 ms of a thread are 1). The demand is that of all clients together. Every client
    has a connection to each gateway, and each connection sends one request after the other. `job_down` is from when to
    when no decision is made, `limit_change` when the limit becomes what, all in seconds.
    """

    quota: QuotaKind
    limit: float
    demand: float
    size: float
    gateways: int = 4
    latency_ms: int = 300
    spread: Spread = Spread.EVEN
    clients: int = 1
    counters: Counters = Counters.SHARED
    on_ms: int = 0
    off_ms: int = 0
    seconds: int = 900
    seed: int = 1
    join: float | None = None
    leave: float | None = None
    job_down: tuple[float, float] | None = None
    limit_change: tuple[float, float] | None = None
    clock_skew_ms: int = 0
    waits: Waits = Waits.IN_LINE

    def alone(self) -> "Situation":
        """The same clients on one gateway whose decisions take no time, which is one Kafka broker."""
        return replace(
            self,
            gateways=1,
            latency_ms=0,
            spread=Spread.EVEN,
            join=None,
            leave=None,
            job_down=None,
            clock_skew_ms=0,
            waits=Waits.IN_LINE,
        )

    def limit_at(self, time_ms: float) -> float:
        """The limit of a counter at a time."""
        if self.limit_change is not None and time_ms >= self.limit_change[0] * 1000:
            return self.limit_change[1]
        return self.limit

    def allowed(self, from_ms: float, to_ms: float) -> float:
        """What the quota allows all clients together between two times."""
        counters = self.clients if self.counters is Counters.OWN else 1
        changed_ms = min(max((self.limit_change or (self.seconds, 0.0))[0] * 1000, from_ms), to_ms)
        before, after = changed_ms - from_ms, to_ms - changed_ms
        return (before * self.limit_at(from_ms) + after * self.limit_at(to_ms)) / 1000 * counters

    def parts(self, gateways: int) -> list[float]:
        """The part of a client's demand that goes to each of so many gateways."""
        if gateways == 1 or self.spread is Spread.EVEN:
            return [1.0 / gateways] * gateways
        if self.spread is Spread.ONE:
            return [1.0] + [0.0] * (gateways - 1)
        return [SKEW] + [(1.0 - SKEW) / (gateways - 1)] * (gateways - 1)

    def is_on(self, time_ms: float) -> bool:
        """Whether clients send at this time."""
        return not self.off_ms or time_ms % (self.on_ms + self.off_ms) < self.on_ms

    def next_on_ms(self, time_ms: float) -> float:
        """When clients that don't send go on."""
        period_ms = self.on_ms + self.off_ms
        return (time_ms // period_ms + 1) * period_ms
