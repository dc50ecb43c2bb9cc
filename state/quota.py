"""Quota kinds and the settings of their arithmetic.

Sources: KIP-599 (controller mutations), KIP-124 (request time), KIP-1010 (topic-partitions), Kafka's byte-rate quotas.
"""

from dataclasses import dataclass
from enum import StrEnum

UNLIMITED = 9.223372036854775807e18
"""Kafka's "no quota": Long.MAX_VALUE as a double."""

MAX_THROTTLE_MS = 2_147_483_647
"""Longest wait a Kafka response can carry (int32). Longer waits are clamped, never wrapped."""


class QuotaKind(StrEnum):
    """The keys a quota can be set with; the value is the key as operators write it."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    TOPIC_PRODUCER_BYTE_RATE = "producer.byte.rate"
    TOPIC_CONSUMER_BYTE_RATE = "consumer.byte.rate"

    __hash__ = str.__hash__  # an enum's own is slow, and several are looked up for each request


KEY_ALIASES = {
    "request_time_percent": QuotaKind.REQUEST_PERCENTAGE,  # the earlier draft of KIP-124
    "controller_mutations_rate": QuotaKind.CONTROLLER_MUTATION_RATE,  # KIP-599 as written
}
"""Names from the proposals' texts, accepted wherever a key is read."""

CLIENT_KINDS = (
    QuotaKind.PRODUCER_BYTE_RATE,
    QuotaKind.CONSUMER_BYTE_RATE,
    QuotaKind.REQUEST_PERCENTAGE,
    QuotaKind.CONTROLLER_MUTATION_RATE,
)
"""Kinds set on users, client-ids and both (KIP-599, KIP-124)."""

TOPIC_KINDS = (QuotaKind.TOPIC_PRODUCER_BYTE_RATE, QuotaKind.TOPIC_CONSUMER_BYTE_RATE)
"""Kinds set on topics and metered for each partition (KIP-1010)."""


class RequestPolicy(StrEnum):
    """Which text of KIP-124 rules the request quota."""

    KIP124 = "kip124"
    KIP124_DRAFT = "kip124_draft"


class Coexistence(StrEnum):
    """How several quotas on one request make its throttle time."""

    MAX = "max"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class Window:
    """How a quota samples: `samples` (S) windows of `window_ms` (W) milliseconds each."""

    samples: int = 11
    window_ms: int = 1000


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """Everything the arithmetic can be configured with (section `quota` of the settings)."""

    client_window: Window = Window()
    controller_window: Window = Window()
    policy: RequestPolicy = RequestPolicy.KIP124
    coexistence: Coexistence = Coexistence.MAX
    validate_only_exempt: bool = True
    num_io_threads: int = 8  # only the earlier draft divides by it


def burst(window: Window, limit: float) -> float:
    """Tokens a bucket can hold: B = S * W * Q (KIP-599, "Throttling Algorithm").

    >>> burst(Window(samples=100, window_ms=1000), 5.0)
    500.0
    """
    return window.samples * (window.window_ms / 1000.0) * limit
