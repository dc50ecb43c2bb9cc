"""Filters of the templates: names, addresses, figures and charts of counters, throttle times and answers.

Charts are SVG, drawn by the server; each has a text for readers who can't see it.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from urllib.parse import urlencode

from markupsafe import Markup, escape
from msgspec import UNSET

from sluice.insight.console.check import Answer
from sluice.insight.console.clients import band_of, tenant_of
from sluice.insight.live import POINT_MS, POINTS, CounterId, CounterRow, Second, SeenWait
from sluice.insight.texts import counter_name, entity_text, override_text, quota_amount, tightened_text
from sluice.process.format import NOTHING, amount, duration, moment, percent, printable, short
from sluice.state.contract.records import REFUSED_API, Decision, Verdict
from sluice.state.quotas.kinds import Family
from sluice.state.quotas.tenants import member_text

LONGEST_IN_ADDRESS = 1_000
"""Characters of names in an address; a counter with longer ones is addressed by its digest."""

_SPAN = f"the last {POINTS * POINT_MS // 60_000} minutes"


WIDTH = 640
HEIGHT = 160


def chart(
    points: Sequence[float],
    limit: float | None,
    text: str,
    labels: tuple[str, str],
    ticks: str,
    over: float | None = None,
) -> Markup:
    """A chart of bars under a line at the limit; `labels` name the limit and the top, `ticks` the span of time.

    Bars above `over` are marked.
    """
    top = _top(points, limit) * 1.1
    words = Markup('<text x="4" y="12">{}</text><text x="4" y="{}" class="tick">{}</text>').format(
        labels[1], HEIGHT + 14, ticks
    )
    if limit is not None:
        words += Markup('<text x="{}" y="{:.1f}" class="limit" text-anchor="end">{}</text>').format(
            WIDTH - 4, max(10.0, HEIGHT - limit / top * HEIGHT - 4), labels[0]
        )
    return _svg("chart", WIDTH, HEIGHT + 20, text, _bars(points, limit, over, top, WIDTH, HEIGHT) + words)


def _highest(points: Sequence[float]) -> float:
    """The highest point; 0 without any."""
    return max((point for point in points if not math.isnan(point)), default=0.0)


def _top(points: Sequence[float], limit: float | None) -> float:
    return max(_highest(points), limit or 0.0) or 1.0


def _bars(
    points: Sequence[float], limit: float | None, over: float | None, top: float, width: int, height: int
) -> Markup:
    step = width / max(1, len(points))
    bars = Markup().join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"/>').format(
            index * step, height - tall, step * 0.8, tall, "over" if over is not None and point > over else "bar"
        )
        for index, point in enumerate(points)
        if not math.isnan(point) and (tall := max(1.0, min(point / top, 1.0) * height))
    )
    if limit is None:
        return bars
    y = max(height - limit / top * height, 0.5)
    return bars + Markup('<line x1="0" x2="{}" y1="{:.1f}" y2="{:.1f}" class="limit"/>').format(width, y, y)


def _svg(kind: str, width: int, height: int, text: str, content: Markup) -> Markup:
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        kind, width, height, escape(text), content
    )


def address(key: CounterId) -> str:
    """The address of the page of a counter's client, from any page."""
    if key.name_length > LONGEST_IN_ADDRESS:
        return "client?" + urlencode({"digest": digest_of(key)})
    parts = {"user": key.user, "client_id": key.client_id, "tenant": key.tenant}
    if key.topic is not None:
        parts = {"topic": key.topic, "partition": str(key.partition)}
    return "client?" + urlencode({name: value for name, value in parts.items() if value}, errors="replace")


def digest_of(key: CounterId) -> str:
    """The digest of the tags of a counter whose names are too long for an address."""
    tags = "\0".join((key.user, key.client_id, key.topic or "", str(key.partition), key.tenant))
    return hashlib.sha256(tags.encode("utf-8", "replace")).hexdigest()[:32]


def element_id(key: CounterId) -> str:
    """The id of a counter's element, by which the script finds it again."""
    return "c" + hashlib.sha256(repr(key).encode("utf-8", "replace")).hexdigest()[:16]


def age(ms: float) -> str:
    """The time since an event; an event of the future is new."""
    return duration(max(0, ms))


def throttle_time(ms: int) -> str:
    """A throttle time; a dash for none."""
    return duration(ms) if ms else NOTHING


def remaining(row: CounterRow) -> str:
    """The rest of the limit: a rate, or tokens."""
    if row.key.kind.family is not Family.MUTATIONS:
        return amount(row.key.kind, row.remaining)
    return amount(row.key.kind, row.remaining, per_s=False) + (" tokens" if row.limit else "")


def used(answer: Answer) -> str:
    """The usage that an answer was computed with."""
    if answer.tokens is not None:
        return f"{answer.tokens:.4g} tokens left"
    return amount(answer.kind, answer.rate) if answer.known else NOTHING


def would_wait(answer: Answer) -> str:
    """The throttle time of the request that was asked for, or its bounds."""
    if answer.found.limit is None:
        return "no limit"
    if answer.tokens is None and answer.kind.family is Family.MUTATIONS:
        return "unknown: no decision of its counter"
    most = duration(answer.most_ms)
    if answer.refused:
        return f"refused, {most}"
    return most if answer.least_ms == answer.most_ms else f"{duration(answer.least_ms)} to {most}"


def sentence(decision: Decision) -> str:
    """The meaning of a decision for its client."""
    decided_by, throttle = printable(str(decision.decided_by)), duration(decision.throttle_time_ms)
    if decision.verdict is Verdict.REJECT:
        return f"Refused: the tokens of {decided_by} are spent; they are back in {throttle}."
    if decision.throttled_by:
        longest = max(decision.throttled_by, key=lambda wait: wait.ms)
        if decision.api == REFUSED_API:
            return f"The gateway refused it, by {printable(longest.quota)}."
        return f"The gateway throttled it for {duration(longest.ms)} inline, by {printable(longest.quota)}."
    if decision.throttle_time_ms and decision.throttled_by is not UNSET:
        return (
            f"By {decided_by} it would be throttled for {throttle}; its gateway charges inline and goes by its own"
            " share of the limit, not by this decision."
        )
    if decision.throttle_time_ms:
        return f"Throttled for {throttle}, because its rate is over the limit of {decided_by}."
    return "It was not throttled."


def sparkline(row: CounterRow) -> Markup:
    """The rates of the last minutes beside the other figures of a counter."""
    width, height = 120, 24
    bars = _bars(row.points, row.limit, row.over, _top(row.points, row.limit), width, height)
    return _svg("spark", width, height, f"highest rate each {POINT_MS // 1000} seconds of {_SPAN}", bars)


def rate_chart(row: CounterRow) -> Markup:
    """The rates of the last minutes under the limit."""
    kind = row.key.kind
    span = f"{_SPAN}, {POINT_MS // 1000} s each"
    highest = f"highest {amount(kind, _highest(row.points))}"
    limit = f"limit {amount(kind, row.limit)}"
    text = f"{kind}: {highest} over {span}, {limit}"
    return chart(row.points, row.limit, text, (limit, highest), span, row.over)


def throttling_chart(waits: Sequence[SeenWait], now_ms: int) -> Markup:
    """The longest throttle time that began in each POINT_MS."""
    newest = now_ms // POINT_MS
    points = [math.nan] * POINTS
    for wait in waits:
        index = POINTS - 1 - (newest - wait.timestamp_ms // POINT_MS)
        if 0 <= index < POINTS and not points[index] >= wait.wait_ms / 1000:
            points[index] = wait.wait_ms / 1000
    longest = f"longest {duration(_highest(points) * 1000)}"
    return chart(points, None, f"throttle times over {_SPAN}: {longest}", ("", longest), _SPAN)


def decisions_chart(seconds: Sequence[Second], per_s: float) -> Markup:
    """The decisions of each second."""
    span, counts = _seconds_text(seconds), [float(second.decisions) for second in seconds]
    text = f"decisions per second over {span}; now {per_s:.0f}"
    return chart(counts, None, text, ("", f"highest second {max(counts):.0f}/s"), span)


def lag_chart(seconds: Sequence[Second], lag_ms: int) -> Markup:
    """The greatest age of an event in each second."""
    span, lags = _seconds_text(seconds), [second.lag_ms / 1000 if second.lag_ms else math.nan for second in seconds]
    text = f"age of an event when its decision was read, over {span}; now {duration(lag_ms)}"
    return chart(lags, None, text, ("", duration(_highest(lags) * 1000)), span)


def _seconds_text(seconds: Sequence[Second]) -> str:
    return f"the last {len(seconds) // 60} minutes, second by second"


_FUNCTIONS: tuple[Callable[..., str], ...] = (
    *(address, element_id, age, throttle_time, remaining, used, would_wait, sentence, band_of, tenant_of),
    *(sparkline, rate_chart, throttling_chart, decisions_chart, lag_chart),
    *(counter_name, entity_text, member_text, override_text, quota_amount, tightened_text),
    *(duration, moment, percent, printable, short),
)
FILTERS = {function.__name__: function for function in _FUNCTIONS}
