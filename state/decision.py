"""The decision on one request: several quotas' outcomes combined into one verdict (DESIGN, "Decision")."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypedDict

from state.charge import Charge, Unmetered
from state.entity import Tags
from state.meters import CONSUMER_KINDS, Meters, Outcome, clamp_throttle_ms, exceeds, request_wait_ms
from state.quota import Coexistence, QuotaKind, QuotaSettings
from state.sampled_rate import SampledRate

THROTTLING_QUOTA_EXCEEDED = 89
QUOTA_EXCEEDED_MESSAGE = "The throttling quota has been exceeded."


class Verdict(StrEnum):
    """What the gateway does with the request and its client."""

    ALLOW = "ALLOW"
    THROTTLE = "THROTTLE"
    REJECT = "REJECT"


class TopicResult(TypedDict):
    """What becomes of one topic of a mutation request."""

    topic: str
    error_code: int
    error_message: str | None


class ChargeResult(TypedDict, total=False):
    """One charge as the decision reports it; `tokens` only of controller mutations, `mode` only where it is shadow.

    `throttle_ms` is what this quota alone asks for; a shadow quota's is what it would ask for.
    """

    quota: str
    entity: dict[str, str | int]
    matched: str
    limit: float | None
    value: float
    rate: float | None
    tokens: float | None
    throttle_ms: int
    violated: bool
    mode: str


class Decision(TypedDict):
    """One decision, as it is written to the decisions topic."""

    decision_id: str
    request_id: str
    timestamp_ms: int
    user: str | None
    client_id: str | None
    api: str
    gateway: str | None
    verdict: Verdict
    throttle_time_ms: int
    mute_until_ms: int | None
    error_code: int
    topic_results: list[TopicResult]
    decided_by: str | None
    charges: list[ChargeResult]
    quota_version: int
    decided_at_ms: int


class RequestHead(NamedTuple):
    """What a decision repeats of its request, and what was settled before any counter was touched."""

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


class Samples(NamedTuple):
    """The samples of a request-time rate, as they travel from a shard to the combining step."""

    starts_ms: list[int]
    last_events_ms: list[int]
    values: list[float]
    current: int


class PartialDecision(NamedTuple):
    """What one counter says about a request: its charges, the waits they ask for, and refused topics."""

    charges: list[ChargeResult]
    byte_wait_ms: int = 0
    byte_quota: str | None = None
    mutation_wait_ms: int = 0
    refused: Sequence[bool] = ()
    request_wait_ms: int = 0
    request_limit: float | None = None
    request_samples: Samples | None = None


def decide_charges(
    meters: Meters, tags: Tags, charges: Sequence[Charge], now_ms: int, settings: QuotaSettings
) -> PartialDecision:
    """Make all charges of one request on one counter.

    If one of them throttles a Fetch, its bytes are taken back, for the response goes out empty (KIP-219). Shadow
    quotas are charged like others and have no say.
    """
    outcomes = [meters.charge(charge, now_ms, settings) for charge in charges]
    enforced = [outcome for outcome in outcomes if not outcome.charge.shadow]
    for outcome in enforced:
        if outcome.wait_ms > 0:
            _unrecord_fetched(meters, outcomes, now_ms, settings)
            break
    return _partial([_charge_result(outcome, tags) for outcome in outcomes], enforced)


def combine(
    head: RequestHead, timestamp_ms: int, partials: Sequence[PartialDecision], settings: QuotaSettings
) -> Decision:
    """One decision from what every counter says.

    `max` (shipped Kafka): the longest wait counts, a tie goes to the request quota. `sequential` (KIP-124,
    "Co-existence of multiple quotas"): the byte-rate delay comes first, the request quota is checked again after it
    and what is then left to wait is added.
    """
    waits = _Waits(head.purgatory_ms)
    for partial in partials:
        waits.add(partial)
    throttle_ms, decided_by = waits.throttle(timestamp_ms, partials, settings)
    throttle_time_ms = clamp_throttle_ms(throttle_ms)
    rejected = bool(waits.refused) and all(waits.refused)
    charges = partials[0].charges if len(partials) == 1 else [result for part in partials for result in part.charges]
    if head.unmetered:
        charges = charges + [_unmetered_result(amount) for amount in head.unmetered]
    return {
        "decision_id": head.decision_id,
        "request_id": head.request_id,
        "timestamp_ms": timestamp_ms,
        "user": head.user,
        "client_id": head.client_id,
        "api": head.api,
        "gateway": head.gateway,
        "verdict": _verdict(rejected, throttle_time_ms),
        "throttle_time_ms": throttle_time_ms,
        "mute_until_ms": timestamp_ms + throttle_time_ms if throttle_time_ms else None,
        "error_code": THROTTLING_QUOTA_EXCEEDED if rejected else 0,
        "topic_results": _topic_results(head.topics, waits.refused) if head.topics else [],
        "decided_by": decided_by if throttle_time_ms else None,
        "charges": charges,
        "quota_version": head.quota_version,
        "decided_at_ms": head.decided_at_ms,
    }


class _Waits:
    """The waits that the quotas of one request ask for, gathered over its counters."""

    __slots__ = ("byte_ms", "byte_quota", "mutation_ms", "purgatory_ms", "refused", "request_ms")

    def __init__(self, purgatory_ms: int) -> None:
        self.purgatory_ms = purgatory_ms
        self.byte_ms = self.mutation_ms = self.request_ms = 0
        self.byte_quota: str | None = None
        self.refused: list[bool] = []

    def add(self, partial: PartialDecision) -> None:
        """Take in what one more counter says; each kind's longest wait counts."""
        if partial.byte_wait_ms > self.byte_ms:
            self.byte_ms, self.byte_quota = partial.byte_wait_ms, partial.byte_quota
        if partial.mutation_wait_ms > self.mutation_ms:
            self.mutation_ms = partial.mutation_wait_ms
        if partial.request_wait_ms > self.request_ms:
            self.request_ms = partial.request_wait_ms
        if partial.refused:
            self.refused = [*self.refused, *partial.refused]

    def throttle(
        self, timestamp_ms: int, partials: Sequence[PartialDecision], settings: QuotaSettings
    ) -> tuple[int, str | None]:
        """The wait of the whole request, and the quota that decided it."""
        request_ms, byte_ms, mutation_ms = self.request_ms, self.byte_ms, self._mutation_ms()
        if byte_ms and settings.coexistence is Coexistence.SEQUENTIAL:
            after_ms = timestamp_ms + byte_ms
            byte_ms += max(_request_wait_at(partial, after_ms, settings) for partial in partials)
            request_ms = 0
        if request_ms >= byte_ms and request_ms >= mutation_ms:
            return request_ms, QuotaKind.REQUEST_PERCENTAGE.value
        if byte_ms >= mutation_ms:
            return byte_ms, self.byte_quota
        return mutation_ms, QuotaKind.CONTROLLER_MUTATION_RATE.value

    def _mutation_ms(self) -> int:
        """The controller's wait less what the request spent in purgatory (KIP-599, "Handling of new Clients")."""
        if not self.mutation_ms and not self.refused:
            return 0
        return max(self.mutation_ms - self.purgatory_ms, 1 if any(self.refused) else 0)


def _unrecord_fetched(meters: Meters, outcomes: Sequence[Outcome], now_ms: int, settings: QuotaSettings) -> None:
    for outcome in outcomes:
        if outcome.charge.kind in CONSUMER_KINDS:
            meters.unrecord(outcome.charge.kind, outcome.value, now_ms, settings)


def _partial(results: list[ChargeResult], enforced: Sequence[Outcome]) -> PartialDecision:
    byte_wait_ms, byte_quota, mutation_wait_ms, request_wait_ms = 0, None, 0, 0
    refused: Sequence[bool] = ()
    request_limit, request_samples = None, None
    for outcome in enforced:
        kind = outcome.charge.kind
        if kind is QuotaKind.CONTROLLER_MUTATION_RATE:
            mutation_wait_ms, refused = outcome.wait_ms, outcome.refused
        elif kind is QuotaKind.REQUEST_PERCENTAGE:
            request_wait_ms, request_limit = outcome.wait_ms, outcome.charge.limit
            request_samples = _samples(outcome.samples)
        elif outcome.wait_ms > byte_wait_ms:
            byte_wait_ms, byte_quota = outcome.wait_ms, kind.value
    return PartialDecision(
        results, byte_wait_ms, byte_quota, mutation_wait_ms, refused, request_wait_ms, request_limit, request_samples
    )


def _samples(rate: SampledRate | None) -> Samples | None:
    if rate is None:
        return None
    return Samples(rate.starts_ms, rate.last_events_ms, rate.values, rate.current)


def _charge_result(outcome: Outcome, tags: Tags) -> ChargeResult:
    charge = outcome.charge
    result: ChargeResult = {
        "quota": charge.kind.value,
        "entity": tags.to_mapping(),
        "matched": charge.rung,
        "limit": charge.limit,
        "value": outcome.value,
        "rate": outcome.rate,
        "throttle_ms": _reported_wait_ms(outcome) if outcome.violated else 0,
        "violated": outcome.violated,
    }
    if charge.kind is QuotaKind.CONTROLLER_MUTATION_RATE:
        result["tokens"] = outcome.tokens
    if charge.shadow:
        result["mode"] = "shadow"
    return result


def _reported_wait_ms(outcome: Outcome) -> int:
    """A refusal never carries 0 ms: shipped Kafka may round a short wait down to 0, which reads like success."""
    return max(clamp_throttle_ms(outcome.wait_ms), 1 if any(outcome.refused) else 0)


def _unmetered_result(amount: Unmetered) -> ChargeResult:
    return ChargeResult(
        quota=amount.quota,
        entity=amount.tags.to_mapping() if amount.tags else {},
        matched=amount.rung,
        limit=None,
        value=amount.value,
        rate=None,
        throttle_ms=0,
        violated=False,
    )


def _request_wait_at(partial: PartialDecision, now_ms: int, settings: QuotaSettings) -> int:
    """The wait the request quota asks for at a later time, when some of its samples may have gone."""
    if partial.request_samples is None:
        return 0
    rate, window = SampledRate(*partial.request_samples).copy(), settings.client_window
    observed = rate.measure(window, now_ms)
    if not exceeds(observed, partial.request_limit):
        return 0
    return request_wait_ms(rate, observed, partial.request_limit, window, now_ms)


def _verdict(rejected: bool, throttle_time_ms: int) -> Verdict:
    if rejected:
        return Verdict.REJECT
    return Verdict.THROTTLE if throttle_time_ms else Verdict.ALLOW


def _topic_results(topics: Sequence[str], refused: Sequence[bool]) -> list[TopicResult]:
    flags = refused or [False] * len(topics)
    return [
        TopicResult(
            topic=topic,
            error_code=THROTTLING_QUOTA_EXCEEDED if flag else 0,
            error_message=QUOTA_EXCEEDED_MESSAGE if flag else None,
        )
        for topic, flag in zip(topics, flags, strict=True)
    ]
