"""The page "would this be limited?": quotas and throttle time of a request that is not sent. Nothing is charged."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from sluice.state.arithmetic.rounding import divide, round_half_up
from sluice.state.arithmetic.token_bucket import wait_for_tokens_ms
from sluice.state.decisions.charge_plan import COUNTED_APIS, MUTATION_APIS
from sluice.state.quotas.kinds import (
    CLIENT_KINDS,
    MAX_THROTTLE_MS,
    TOPIC_KINDS,
    Family,
    QuotaKind,
    QuotaSettings,
    Window,
)
from sluice.state.quotas.limits import LimitsInForce
from sluice.state.quotas.resolution import Resolution
from sluice_insight.live import CounterId, LiveModel

APIS = ("Produce", "Fetch", *MUTATION_APIS, "Metadata", *COUNTED_APIS)
MAX_SIZE = 1e15
MAX_NAME = 32_767


class Asked(NamedTuple):
    """The request in the form. `size` is bytes of a Produce or Fetch, partitions of a mutation."""

    user: str = ""
    client_id: str = ""
    api: str = "Produce"
    topic: str = ""
    partition: int = 0
    size: float = 0.0
    request_ms: float = 0.0

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """Read the form; fields that make no sense count as empty."""
        return cls(
            given.get("user", "")[:MAX_NAME],
            given.get("client_id", "")[:MAX_NAME],
            given["api"] if given.get("api") in APIS else "Produce",
            given.get("topic", "")[:MAX_NAME],
            int(_number(given.get("partition", ""), 2_147_483_647)),
            _number(given.get("size", ""), MAX_SIZE),
            _number(given.get("request_ms", ""), MAX_SIZE),
        )


class CheckResult(NamedTuple):
    """The effect of the quota `found`. `known` is true if a decision had its counter.

    The throttle time lies between `least_ms` and `most_ms`: a decision has the rate, not the windows it comes from.
    """

    kind: QuotaKind
    found: Resolution
    amount: float
    known: bool
    rate: float | None
    tokens: float | None
    waits_now_ms: int
    least_ms: int
    most_ms: int
    refused: bool


def answers(
    asked: Asked, limits: LimitsInForce, model: LiveModel, settings: QuotaSettings, now_ms: int
) -> list[CheckResult]:
    """The effect of each quota that the request would be charged to, enforced ones first."""
    amounts = _amounts(asked)
    return [
        _answer(found, kind, amounts[kind], model, settings, now_ms)
        for kind, found in limits_of(limits, amounts, asked.user, asked.client_id, asked.topic, asked.partition)
    ]


def limits_of(
    limits: LimitsInForce, kinds: Iterable[QuotaKind], user: str, client_id: str, topic: str | None, partition: int
) -> Iterator[tuple[QuotaKind, Resolution]]:
    """The limits of these kinds that a request would meet, enforced ones first."""
    for quotas in (limits.enforced, limits.shadow):
        for kind in filter(quotas.enabled, kinds):
            if kind in CLIENT_KINDS:
                yield from ((kind, found) for found in quotas.resolve_all(kind, user, client_id))
            elif topic:
                yield kind, quotas.resolve_topic(kind, topic, partition)


def rate_wait_ms(rate: float, amount: float, limit: float, window: Window) -> tuple[int, int]:
    """The least and the greatest throttle time after `amount` more, from the rate alone.

    A sampled rate is a sum over E seconds, where E lies between (S - 1) W and (S + 1) W. With the amount the sum is
    rate * E + amount. KIP-13's throttle time is (sum / E - limit) / limit * E = ((rate - limit) * E + amount) / limit.

    >>> rate_wait_ms(900.0, 2000.0, 1000.0, Window(samples=11, window_ms=1000))
    (800, 1000)
    >>> rate_wait_ms(0.0, 2000.0, 1000.0, Window(samples=11, window_ms=1000))
    (0, 0)
    """
    spans_s = ((window.samples - 1) * window.window_ms / 1000, (window.samples + 1) * window.window_ms / 1000)
    waits_ms = sorted(_possible_ms(divide((rate - limit) * span_s + amount, limit) * 1000) for span_s in spans_s)
    return waits_ms[0], waits_ms[1]


def _possible_ms(wait_ms: float) -> int:
    """The throttle time as the job would decide it, however small the limit."""
    return min(max(0, round_half_up(wait_ms)), MAX_THROTTLE_MS)


def _amounts(asked: Asked) -> dict[QuotaKind, float]:
    amounts = {}
    for kind in (*CLIENT_KINDS, *TOPIC_KINDS):
        mutates = kind.family is Family.MUTATIONS and asked.api in MUTATION_APIS
        if kind.family is Family.REQUEST_TIME:
            amounts[kind] = asked.request_ms / 10  # a point is 10 ms of a thread
        elif mutates or (kind.family is Family.BYTES and asked.api == ("Fetch" if kind.consumer else "Produce")):
            amounts[kind] = asked.size
        elif COUNTED_APIS.get(asked.api) is kind:
            amounts[kind] = 1.0
    return amounts


def _answer(
    found: Resolution, kind: QuotaKind, amount: float, model: LiveModel, settings: QuotaSettings, now_ms: int
) -> CheckResult:
    tags = found.tags
    key = CounterId(kind, found.shadow, tags.user, tags.client_id, tags.topic, tags.partition, tags.tenant)
    with model.lock:
        counter = model.counter(key)
        rate = model.usage.rate(counter, now_ms) if counter else None
        tokens = model.usage.tokens(counter, now_ms) if counter else None
        waits_now_ms = counter.wait_ms(now_ms) if counter else 0
    least_ms, most_ms, refused = 0, 0, False
    if found.limit is not None and kind.family is Family.MUTATIONS:
        if tokens is not None:
            refused = tokens < 0
            least_ms = most_ms = _possible_ms(wait_for_tokens_ms(tokens - (0 if refused else amount), found.limit))
    elif found.limit is not None:
        least_ms, most_ms = rate_wait_ms(rate or 0.0, amount, found.limit, settings.client_window)
    known = counter is not None
    return CheckResult(kind, found, amount, known, rate, tokens, waits_now_ms, least_ms, most_ms, refused)


def _number(text: str, most: float) -> float:
    """A number from 0 to `most` in decimal digits; 0 for anything else."""
    if len(text) > 20 or not text.replace(".", "", 1).isdigit() or not text.isascii():
        return 0.0
    return min(float(text), most)
