"""Plan of the charges of one request: one for each quota kind, grouped by the entity that is charged."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import structs

from sluice.state.arithmetic.counter import Charge
from sluice.state.contract.records import HEARTBEAT_API, ChargeResult, CountedEntity, Request, Unmute
from sluice.state.quotas.entity import COMMON_MARK, Tags
from sluice.state.quotas.entry import Mode
from sluice.state.quotas.kinds import CLIENT_KINDS, TOPIC_KINDS, Family, QuotaKind, QuotaSettings, RequestPolicy
from sluice.state.quotas.resolution import ModeQuotas, Quotas, Resolution

MUTATION_APIS = {"CreateTopics": 6, "DeleteTopics": 5, "CreatePartitions": 3}
"""The APIs of KIP-599, each with its first version that understands a refusal (strict). Older versions only wait."""

VALIDATE_ONLY_APIS = frozenset({"CreateTopics", "CreatePartitions"})

COUNTED_APIS = {"Connect": QuotaKind.CONNECTION_RATE}
"""The APIs whose requests are counted, each with its quota. Connect is that of a proxy's new connections."""

SASL_HANDSHAKE = "SaslHandshake"

CLUSTER_ACTION_APIS = frozenset(
    {"StopReplica", "ControlledShutdown", "LeaderAndIsr", "UpdateMetadata", "WriteTxnMarkers", "AlterPartition"}
)
"""Exempt from request quotas if ClusterAction is authorised (KIP-124, "Requests exempt from throttling").

Shipped Kafka exempts the last two as well, which came after the proposal.
"""

DRAFT_EXEMPT_APIS = frozenset(
    {"StopReplica", "ControlledShutdown", "Heartbeat", "JoinGroup", "LeaveGroup", "SyncGroup"}
)
"""Never throttled by the earlier draft of KIP-124 ("Requests that may be throttled")."""

EXEMPT_REQUEST_TIME = "exempt-request-time"

POINTS_PER_NANOSECOND = 100.0 / 1e9
"""A point is one percent of a thread-second, 10 ms (KIP-124, "Request quotas")."""

BYTE_APIS = {
    "Produce": (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.TOPIC_PRODUCER_BYTE_RATE),
    "Fetch": (QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.TOPIC_CONSUMER_BYTE_RATE),
}
"""The APIs whose bytes are charged, each with the quotas of clients and of topics."""

_REQUEST_PERCENTAGE, _MUTATION_RATE = QuotaKind.REQUEST_PERCENTAGE, QuotaKind.CONTROLLER_MUTATION_RATE
_DRAFT = RequestPolicy.KIP124_DRAFT
"""These three are looked up for every request, which is slow on an Enum."""

_OWN_KINDS = {api: client_kind for api, (client_kind, _) in BYTE_APIS.items()} | COUNTED_APIS
_OWN_KINDS |= dict.fromkeys(MUTATION_APIS, _MUTATION_RATE)
"""The APIs with a client quota of their own beside that of request time."""


class EntityCharges(msgspec.Struct, gc=False):
    """All charges of one request on the counters of one entity."""

    tags: Tags
    charges: list[Charge]


class Plan(msgspec.Struct, gc=False):
    """Charges of one request. With `limited_only` a charge without a limit is left out."""

    limited_only: ClassVar[bool] = False

    def add(
        self,
        kind: QuotaKind,
        resolution: Resolution,
        amounts: list[float],
        strict: bool = False,
        withheld: bool = False,
    ) -> None:
        """Add a charge to the counter of the resolution."""
        limit = resolution.limit
        if limit is None and (self.limited_only or resolution.shadow):
            return  # a shadow quota counts the clients it limits; enforced quotas count all clients, as Kafka does
        self._put(resolution, Charge(kind, resolution.level, limit, resolution.shadow, amounts, strict, withheld))

    def add_client(
        self,
        kind: QuotaKind,
        quotas: ModeQuotas,
        request: Request,
        amounts: list[float],
        strict: bool = False,
        withheld: bool = False,
    ) -> None:
        """Add a charge to the counter of the request's client, and one to that of its tenant."""
        for resolution in with_keys(kind, quotas.resolve_all(kind, request.user or "", request.client_id or "")):
            self.add(kind, resolution, amounts, strict, withheld)

    def exempt(self, request: Request, settings: QuotaSettings, /) -> None:
        """Note that the request's time is reported and charged to no counter."""

    def add_partitions(self, request: Request, quotas: ModeQuotas, kind: QuotaKind, withheld: bool, /) -> None:
        """Add a charge for each topic-partition; without any quota of the kind there is nothing to charge."""
        if quotas.enabled(kind):
            for (topic, partition), moved in bytes_by_partition(request).items():
                self.add(kind, quotas.resolve_topic(kind, topic, partition), [moved], withheld=withheld)

    def _put(self, resolution: Resolution, charge: Charge) -> None:
        raise NotImplementedError


class ChargePlan(Plan, gc=False):
    """All charges of one request, by the key of their entity and in order.

    `reported` are amounts that are charged to no counter: the bytes of topic-partitions where no quota of the kind is
    set, and the time of a request that is exempt.
    """

    entities: dict[str, EntityCharges] = {}
    reported: list[ChargeResult] = []
    is_exempt: bool = False

    def exempt(self, request: Request, settings: QuotaSettings, /) -> None:
        """Report the time once, for enforced and shadow quotas."""
        if not self.is_exempt:
            time = sum(request_points(request, settings))
            self.reported.append(ChargeResult(EXEMPT_REQUEST_TIME, matched="exempt", value=time))
        self.is_exempt = True

    def add_partitions(self, request: Request, quotas: ModeQuotas, kind: QuotaKind, withheld: bool, /) -> None:
        """Add the charges; shadow quotas report no bytes, as the enforced ones have done it."""
        super().add_partitions(request, quotas, kind, withheld)
        if not quotas.enabled(kind) and quotas.mode is not Mode.SHADOW:
            for (topic, partition), moved in bytes_by_partition(request).items():
                entity = CountedEntity(topic=topic, partition=partition)
                self.reported.append(ChargeResult(kind, entity, value=moved))

    def _put(self, resolution: Resolution, charge: Charge) -> None:
        self.entities.setdefault(resolution.key, EntityCharges(resolution.tags, [])).charges.append(charge)


class LimitedCharges(Plan, gc=False):
    """The charges of one request on counters with a limit, in order: those that a gateway charges inline."""

    limited_only: ClassVar[bool] = True

    charges: list[tuple[Tags, Charge]] = []

    def _put(self, resolution: Resolution, charge: Charge) -> None:
        self.charges.append((resolution.tags, charge))


def client_kinds_of(api: str | None) -> Sequence[QuotaKind]:
    """The client quotas that requests of this API are charged to; without an API all of them.

    Mutations that another one has caused (`mutations_charged`) come on top: the client learns of them afterwards.

    >>> [str(kind) for kind in client_kinds_of("Produce")]
    ['producer_byte_rate', 'request_percentage']
    """
    if api is None:
        return CLIENT_KINDS
    own = _OWN_KINDS.get(api)
    return (_REQUEST_PERCENTAGE,) if own is None else (own, _REQUEST_PERCENTAGE)


def topic_kinds_of(api: str | None) -> Sequence[QuotaKind]:
    """The topic quotas that requests of this API are charged to; without an API all of them."""
    return TOPIC_KINDS if api is None else BYTE_APIS[api][1:] if api in BYTE_APIS else ()


def with_keys(kind: QuotaKind, resolved: Sequence[Resolution]) -> Sequence[Resolution]:
    """The same resolutions with the keys by which pages keep their counters.

    Those of mutations of a tenant and its members are asked together before one is charged, so they lie side by side.
    """
    if kind is not _MUTATION_RATE or not resolved or not resolved[-1].tags.tenant:
        return resolved
    *own, tenant = resolved
    common = tenant.key + COMMON_MARK
    beside = [structs.replace(one, key=common + one.tags.key()) for one in own]
    return [*beside, structs.replace(tenant, key=common)]


def plan_charges(plan: Plan, request: Request, quotas: Quotas, settings: QuotaSettings) -> None:
    """Add the charges of this request to a plan, with the limits that apply under these quotas; none for a heartbeat.

    Shadow quotas are planned after the enforced ones and on counters of their own, so they change nothing for those.
    """
    if request.api == HEARTBEAT_API:
        return
    _plan(plan, request, quotas, settings)
    if quotas.shadow is not None:
        _plan(plan, request, quotas.shadow, settings)


def plan_limited(request: Request, quotas: ModeQuotas, settings: QuotaSettings) -> Sequence[tuple[Tags, Charge]]:
    """The charges of this request that have a limit among these quotas, each with its counter's tags."""
    plan = LimitedCharges()
    if request.api != HEARTBEAT_API:
        _plan(plan, request, quotas, settings)
    return plan.charges


def _plan(plan: Plan, request: Request, quotas: ModeQuotas, settings: QuotaSettings) -> None:
    """Add the charges under the quotas of one mode."""
    if request.api in MUTATION_APIS:
        if request.mutations and quotas.enabled(_MUTATION_RATE) and not is_validation(request, settings):
            amounts = charged_mutations(request, settings)
            plan.add_client(_MUTATION_RATE, quotas, request, amounts, strict=is_strict(request))
    elif request.api in BYTE_APIS:
        if not (request.api == "Fetch" and request.cluster_action):  # replication has quotas of its own (KIP-73)
            _plan_bytes(plan, request, quotas, *BYTE_APIS[request.api])
    elif request.api in COUNTED_APIS and quotas.enabled(COUNTED_APIS[request.api]):
        plan.add_client(COUNTED_APIS[request.api], quotas, request, [float(request.requests)])
    if request.mutations_charged is not None and quotas.enabled(_MUTATION_RATE):
        # They were executed elsewhere, so it is too late to refuse them: they are charged as a permissive request's.
        plan.add_client(_MUTATION_RATE, quotas, request, charged_mutations(request, settings))
    if request.request_time_ns is not None or request.network_time_ns is not None:
        _plan_request_time(plan, request, quotas, settings)


def plan_resets(unmute: Unmute, quotas: Quotas) -> ChargePlan:
    """The counters that requests of this entity are charged to under these quotas, each with charges that reset it."""
    plan, entity = ChargePlan(), unmute.entity
    for kind in unmuted_kinds(unmute):
        if not quotas.enabled(kind):
            continue
        resolved: Sequence[Resolution]
        if entity.topic is not None:
            resolved = [quotas.resolve_topic(kind, entity.topic, entity.partition or 0)]
        elif entity.tenant is not None:
            resolved = list(filter(None, [quotas.resolve_tenant(kind, entity.tenant)]))
        else:
            resolved = quotas.resolve_all(kind, entity.user or "", entity.client_id or "")
        for resolution in with_keys(kind, resolved):
            plan.add(kind, resolution, [])
    return plan


def unmuted_kinds(unmute: Unmute) -> Iterator[QuotaKind]:
    """The quota kinds whose counters are reset; a number of connections has none."""
    kinds = CLIENT_KINDS if unmute.entity.topic is None else TOPIC_KINDS
    return (kind for kind in kinds if unmute.quota in (None, kind) and kind.family is not Family.COUNT)


def is_exempt(request: Request, policy: RequestPolicy) -> bool:
    """True if the request quota never throttles this request.

    KIP-124 as accepted: cluster requests, including replica fetches, if ClusterAction is authorised; SaslHandshake only
    while authenticating. Its earlier draft: a fixed list of APIs, whoever sends them.
    """
    if policy is _DRAFT:
        return request.api in DRAFT_EXEMPT_APIS
    if request.api == SASL_HANDSHAKE:
        return request.authenticating
    return request.cluster_action and (request.api in CLUSTER_ACTION_APIS or request.api == "Fetch")


def request_points(request: Request, settings: QuotaSettings) -> list[float]:
    """[handler, network] time in points: 10 ms of handler time are 1 point.

    The earlier draft counts handler time only, as a share of all `num.io.threads` threads: with 8 threads a quota of
    1 percent allows 80 ms per second.

    >>> request_points(Request(api="Metadata", request_time_ns=10_000_000), QuotaSettings())
    [1.0, 0.0]
    >>> draft = QuotaSettings(policy=RequestPolicy.KIP124_DRAFT, num_io_threads=8)
    >>> request_points(Request(api="Metadata", request_time_ns=80_000_000), draft)
    [1.0, 0.0]
    """
    return [*points(request.request_time_ns or 0, request.network_time_ns or 0, settings)]


def points(handler_ns: Any, network_ns: Any, settings: QuotaSettings) -> tuple[Any, Any]:
    """Handler and network time in points: numbers, or arrays of them.

    >>> points(10_000_000, 5_000_000, QuotaSettings())
    (1.0, 0.5)
    """
    handler = handler_ns * POINTS_PER_NANOSECOND
    if settings.policy is _DRAFT:
        return handler / settings.num_io_threads, network_ns * 0.0
    return handler, network_ns * POINTS_PER_NANOSECOND


def is_strict(request: Request) -> bool:
    """True if the caller understands refusals. A request without `api_version` counts as current."""
    return request.api_version is None or request.api_version >= MUTATION_APIS[request.api]


def is_validation(request: Request, settings: QuotaSettings) -> bool:
    """True if the request's mutations are only validated, so that none is charged."""
    return request.validate_only and settings.validate_only_exempt and request.api in VALIDATE_ONLY_APIS


def _plan_bytes(
    plan: Plan, request: Request, quotas: ModeQuotas, client_kind: QuotaKind, topic_kind: QuotaKind
) -> None:
    withheld = request.withheld and client_kind.consumer
    if quotas.enabled(client_kind) and has_client_bytes(request):
        plan.add_client(client_kind, quotas, request, charged_bytes(request), withheld=withheld)
    plan.add_partitions(request, quotas, topic_kind, withheld)


def _plan_request_time(plan: Plan, request: Request, quotas: ModeQuotas, settings: QuotaSettings) -> None:
    if not quotas.enabled(_REQUEST_PERCENTAGE):
        return
    if is_exempt(request, settings.policy):
        plan.exempt(request, settings)
    else:
        plan.add_client(_REQUEST_PERCENTAGE, quotas, request, request_points(request, settings))


def has_client_bytes(request: Request) -> bool:
    """True if bytes are charged to the client's quota. With 0 bytes beside topic-partitions another event has them.

    >>> from sluice.state.contract.records import TopicPartition
    >>> moved = [TopicPartition("orders", 3, 70)]
    >>> [has_client_bytes(Request("Fetch", bytes=own, topic_partitions=moved)) for own in (None, 0)]
    [True, False]
    """
    if request.topic_partitions:
        return request.bytes != 0
    return request.bytes is not None


def charged_bytes(request: Request) -> list[float]:
    """[bytes] of a Produce or Fetch: its own, else the sum of those of its topic-partitions.

    >>> from sluice.state.contract.records import TopicPartition
    >>> moved = [TopicPartition("orders", 0, 30), TopicPartition("orders", 1, 40)]
    >>> charged_bytes(Request("Fetch", bytes=50)), charged_bytes(Request("Fetch", topic_partitions=moved))
    ([50.0], [70.0])
    """
    if request.bytes is not None:
        return [float(request.bytes)]
    return [float(sum([touched.bytes for touched in request.topic_partitions]))]


def charged_mutations(request: Request, settings: QuotaSettings) -> list[float]:
    """The partitions of each mutated topic, of all at most `max_partitions_per_request`; or those executed elsewhere.

    A bucket may go so far below zero by one request, and it may be that of many clients.

    >>> from sluice.state.contract.records import Mutation
    >>> some = [Mutation("a", 6_000), Mutation("b", 2**31 - 1), Mutation("c", 1)]
    >>> charged_mutations(Request("CreateTopics", mutations=some), QuotaSettings())
    [6000.0, 4000.0, 0.0]
    >>> charged_mutations(Request("Metadata", mutations_charged=7), QuotaSettings())
    [7.0]
    """
    if request.mutations_charged is not None:
        return [float(request.mutations_charged)]
    amounts, left = list[float](), settings.max_partitions_per_request
    for mutation in request.mutations:
        charged = min(mutation.partitions, left)
        amounts.append(float(charged))
        left -= charged
    return amounts


def bytes_by_partition(request: Request) -> dict[tuple[str, int], float]:
    """The bytes of each topic-partition, which may come several times in a request."""
    sizes: dict[tuple[str, int], float] = {}
    for touched in request.topic_partitions:
        key = (touched.topic, touched.partition)
        sizes[key] = sizes.get(key, 0.0) + touched.bytes
    return sizes
