"""Quota kinds and the settings of their arithmetic.

Sources: KIP-599 (controller mutations), KIP-124 (request time), KIP-1010 (topic-partitions), Kafka's byte-rate quotas.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self

UNLIMITED = 9.223372036854775807e18
"""Kafka's "no quota": Long.MAX_VALUE as a double."""

MAX_THROTTLE_MS = 2_147_483_647
"""Longest wait that fits a Kafka response (int32). Longer waits are clamped, never wrapped."""


class Family(Enum):
    """The metering of a quota. All kinds of a family share one arithmetic and one unit.

    `unit` is the unit of an amount, as `qu` of a RateLimit-Policy header (draft-ietf-httpapi-ratelimit-headers) names
    it; `content-bytes` and `requests` are from the draft; the others are defined by Sluice. `rate_name` is Kafka's
    metric for the rate. `whole` says whether Kafka defines the limit as a long, so that only whole numbers are
    accepted.
    """

    BYTES = "content-bytes", "byte-rate", True
    REQUEST_TIME = "sluice-thread-percent", "request-time", False
    MUTATIONS = "sluice-partitions", "mutation-rate", False
    REQUESTS = "requests", "request-rate", False
    COUNT = "sluice-count", "count", True

    def __init__(self, unit: str, rate_name: str, whole: bool) -> None:
        self.unit = unit
        self.rate_name = rate_name
        self.whole = whole

    @property
    def gives_way(self) -> bool:
        """True if a broker that is overloaded lets less than such a limit through."""
        return self in (Family.BYTES, Family.REQUEST_TIME)


class Scope(Enum):
    """The kind of entity that a quota is set on."""

    CLIENT = "users, client-ids and both"  # KIP-124, KIP-599
    TOPIC = "topics, metered for each partition"  # KIP-1010


class QuotaKind(StrEnum):
    """The table of quota kinds. The value is the key as operators write it.

    A kind of the family BYTES is a line here, an API of its own in `BYTE_APIS` of `state.decisions.charge_plan`, its
    meaning in the toolbox (`sluice_toolbox.quota_text`), and a line of Java's `Kind`. A second kind of request time or
    mutations also needs fields of its own in `state.decisions.decision.Waits`. All steps: CONTRIBUTING.md.

    Proxies alone enforce the kinds of the families REQUESTS and COUNT. REQUESTS is metered as BYTES is. COUNT is no
    rate but a number of things that there are, which the job charges nothing.

    `code` identifies the kind's rate in stored state: codes count up from 0 and never change their meaning.
    `metric_group` is Kafka's metric group. `consumer` marks what a Fetch consumes: the bytes of one that was answered
    empty are taken back (KIP-219).
    """

    PRODUCER_BYTE_RATE = "producer_byte_rate", 0, Scope.CLIENT, Family.BYTES, "Produce"
    CONSUMER_BYTE_RATE = "consumer_byte_rate", 1, Scope.CLIENT, Family.BYTES, "Fetch", True
    REQUEST_PERCENTAGE = "request_percentage", 2, Scope.CLIENT, Family.REQUEST_TIME, "Request"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate", 5, Scope.CLIENT, Family.MUTATIONS, "ControllerMutation"
    TOPIC_PRODUCER_BYTE_RATE = "producer.byte.rate", 3, Scope.TOPIC, Family.BYTES, "Produce"
    TOPIC_CONSUMER_BYTE_RATE = "consumer.byte.rate", 4, Scope.TOPIC, Family.BYTES, "Fetch", True
    CONNECTION_RATE = "connection_rate", 6, Scope.CLIENT, Family.REQUESTS, "Connect"
    CONNECTION_COUNT = "connection_count", 7, Scope.CLIENT, Family.COUNT, "Connect"

    code: int
    scope: Scope
    family: Family
    metric_group: str
    consumer: bool

    def __new__(
        cls, key: str, code: int, scope: Scope, family: Family, metric_group: str, consumer: bool = False
    ) -> Self:
        """A member whose value, and wire form, is the key alone."""
        kind = str.__new__(cls, key)
        kind._value_ = key
        kind.code, kind.scope, kind.family = code, scope, family
        kind.metric_group, kind.consumer = metric_group, consumer
        return kind

    __hash__ = str.__hash__  # Enum's own __hash__ is slow, and kinds are looked up several times per request


class Membership(StrEnum):
    """The key of the entries that are no quotas: their entity is a member of a tenant. Their value is always 1."""

    MEMBER = "member"


class ElasticKey(StrEnum):
    """The keys of the reservation that may stand beside a quota of the same entity and mode, in its unit.

    It is what overload leaves of the limit. Kafka has none. `quota` is the kind of the quota.
    """

    PRODUCER_BYTE_RATE_RESERVATION = "producer_byte_rate_reservation", QuotaKind.PRODUCER_BYTE_RATE
    CONSUMER_BYTE_RATE_RESERVATION = "consumer_byte_rate_reservation", QuotaKind.CONSUMER_BYTE_RATE
    REQUEST_PERCENTAGE_RESERVATION = "request_percentage_reservation", QuotaKind.REQUEST_PERCENTAGE

    quota: QuotaKind

    def __new__(cls, key: str, quota: QuotaKind) -> Self:
        """A member whose value is the key alone."""
        member = str.__new__(cls, key)
        member._value_ = key
        member.quota = quota
        return member

    @property
    def family(self) -> Family:
        """The metering of the quota."""
        return self.quota.family


class StorageKey(StrEnum):
    """The key of the budget of a tenant: the bytes that its topics may take on the disks of all brokers together."""

    STORED_BYTES = "stored_bytes"

    @property
    def family(self) -> Family:
        """The unit of the budget."""
        return Family.BYTES


EntryKind = QuotaKind | ElasticKey | StorageKey | Membership
"""The key of an entry of the quotas table."""

KINDS_BY_NAME = {kind.value: kind for kind in QuotaKind}
"""The kind of each key. A record may name a key of a later release, which `get` answers with None."""

ENTRY_KINDS: dict[str, EntryKind] = {
    key.value: key for keys in (QuotaKind, ElasticKey, StorageKey, Membership) for key in keys
}
"""The key of each entry by its name."""

KINDS_BY_CODE = {kind.code: kind for kind in QuotaKind}
"""The kind of each stored rate."""

CLIENT_KINDS = tuple(kind for kind in QuotaKind if kind.scope is Scope.CLIENT)
TOPIC_KINDS = tuple(kind for kind in QuotaKind if kind.scope is Scope.TOPIC)

PROXY_KINDS = tuple(kind for kind in QuotaKind if kind.family in (Family.REQUESTS, Family.COUNT))
"""The quotas that proxies alone enforce; Kafka has none of them on users and client-ids."""

KEY_ALIASES = {
    "request_time_percent": QuotaKind.REQUEST_PERCENTAGE,  # the earlier draft of KIP-124
    "controller_mutations_rate": QuotaKind.CONTROLLER_MUTATION_RATE,  # KIP-599 as written
}
"""Key names from the text of the proposals, accepted wherever a key is read."""


class RequestPolicy(StrEnum):
    """The version of KIP-124 that the request quota follows."""

    KIP124 = "kip124"
    KIP124_DRAFT = "kip124_draft"


class Coexistence(StrEnum):
    """The rule that combines the waits of several quotas into one request's throttle time."""

    MAX = "max"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class Window:
    """The sampling of a quota: `samples` (S) windows of `window_ms` (W) milliseconds each."""

    samples: int = 11
    window_ms: int = 1000


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The configuration of the arithmetic (section `quota` of the settings)."""

    client_window: Window = Window()
    controller_window: Window = Window()
    policy: RequestPolicy = RequestPolicy.KIP124
    coexistence: Coexistence = Coexistence.MAX
    validate_only_exempt: bool = True
    num_io_threads: int = 8  # used by the earlier draft of KIP-124 only
    max_partitions_per_request: int = 10_000  # most that one request is charged, as KRaft bounds those of a call


def burst(window: Window, limit: float) -> float:
    """The most tokens a bucket can hold: B = S * W * Q (KIP-599, "Throttling Algorithm").

    >>> burst(Window(samples=100, window_ms=1000), 5.0)
    500.0
    """
    return window.samples * (window.window_ms / 1000.0) * limit
