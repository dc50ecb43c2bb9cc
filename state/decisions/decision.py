"""The decision on one request: the outcomes of several quotas combined into one verdict (KIP-124, KIP-219, KIP-599)."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from sluice.state.arithmetic.counter import Outcome, Unmetered, request_wait_ms
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.contract.records import (
    QUOTA_EXCEEDED_MESSAGE,
    THROTTLING_QUOTA_EXCEEDED,
    UNMUTE_API,
    Amounts,
    ChargeResult,
    CountedEntity,
    Decision,
    Request,
    TopicResult,
    Unmute,
    Verdict,
)
from sluice.state.decisions.charge_plan import MUTATION_APIS
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import MAX_THROTTLE_MS, Coexistence, Family, QuotaKind, QuotaSettings

_ENCODER = msgspec.json.Encoder()
_NOTHING = b"{}"


class RequestHead(msgspec.Struct, array_like=True, gc=False):
    """The fields that a decision copies from its request, and those that are known before any counter is charged.

    `amounts`, `throttled_by` and `heartbeat` are JSON, None if the event has none: they are encoded once and then
    copied, which is less work than to carry their fields from stage to stage.
    """

    decision_id: str
    request_id: str
    user: str | None
    client_id: str | None
    api: str
    gateway: str | None
    topics: list[str]
    purgatory_ms: int
    unmetered: list[Unmetered]
    quota_version: int
    decided_at_ms: int
    instance: str | None = None
    amounts: bytes | None = None
    throttled_by: bytes | None = None
    heartbeat: bytes | None = None

    @classmethod
    def of_request(
        cls, request: Request, decision_id: str, unmetered: list[Unmetered], quota_version: int, decided_at_ms: int
    ) -> "RequestHead":
        """The head of the decision on a request."""
        return cls(  # by position: keywords take half a microsecond more
            decision_id,
            request.request_id or "",
            request.user,
            request.client_id,
            request.api,
            request.gateway,
            [mutation.topic for mutation in request.mutations] if request.api in MUTATION_APIS else [],
            request.purgatory_ms,
            unmetered,
            quota_version,
            decided_at_ms,
            request.instance,
            encode_amounts(request),
            None if request.throttled_by is None else _ENCODER.encode(request.throttled_by),
            None if request.heartbeat is None else _ENCODER.encode(request.heartbeat),
        )

    @classmethod
    def of_unmute(cls, unmute: Unmute, decision_id: str, quota_version: int, decided_at_ms: int) -> "RequestHead":
        """The head of the decision that answers a control record."""
        return cls(
            decision_id=decision_id,
            request_id=unmute.request_id or "",
            user=unmute.entity.user,
            client_id=unmute.entity.client_id,
            api=UNMUTE_API,
            gateway=None,
            topics=[],
            purgatory_ms=0,
            unmetered=[],
            quota_version=quota_version,
            decided_at_ms=decided_at_ms,
        )


class PartialDecision(msgspec.Struct, array_like=True, gc=False):
    """The contribution of one counter to a decision: its charges, the waits they ask for, and the refused topics."""

    charges: list[ChargeResult]
    byte_wait_ms: int = 0
    byte_quota: str | None = None
    mutation_wait_ms: int = 0
    refused: Sequence[bool] = ()
    request_wait_ms: int = 0
    request_limit: float | None = None
    request_samples: SampledRate | None = None


def encode_amounts(request: Request) -> bytes | None:
    """The event's amounts as JSON; None if it has none.

    >>> encode_amounts(Request("Fetch", user="alice", request_time_ns=5, withheld=True, bytes=70))
    b'{"bytes":70,"request_time_ns":5,"withheld":true}'
    """
    amounts = Amounts(  # by position, as in RequestHead
        request.bytes,
        request.request_time_ns,
        request.network_time_ns,
        request.topic_partitions,
        request.mutations,
        request.mutations_charged,
        request.api_version,
        request.validate_only,
        request.cluster_action,
        request.authenticating,
        request.purgatory_ms,
        request.withheld,
        request.requests,
    )
    encoded = _ENCODER.encode(amounts)
    return None if encoded == _NOTHING else encoded


def partial_decision(outcomes: Sequence[Outcome], tags: Tags) -> PartialDecision:
    """The contribution of one counter, from the outcomes of one request on it."""
    entity = tags.entity()
    partial = PartialDecision([_charge_result(outcome, entity) for outcome in outcomes])
    for outcome in outcomes:
        if outcome.charge.shadow:
            continue
        family = outcome.charge.kind.family
        if family is Family.MUTATIONS:
            partial.mutation_wait_ms, partial.refused = outcome.wait_ms, outcome.refused
        elif family is Family.REQUEST_TIME:
            partial.request_wait_ms, partial.request_limit = outcome.wait_ms, outcome.charge.limit
            partial.request_samples = outcome.samples
        elif outcome.wait_ms > partial.byte_wait_ms:
            partial.byte_wait_ms, partial.byte_quota = outcome.wait_ms, outcome.charge.kind
    return partial


def decide(
    head: RequestHead, timestamp_ms: int, outcomes: Sequence[Outcome], tags: Tags, settings: QuotaSettings
) -> Decision:
    """The decision on a request with a single counter: same result as `combine`, but faster if nothing waits."""
    for outcome in outcomes:
        if outcome.wait_ms or any(outcome.refused):
            return combine(head, timestamp_ms, [partial_decision(outcomes, tags)], settings)
    entity = tags.entity()
    return allowed(head, timestamp_ms, [_charge_result(outcome, entity) for outcome in outcomes])


def combine(
    head: RequestHead, timestamp_ms: int, partials: Sequence[PartialDecision], settings: QuotaSettings
) -> Decision:
    """One decision from the contributions of all counters.

    `max` (shipped Kafka): the longest wait counts, and the request quota wins a tie. `sequential` (KIP-124,
    "Co-existence of multiple quotas"): the byte-rate wait comes first; the request quota is checked again at its end,
    and the remaining wait is added.
    """
    partial = partials[0] if len(partials) == 1 else _joined(partials)
    throttle_ms, decided_by = _throttle(partial, head.purgatory_ms, timestamp_ms, settings)
    throttle_time_ms = clamp_throttle_ms(throttle_ms)
    decision = allowed(head, timestamp_ms, partial.charges)
    if any(partial.refused):
        decision.topic_results = _topic_results(head.topics, partial.refused)
    if partial.refused and all(partial.refused):
        decision.verdict, decision.error_code = Verdict.REJECT, THROTTLING_QUOTA_EXCEEDED
    elif throttle_time_ms:
        decision.verdict = Verdict.THROTTLE
    if throttle_time_ms:
        decision.throttle_time_ms, decision.mute_until_ms = throttle_time_ms, timestamp_ms + throttle_time_ms
        decision.decided_by = decided_by
    return decision


def clamp_throttle_ms(wait_ms: int) -> int:
    """The wait in a response, clamped to an int32; in shipped Kafka it overflows for the controller quota."""
    return min(max(wait_ms, 0), MAX_THROTTLE_MS)


def allowed(head: RequestHead, timestamp_ms: int, charges: list[ChargeResult]) -> Decision:
    """The decision on a request that doesn't have to wait, with these charges and the unmetered ones of its head."""
    if head.unmetered:
        charges = charges + [_unmetered_result(amount) for amount in head.unmetered]
    return Decision(
        head.decision_id,
        head.request_id,
        timestamp_ms,
        head.user,
        head.client_id,
        head.api,
        head.gateway,
        Verdict.ALLOW,
        0,
        None,
        0,
        [TopicResult(topic, 0, None) for topic in head.topics],
        None,
        charges,
        head.quota_version,
        head.decided_at_ms,
        None,
        head.instance,
        _copied(head.throttled_by),
        _copied(head.amounts),
        _copied(head.heartbeat),
    )


def _copied(json: bytes | None) -> Any:
    """A field that is JSON already: the encoder copies it."""
    return UNSET if json is None else msgspec.Raw(json)


def _joined(partials: Sequence[PartialDecision]) -> PartialDecision:
    """The contributions of several counters as one. Of each family the longest wait counts."""
    joined = PartialDecision([])
    for partial in partials:
        joined.charges.extend(partial.charges)
        joined.refused = [*joined.refused, *partial.refused]
        if partial.byte_wait_ms > joined.byte_wait_ms:
            joined.byte_wait_ms, joined.byte_quota = partial.byte_wait_ms, partial.byte_quota
        joined.mutation_wait_ms = max(joined.mutation_wait_ms, partial.mutation_wait_ms)
        if partial.request_limit is not None:
            joined.request_wait_ms, joined.request_limit = partial.request_wait_ms, partial.request_limit
            joined.request_samples = partial.request_samples
    return joined


def _throttle(
    partial: PartialDecision, purgatory_ms: int, timestamp_ms: int, settings: QuotaSettings
) -> tuple[int, str | None]:
    """The wait of the whole request in ms, not yet clamped, and the quota that decided it."""
    request_ms, byte_ms = partial.request_wait_ms, partial.byte_wait_ms
    mutation_ms = _mutation_ms(partial, purgatory_ms)
    if byte_ms and settings.coexistence is Coexistence.SEQUENTIAL:
        byte_ms += _request_wait_at(partial, timestamp_ms + byte_ms, settings)
        request_ms = 0
    if request_ms >= byte_ms and request_ms >= mutation_ms:
        return request_ms, QuotaKind.REQUEST_PERCENTAGE
    if byte_ms >= mutation_ms:
        return byte_ms, partial.byte_quota
    return mutation_ms, QuotaKind.CONTROLLER_MUTATION_RATE


def _mutation_ms(partial: PartialDecision, purgatory_ms: int) -> int:
    """The controller's wait minus the time the request spent in purgatory (KIP-599, "Handling of new Clients")."""
    if not partial.mutation_wait_ms and not partial.refused:
        return 0
    return max(partial.mutation_wait_ms - purgatory_ms, 1 if any(partial.refused) else 0)


def _charge_result(outcome: Outcome, entity: CountedEntity) -> ChargeResult:
    charge = outcome.charge
    result = ChargeResult(
        charge.kind,
        entity,
        charge.level,
        charge.limit,
        outcome.value,
        outcome.rate,
        _reported_wait_ms(outcome) if outcome.violated else 0,
        outcome.violated,
    )
    if charge.kind.family is Family.MUTATIONS:
        result.tokens = outcome.tokens
    if charge.shadow:
        result.mode = "shadow"
    return result


def _reported_wait_ms(outcome: Outcome) -> int:
    """The wait to report. A refusal never carries 0 ms: shipped Kafka may round to 0, which looks like success."""
    return max(clamp_throttle_ms(outcome.wait_ms), 1 if any(outcome.refused) else 0)


def _unmetered_result(amount: Unmetered) -> ChargeResult:
    return ChargeResult(
        quota=amount.quota,
        entity=amount.tags.entity() if amount.tags else CountedEntity(),
        matched=amount.level,
        limit=None,
        value=amount.value,
        rate=None,
        throttle_ms=0,
        violated=False,
    )


def _request_wait_at(partial: PartialDecision, now_ms: int, settings: QuotaSettings) -> int:
    """The wait the request quota asks for at a later time, when some of its samples may be outdated."""
    if partial.request_samples is None:
        return 0
    rate, window = partial.request_samples.copy(), settings.client_window
    observed, window_ms = rate.observe(window, now_ms)
    return request_wait_ms(observed, partial.request_limit, window_ms, window)


def _topic_results(topics: Sequence[str], refused: Sequence[bool]) -> list[TopicResult]:
    """The result for each topic if some are refused."""
    return [
        TopicResult(topic, THROTTLING_QUOTA_EXCEEDED, QUOTA_EXCEEDED_MESSAGE) if flag else TopicResult(topic, 0, None)
        for topic, flag in zip(topics, refused, strict=True)
    ]
