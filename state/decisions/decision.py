"""The decision on one request: the waits of several quotas combined into one verdict (KIP-124, KIP-219, KIP-599).

A decision is JSON from the start. Planning writes all that the event says, as if the request charged no counter
(`Said`); the texts of its charges are put in once they are made, and an answer that isn't ALLOW (`with_answer`).
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from sluice.state.arithmetic.counter import Charge, Outcome, request_wait_ms
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.contract.records import (
    QUOTA_EXCEEDED_MESSAGE,
    THROTTLING_QUOTA_EXCEEDED,
    UNMUTE_API,
    Amounts,
    ChargeResult,
    Decision,
    Request,
    TopicResult,
    Unmute,
    Verdict,
)
from sluice.state.decisions.charge_plan import MUTATION_APIS
from sluice.state.quotas.kinds import MAX_THROTTLE_MS, Coexistence, Family, QuotaKind, QuotaSettings

_ENCODER = msgspec.json.Encoder()
_NO_AMOUNTS = Amounts()

_ALLOWED_TEXT = b',"verdict":"ALLOW","throttle_time_ms":0,"mute_until_ms":null,"error_code":0,"topic_results":['
_BY_NOBODY = b'],"decided_by":null,"charges":['
_NOT_REFUSED = b'"error_code":0,"error_message":null'
_REFUSED = b'"error_code":%d,"error_message":"%b"' % (THROTTLING_QUOTA_EXCEEDED, QUOTA_EXCEEDED_MESSAGE.encode())
"""Parts of a decision's JSON. A name can't contain one of them, as quotes in texts are escaped."""

_FIELDS = [(field.encode_name, field.type, field.default) for field in msgspec.structs.fields(Decision)]
_Head: Any = msgspec.defstruct("_Head", [(name, kind) for name, kind, _ in _FIELDS[:7]], gc=False)
_Tail: Any = msgspec.defstruct("_Tail", [(name, kind) for name, kind, _ in _FIELDS[-4:]], gc=False)
"""The fields of a decision up to `gateway`, and those from `instance` on."""


class Said(NamedTuple):
    """JSON of a decision before and after its charges, the comma before unmetered amounts included."""

    front: bytes
    back: bytes

    def alone(self) -> bytes:
        """The decision without any charge of a counter."""
        return self.front + self.back.removeprefix(b",")


def batch_text(quota_version: int, decided_at_ms: int, job_id: str | None) -> bytes:
    """JSON of the facts that all decisions of a micro-batch share, which begins in epoch milliseconds.

    >>> batch_text(3, 9, None)
    b'],"quota_version":3,"decided_at_ms":9,"job_id":null,'
    """
    return b'],"quota_version":%d,"decided_at_ms":%d,"job_id":%b,' % (
        quota_version,
        decided_at_ms,
        _ENCODER.encode(job_id),
    )


class Waits(msgspec.Struct, array_like=True, gc=False):
    """The waits in ms, not yet clamped, that the enforced charges of a request ask for, and the topics they refuse.

    The request quota's limit and samples serve to check it again at a later time (sequential coexistence).
    """

    byte_wait_ms: int = 0
    byte_quota: str | None = None
    mutation_wait_ms: int = 0
    refused: Sequence[bool] = ()
    request_wait_ms: int = 0
    request_limit: float | None = None
    request_samples: SampledRate | None = None

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "Waits":
        """The waits that these outcomes ask for."""
        waits = cls()
        for outcome in outcomes:
            waits.add(outcome.charge, outcome.wait_ms, outcome.refused, outcome.samples)
        return waits

    def add(
        self, charge: Charge, wait_ms: int, refused: Sequence[bool] = (), samples: SampledRate | None = None
    ) -> None:
        """Take in the wait that a charge asks for; a shadow quota's counts for nothing. Of bytes the longest counts."""
        if charge.shadow:
            return
        family = charge.kind.family
        if family is Family.MUTATIONS:
            self.mutation_wait_ms, self.refused = wait_ms, refused
        elif family is Family.REQUEST_TIME:
            self.request_wait_ms, self.request_limit, self.request_samples = wait_ms, charge.limit, samples
        elif wait_ms > self.byte_wait_ms:
            self.byte_wait_ms, self.byte_quota = wait_ms, charge.kind

    def join(self, more: "Waits") -> None:
        """Take in the waits of another counter of the request. Of each family the longest wait counts."""
        self.refused = [*self.refused, *more.refused]
        if more.byte_wait_ms > self.byte_wait_ms:
            self.byte_wait_ms, self.byte_quota = more.byte_wait_ms, more.byte_quota
        self.mutation_wait_ms = max(self.mutation_wait_ms, more.mutation_wait_ms)
        if more.request_limit is not None:
            self.request_wait_ms, self.request_limit = more.request_wait_ms, more.request_limit
            self.request_samples = more.request_samples


class Answer(NamedTuple):
    """The answer to a client: the verdict, the wait in ms, and the quota that decided it."""

    verdict: Verdict
    throttle_ms: int
    decided_by: str | None


ALLOWED = Answer(Verdict.ALLOW, 0, None)


def said(request: Request, decision_id: str, unmetered: Sequence[ChargeResult], batch: bytes) -> Said:
    """The decision on a request; `unmetered` are amounts that are reported alone, `batch` is of `batch_text`.

    >>> said(Request("Produce", "r-1", 5, user="alice"), "requests-0-7", [], batch_text(3, 9, None)).back
    b'],"quota_version":3,"decided_at_ms":9,"job_id":null,"instance":null}'
    """
    amounts = Amounts(  # by position, here and below: keywords take half a microsecond more
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
    head = _Head(
        decision_id,
        request.request_id or "",
        request.timestamp_ms or 0,
        request.user,
        request.client_id,
        request.api,
        request.gateway,
    )
    tail = _Tail(
        request.instance,
        UNSET if request.throttled_by is None else request.throttled_by,
        UNSET if amounts == _NO_AMOUNTS else amounts,
        UNSET if request.heartbeat is None else request.heartbeat,
    )
    topics = b""
    if request.mutations and request.api in MUTATION_APIS:
        topics = _ENCODER.encode([TopicResult(each.topic, 0, None) for each in request.mutations])[1:-1]
    more = b"," + _ENCODER.encode(unmetered)[1:-1] if unmetered else b""
    return Said(
        b"".join((_ENCODER.encode(head)[:-1], _ALLOWED_TEXT, topics, _BY_NOBODY)),
        b"".join((more, batch, _ENCODER.encode(tail)[1:])),
    )


def said_of_unmute(unmute: Unmute, decision_id: str, decided_at_ms: int, batch: bytes) -> Said:
    """The decision that answers a control record. Its time is the job's."""
    entity = unmute.entity
    request = Request(UNMUTE_API, unmute.request_id, decided_at_ms, user=entity.user, client_id=entity.client_id)
    return said(request, decision_id, [], batch)


def answered(waits: Waits, purgatory_ms: int, timestamp_ms: int, settings: QuotaSettings) -> Answer:
    """The answer to a request that its counters ask to wait.

    `max` (shipped Kafka): the longest wait counts, and the request quota wins a tie. `sequential` (KIP-124,
    "Co-existence of multiple quotas"): the byte-rate wait comes first; the request quota is checked again at its end,
    and the remaining wait is added.
    """
    throttle_ms, decided_by = _throttle(waits, purgatory_ms, timestamp_ms, settings)
    throttle_time_ms = clamp_throttle_ms(throttle_ms)
    if waits.refused and all(waits.refused):
        return Answer(Verdict.REJECT, throttle_time_ms, decided_by)
    return Answer(Verdict.THROTTLE, throttle_time_ms, decided_by) if throttle_time_ms else ALLOWED


def with_answer(front: bytes, answer: Answer, refused: Sequence[bool], timestamp_ms: int) -> bytes:
    """The JSON of a decision before its charges, with this answer and refused topics.

    >>> front = b'{"api":"Produce"' + _ALLOWED_TEXT + _BY_NOBODY
    >>> with_answer(front, Answer(Verdict.THROTTLE, 10, "q"), (), timestamp_ms=5)[16:119]
    b',"verdict":"THROTTLE","throttle_time_ms":10,"mute_until_ms":15,"error_code":0,"topic_results":[],"decid'
    """
    if answer is ALLOWED:
        return front
    before, _, results = front.removesuffix(_BY_NOBODY).partition(_ALLOWED_TEXT)
    if any(refused):
        pieces = results.split(_NOT_REFUSED)
        flags = [_REFUSED if flag else _NOT_REFUSED for flag in refused]
        results = b"".join(part for pair in zip(pieces, [*flags, b""], strict=True) for part in pair)
    verdict = b',"verdict":"%b","throttle_time_ms":%d,"mute_until_ms":%d,"error_code":%d,"topic_results":[' % (
        answer.verdict.encode(),
        answer.throttle_ms,
        timestamp_ms + answer.throttle_ms,
        THROTTLING_QUOTA_EXCEEDED if answer.verdict is Verdict.REJECT else 0,
    )
    by = b'],"decided_by":%b,"charges":[' % _ENCODER.encode(answer.decided_by)
    return b"".join((before, verdict, results, by))


def clamp_throttle_ms(wait_ms: int) -> int:
    """The wait in a response, clamped to an int32; in shipped Kafka it overflows for the controller quota."""
    return min(max(wait_ms, 0), MAX_THROTTLE_MS)


def _throttle(waits: Waits, purgatory_ms: int, timestamp_ms: int, settings: QuotaSettings) -> tuple[int, str | None]:
    """The wait of the whole request in ms, not yet clamped, and the quota that decided it."""
    request_ms, byte_ms = waits.request_wait_ms, waits.byte_wait_ms
    mutation_ms = _mutation_ms(waits, purgatory_ms)
    if byte_ms and settings.coexistence is Coexistence.SEQUENTIAL:
        byte_ms += _request_wait_at(waits, timestamp_ms + byte_ms, settings)
        request_ms = 0
    if request_ms >= byte_ms and request_ms >= mutation_ms:
        return request_ms, QuotaKind.REQUEST_PERCENTAGE
    if byte_ms >= mutation_ms:
        return byte_ms, waits.byte_quota
    return mutation_ms, QuotaKind.CONTROLLER_MUTATION_RATE


def _mutation_ms(waits: Waits, purgatory_ms: int) -> int:
    """The controller's wait minus the time the request spent in purgatory (KIP-599, "Handling of new Clients")."""
    if not waits.mutation_wait_ms and not waits.refused:
        return 0
    return max(waits.mutation_wait_ms - purgatory_ms, 1 if any(waits.refused) else 0)


def _request_wait_at(waits: Waits, now_ms: int, settings: QuotaSettings) -> int:
    """The wait the request quota asks for at a later time, when some of its samples may be outdated."""
    if waits.request_samples is None:
        return 0
    rate, window = waits.request_samples.copy(), settings.client_window
    observed, window_ms = rate.observe(window, now_ms)
    return request_wait_ms(observed, waits.request_limit, window_ms, window)
