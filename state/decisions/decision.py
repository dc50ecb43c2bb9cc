"""The decision on one request: the waits of several quotas combined into one verdict (KIP-124, KIP-219, KIP-599)."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from sluice.state.arithmetic.counter import Charge, Outcome, bounded_wait_ms
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.contract.gateway_topics import Overrides
from sluice.state.contract.records import (
    QUOTA_EXCEEDED_MESSAGE,
    THROTTLING_QUOTA_EXCEEDED,
    UNMUTE_API,
    Amounts,
    ChargeResult,
    CountedEntity,
    Decision,
    ElasticNote,
    Request,
    TopicResult,
    Unmute,
    Verdict,
)
from sluice.state.decisions.charge_plan import MUTATION_APIS
from sluice.state.quotas.kinds import MAX_THROTTLE_MS, Coexistence, Family, QuotaKind, QuotaSettings

_NO_AMOUNTS = Amounts()


class BatchFields(NamedTuple):
    """The fields that all decisions of a micro-batch share; it begins at `decided_at_ms`, in epoch milliseconds.

    `of_gateways` notes the overrides in force at gateways that are tightened, by instance.
    """

    quota_version: int
    decided_at_ms: int
    job_id: str | None = None
    source_topic_id: str | None = None
    of_gateways: Mapping[str, ElasticNote] = {}

    def under(self, overrides: Overrides | None) -> "BatchFields":
        """The same while limits give way.

        >>> from sluice.state.contract.gateway_topics import Override
        >>> tight = Override("tighten", 0.75, gateway="b-2-1f", reason="b-2: queue 34 ms")
        >>> BatchFields(3, 9).under(Overrides(7, 9, 5_000, [tight])).of_gateways["b-2-1f"]
        ElasticNote(number=7, factor=0.75, reason='b-2: queue 34 ms')
        """
        if overrides is None:
            return self
        of_gateways: dict[str, ElasticNote] = {}
        for each in sorted(overrides.overrides, key=lambda each: -each.factor):  # the least of a gateway is the last
            if each.gateway is not None:
                of_gateways[each.gateway] = ElasticNote(overrides.number, each.factor, each.reason)
        return self._replace(of_gateways=of_gateways)


def undecided(request: Request, decision_id: str, reported: Sequence[ChargeResult], batch: BatchFields) -> Decision:
    """The decision on a request as if it charged no counter; `reported` are amounts that are charged to none.

    >>> decision = undecided(Request("Produce", "r-1", 5, user="alice"), "requests-0-7", [], BatchFields(3, 9))
    >>> decision.verdict.value, decision.user, decision.charges, decision.quota_version
    ('ALLOW', 'alice', [], 3)
    """
    topics = request.mutations if request.api in MUTATION_APIS else []
    amounts = Amounts(
        bytes=request.bytes,
        request_time_ns=request.request_time_ns,
        network_time_ns=request.network_time_ns,
        topic_partitions=request.topic_partitions,
        mutations=request.mutations,
        mutations_charged=request.mutations_charged,
        api_version=request.api_version,
        validate_only=request.validate_only,
        cluster_action=request.cluster_action,
        authenticating=request.authenticating,
        purgatory_ms=request.purgatory_ms,
        withheld=request.withheld,
        requests=request.requests,
    )
    return Decision(
        decision_id,
        request.request_id or "",
        request.timestamp_ms or 0,
        user=request.user,
        client_id=request.client_id,
        api=request.api,
        gateway=request.gateway,
        topic_results=[TopicResult(each.topic, 0, None) for each in topics],
        charges=[*reported],
        quota_version=batch.quota_version,
        decided_at_ms=batch.decided_at_ms,
        job_id=batch.job_id,
        source_topic_id=batch.source_topic_id,
        elastic=UNSET if request.instance is None else batch.of_gateways.get(request.instance, UNSET),
        instance=request.instance,
        throttled_by=UNSET if request.throttled_by is None else request.throttled_by,
        amounts=UNSET if amounts == _NO_AMOUNTS else amounts,
        heartbeat=UNSET if request.heartbeat is None else request.heartbeat,
    )


def undecided_unmute(unmute: Unmute, decision_id: str, batch: BatchFields) -> Decision:
    """The decision that answers a control record, as if it reset no counter. Its time is the job's."""
    entity = unmute.entity
    request = Request(UNMUTE_API, unmute.request_id, batch.decided_at_ms, user=entity.user, client_id=entity.client_id)
    return undecided(request, decision_id, [], batch)


def charge_result(outcome: Outcome, entity: CountedEntity) -> ChargeResult:
    """The outcome of a charge on this entity's counter, as the decision reports it.

    A refusal never carries 0 ms: shipped Kafka may round to 0, which looks like success.
    """
    charge, throttle_ms = outcome.charge, 0
    if outcome.violated:
        throttle_ms = max(clamp_throttle_ms(outcome.wait_ms), 1 if any(outcome.refused) else 0)
    return ChargeResult(
        charge.kind,
        entity,
        charge.level,
        charge.limit,
        outcome.value,
        outcome.rate,
        throttle_ms,
        outcome.violated,
        tokens=outcome.tokens if charge.kind.family is Family.MUTATIONS else UNSET,
        mode="shadow" if charge.shadow else UNSET,
    )


class Waits(msgspec.Struct, array_like=True, gc=False):
    """The waits in ms, not yet clamped, that the enforced charges of a request ask for, and the topics they refuse.

    The request quotas' limits and samples serve to check them again at a later time (sequential coexistence).
    """

    byte_wait_ms: int = 0
    byte_quota: str | None = None
    mutation_wait_ms: int = 0
    refused: Sequence[bool] = ()
    request_wait_ms: int = 0
    request_rates: list[tuple[float | None, SampledRate]] = []

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "Waits":
        """The waits that these outcomes ask for."""
        waits = cls()
        for outcome in outcomes:
            if outcome.violated or outcome.samples is not None:
                waits.add(outcome.charge, outcome.wait_ms, outcome.refused, outcome.samples)
        return waits

    def add(
        self, charge: Charge, wait_ms: int, refused: Sequence[bool] = (), samples: SampledRate | None = None
    ) -> None:
        """Take in the wait that a charge asks for; a shadow quota's counts for nothing.

        Of bytes and of counted requests the longest counts.
        """
        if charge.shadow:
            return
        family = charge.kind.family
        if family is Family.MUTATIONS:
            self.mutation_wait_ms, self.refused = wait_ms, refused
        elif family is Family.REQUEST_TIME:
            self.request_wait_ms = wait_ms
            self.request_rates = [] if samples is None else [(charge.limit, samples)]
        elif wait_ms > self.byte_wait_ms:
            self.byte_wait_ms, self.byte_quota = wait_ms, charge.kind

    def join(self, more: "Waits") -> None:
        """Take in the waits of another entity that the request is charged to. Of each family the longest wait counts.

        A topic is refused if a client's own counter or its tenant's refuses it.
        """
        pairs = zip_longest(self.refused, more.refused, fillvalue=False)
        self.refused = [one or other for one, other in pairs]
        if more.byte_wait_ms > self.byte_wait_ms:
            self.byte_wait_ms, self.byte_quota = more.byte_wait_ms, more.byte_quota
        self.mutation_wait_ms = max(self.mutation_wait_ms, more.mutation_wait_ms)
        self.request_wait_ms = max(self.request_wait_ms, more.request_wait_ms)
        self.request_rates = [*self.request_rates, *more.request_rates]


class RequestOutcome(NamedTuple):
    """The outcome of a request: the verdict, the wait in ms, and the quota that decided it."""

    verdict: Verdict
    throttle_ms: int
    decided_by: str | None


ALLOWED = RequestOutcome(Verdict.ALLOW, 0, None)


def request_outcome(waits: Waits, purgatory_ms: int, timestamp_ms: int, settings: QuotaSettings) -> RequestOutcome:
    """The outcome of a request that its counters ask to wait.

    `max` (shipped Kafka): the longest wait counts, and the request quota wins a tie. `sequential` (KIP-124,
    "Co-existence of multiple quotas"): the byte-rate wait comes first; the request quota is checked again at its end,
    and the remaining wait is added.

    >>> waits = Waits(byte_wait_ms=3_750, byte_quota="producer_byte_rate", request_wait_ms=1_000)
    >>> request_outcome(waits, 0, 5, QuotaSettings())[1:]
    (3750, 'producer_byte_rate')

    3 750 ms later the request quota still asks for 1 000 ms:

    >>> waits.request_rates = [(1.0, SampledRate([0], [0], [50.0]))]
    >>> request_outcome(waits, 0, 5, QuotaSettings(coexistence=Coexistence.SEQUENTIAL))[1:]
    (4750, 'producer_byte_rate')
    """
    throttle_ms, decided_by = _throttle(waits, purgatory_ms, timestamp_ms, settings)
    throttle_time_ms = clamp_throttle_ms(throttle_ms)
    if waits.refused and all(waits.refused):
        return RequestOutcome(Verdict.REJECT, throttle_time_ms, decided_by)
    return RequestOutcome(Verdict.THROTTLE, throttle_time_ms, decided_by) if throttle_time_ms else ALLOWED


def set_outcome(outcome: RequestOutcome, decision: Decision, refused: Sequence[bool]) -> None:
    """Put the outcome into the decision, with the error of each topic that is refused.

    >>> decision = undecided(Request("Produce", timestamp_ms=5), "requests-0-7", [], BatchFields(3, 9))
    >>> set_outcome(RequestOutcome(Verdict.THROTTLE, 10, "producer_byte_rate"), decision, ())
    >>> decision.throttle_time_ms, decision.mute_until_ms, decision.decided_by
    (10, 15, 'producer_byte_rate')
    """
    if outcome is ALLOWED:
        return
    decision.verdict, decision.throttle_time_ms, decision.decided_by = outcome
    decision.mute_until_ms = decision.timestamp_ms + outcome.throttle_ms
    if outcome.verdict is Verdict.REJECT:
        decision.error_code = THROTTLING_QUOTA_EXCEEDED
    for result, is_refused in zip(decision.topic_results, refused, strict=False):
        if is_refused:
            result.error_code, result.error_message = THROTTLING_QUOTA_EXCEEDED, QUOTA_EXCEEDED_MESSAGE


def clamp_throttle_ms(wait_ms: int) -> int:
    """The wait in a response, clamped to an int32; in shipped Kafka it overflows for the controller quota."""
    return min(max(wait_ms, 0), MAX_THROTTLE_MS)


def _throttle(waits: Waits, purgatory_ms: int, timestamp_ms: int, settings: QuotaSettings) -> tuple[int, str | None]:
    """The wait of the whole request in ms, not yet clamped, and the quota that decided it."""
    request_ms, byte_ms = waits.request_wait_ms, waits.byte_wait_ms
    mutation_ms = wait_after_purgatory_ms(waits.mutation_wait_ms, waits.refused, purgatory_ms)
    if byte_ms and settings.coexistence is Coexistence.SEQUENTIAL:
        byte_ms += _request_wait_after(byte_ms, waits, timestamp_ms, settings)
        request_ms = 0
    if request_ms >= byte_ms and request_ms >= mutation_ms:
        return request_ms, QuotaKind.REQUEST_PERCENTAGE
    if byte_ms >= mutation_ms:
        return byte_ms, waits.byte_quota
    return mutation_ms, QuotaKind.CONTROLLER_MUTATION_RATE


def wait_after_purgatory_ms(wait_ms: int, refused: Sequence[bool], purgatory_ms: int) -> int:
    """The controller's wait minus the time the request spent in purgatory (KIP-599, "Handling of new Clients").

    >>> wait_after_purgatory_ms(10_000, [False], 4_000), wait_after_purgatory_ms(1_000, [True], 4_000)
    (6000, 1)
    """
    return max(wait_ms - purgatory_ms, 1 if any(refused) else 0)


def _request_wait_after(byte_ms: int, waits: Waits, timestamp_ms: int, settings: QuotaSettings) -> int:
    """The wait the request quotas ask for so much later, when some of their samples may be outdated."""
    window, longest_ms = settings.client_window, 0
    for limit, samples in waits.request_rates:
        later_ms = max(timestamp_ms, samples.newest_ms) + byte_ms
        observed, window_ms = samples.copy().observe(window, later_ms)
        longest_ms = max(longest_ms, bounded_wait_ms(observed, limit, window_ms, window))
    return longest_ms
