"""The decision on one request: the waits of several quotas combined into one verdict (KIP-124, KIP-219, KIP-599).

A decision is JSON from the start. Planning writes all that the event says, as if the request charged no counter
(`said`); the texts of its charges are put in once they are made (`with_charges`), and an answer that isn't ALLOW
(`with_answer`).
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
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
    CountedEntity,
    Decision,
    ElasticNote,
    Overrides,
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

_CHARGES = b"\n"
"""The place of the charges in what is said of a request: JSON escapes each line end in a text."""

_FIELDS = {field.encode_name: (field.type, field.default) for field in msgspec.structs.fields(Decision)}


def _as_json(names: Iterable[str], type_: Any = None) -> list[tuple[str, Any]]:
    """Fields of a struct that is encoded alone, of these fields of a decision."""
    return [(name, type_ or _FIELDS[name][0]) for name in names]


_Said: Any = msgspec.defstruct(
    "_Said",
    [
        *_as_json(("decision_id", "request_id", "timestamp_ms", "user", "client_id", "api", "gateway")),
        *_as_json(["verdict"], msgspec.Raw),
        *_as_json(["topic_results"]),
        *_as_json(["decided_by"], msgspec.Raw),
        *_as_json(("instance", "throttled_by", "amounts", "heartbeat")),
    ],
    gc=False,
)
"""A decision that charges nothing. The raw fields are text, together with the fields behind them that are constant."""

_ALLOWED_RAW = msgspec.Raw(_ALLOWED_TEXT.removeprefix(b',"verdict":').removesuffix(b',"topic_results":['))
_NO_TOPICS: list[TopicResult] = []
_NO_VALUE = b',"value":0.0'


def with_charges(text: bytes, charges: bytes) -> bytes:
    """The decision with the charges of counters, at least one; `text` is of `said`.

    >>> text = said(Request("Produce"), "requests-0-7", [], batch_text(3, 9, None))
    >>> with_charges(text, b'{"quota":"q"}').partition(b'null,"charges":')[2][:32]
    b'[{"quota":"q"}],"quota_version":'
    """
    return text.replace(_CHARGES, charges)


def without_charges(text: bytes) -> bytes:
    """The decision on a request that charges no counter; `text` is of `said`."""
    return text.replace(_CHARGES + b",", b"").replace(_CHARGES, b"")


def batch_text(
    quota_version: int, decided_at_ms: int, job_id: str | None, source_topic_id: str | None = None
) -> msgspec.Raw:
    r"""JSON of what all decisions of a micro-batch share, from `decided_by` on. It begins in epoch milliseconds.

    >>> bytes(batch_text(3, 9, None)).partition(b',"source')[0]
    b'null,"charges":[\n],"quota_version":3,"decided_at_ms":9,"job_id":null'
    """
    facts = quota_version, decided_at_ms, _ENCODER.encode(job_id), _ENCODER.encode(source_topic_id)
    text = b'null,"charges":[%b],"quota_version":%d,"decided_at_ms":%d,"job_id":%b,"source_topic_id":%b'
    return msgspec.Raw(text % (_CHARGES, *facts))


def overridden_texts(batch: msgspec.Raw, overrides: Overrides) -> dict[str, msgspec.Raw]:
    """The texts of a micro-batch of the gateways that are tightened.

    >>> from sluice.state.contract.records import Override
    >>> tight = Override("tighten", 0.75, gateway="b-2-1f", reason="b-2: queue 34 ms")
    >>> tightened = overridden_texts(batch_text(3, 9, None), Overrides(7, 9, 5_000, [tight]))
    >>> bytes(tightened["b-2-1f"]).partition(b'"elastic":')[2]
    b'{"number":7,"factor":0.75,"reason":"b-2: queue 34 ms"}'
    """
    tightened = {}
    for each in sorted(overrides.overrides, key=lambda each: -each.factor):  # the least factor of a gateway is the last
        if each.gateway is not None:
            note = _ENCODER.encode(ElasticNote(overrides.number, each.factor, each.reason))
            tightened[each.gateway] = msgspec.Raw(b'%b,"elastic":%b' % (bytes(batch), note))
    return tightened


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
        """Take in the waits of another counter of the request. Of each family the longest wait counts.

        A topic is refused if a client's own counter or its tenant's refuses it.
        """
        pairs = zip_longest(self.refused, more.refused, fillvalue=False)
        self.refused = [one or other for one, other in pairs]
        if more.byte_wait_ms > self.byte_wait_ms:
            self.byte_wait_ms, self.byte_quota = more.byte_wait_ms, more.byte_quota
        self.mutation_wait_ms = max(self.mutation_wait_ms, more.mutation_wait_ms)
        self.request_wait_ms = max(self.request_wait_ms, more.request_wait_ms)
        self.request_rates = [*self.request_rates, *more.request_rates]


class Answer(NamedTuple):
    """The answer to a client: the verdict, the wait in ms, and the quota that decided it."""

    verdict: Verdict
    throttle_ms: int
    decided_by: str | None


ALLOWED = Answer(Verdict.ALLOW, 0, None)


def unmetered_text(entity: CountedEntity, quota: str, matched: str = "none") -> tuple[bytes, bytes]:
    """JSON of an amount that is reported and charged to no counter, before the amount and after it.

    >>> before, after = unmetered_text(CountedEntity(user="alice"), "request_percentage")
    >>> before.endswith(b',"limit":null,"value":'), after.startswith(b',"rate":null,')
    (True, True)
    """
    result = ChargeResult(quota, entity, matched)
    before, _, after = _ENCODER.encode(result).partition(_NO_VALUE)  # quotes in names are escaped
    return before + _NO_VALUE.removesuffix(b"0.0"), after


def said(request: Request, decision_id: str, unmetered: Sequence[bytes], batch: msgspec.Raw) -> bytes:
    """The decision on a request, with the place of its charges marked (`with_charges`, `without_charges`).

    `unmetered` are amounts that are reported alone, as JSON, `batch` is of `batch_text`.

    >>> text = said(Request("Produce", "r-1", 5, user="alice"), "requests-0-7", [], batch_text(3, 9, None))
    >>> without_charges(text).partition(b',"charges":')[2]
    b'[],"quota_version":3,"decided_at_ms":9,"job_id":null,"source_topic_id":null,"instance":null}'
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
    topics = _NO_TOPICS
    if request.mutations and request.api in MUTATION_APIS:
        topics = [TopicResult(each.topic, 0, None) for each in request.mutations]
    if unmetered:
        batch = msgspec.Raw(bytes(batch).replace(_CHARGES, b",".join((_CHARGES, *unmetered))))
    text: bytes = _ENCODER.encode(
        _Said(
            decision_id,
            request.request_id or "",
            request.timestamp_ms or 0,
            request.user,
            request.client_id,
            request.api,
            request.gateway,
            _ALLOWED_RAW,
            topics,
            batch,
            request.instance,
            UNSET if request.throttled_by is None else request.throttled_by,
            UNSET if amounts == _NO_AMOUNTS else amounts,
            UNSET if request.heartbeat is None else request.heartbeat,
        )
    )
    return text


def said_of_unmute(unmute: Unmute, decision_id: str, decided_at_ms: int, batch: msgspec.Raw) -> bytes:
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


def with_answer(text: bytes, answer: Answer, refused: Sequence[bool], timestamp_ms: int) -> bytes:
    """The JSON of a decision before its charges are put in, with this answer and refused topics.

    >>> text = b'{"api":"Produce"' + _ALLOWED_TEXT + _BY_NOBODY
    >>> with_answer(text, Answer(Verdict.THROTTLE, 10, "q"), (), timestamp_ms=5)[16:119]
    b',"verdict":"THROTTLE","throttle_time_ms":10,"mute_until_ms":15,"error_code":0,"topic_results":[],"decid'
    """
    if answer is ALLOWED:
        return text
    before, _, after = text.partition(_ALLOWED_TEXT)
    results, _, after = after.partition(_BY_NOBODY)
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
    return b"".join((before, verdict, results, by, after))


def clamp_throttle_ms(wait_ms: int) -> int:
    """The wait in a response, clamped to an int32; in shipped Kafka it overflows for the controller quota."""
    return min(max(wait_ms, 0), MAX_THROTTLE_MS)


def _throttle(waits: Waits, purgatory_ms: int, timestamp_ms: int, settings: QuotaSettings) -> tuple[int, str | None]:
    """The wait of the whole request in ms, not yet clamped, and the quota that decided it."""
    request_ms, byte_ms = waits.request_wait_ms, waits.byte_wait_ms
    mutation_ms = _mutation_ms(waits, purgatory_ms)
    if byte_ms and settings.coexistence is Coexistence.SEQUENTIAL:
        byte_ms += _request_wait_after(byte_ms, waits, timestamp_ms, settings)
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


def _request_wait_after(byte_ms: int, waits: Waits, timestamp_ms: int, settings: QuotaSettings) -> int:
    """The wait the request quotas ask for so much later, when some of their samples may be outdated."""
    window, longest_ms = settings.client_window, 0
    for limit, samples in waits.request_rates:
        later_ms = max(timestamp_ms, samples.newest_ms) + byte_ms
        observed, window_ms = samples.copy().observe(window, later_ms)
        longest_ms = max(longest_ms, request_wait_ms(observed, limit, window_ms, window))
    return longest_ms
