"""Filters of the templates: names, addresses, figures and charts of counters, throttle times and answers.

Charts are SVG, drawn by the server; each has a text for readers who can't see it.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup
from msgspec import UNSET

from sluice.process.format import NOTHING, moment, percent, printable
from sluice.process.texts import override_text
from sluice.state.contract.records import REFUSED_API, Decision, Verdict
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import Family
from sluice.state.quotas.tenants import member_text
from sluice_insight.console.check import CheckResult
from sluice_insight.console.clients import band_of, tenant_of
from sluice_insight.live import POINT_MS, POINTS, CounterId, CounterRow, Second, SeenWait
from sluice_insight.texts import counter_name, quota_amount, tightened_text
from sluice_reading.format import amount, short
from sluice_reading.quotas_admin import QuotaChange
from sluice_reading.texts import entity_text, unlimited_text
from sluice_reading.times import duration, to_ms

LONGEST_IN_ADDRESS = 1_000
"""Characters of names in an address; a counter with longer ones is addressed by its digest."""

_MINUTES = f"{POINTS * POINT_MS // 60_000} minutes"
_SPAN = f"the last {_MINUTES}"


_POINTS_MS = POINTS * POINT_MS
_MOST_MARKS = 6
_HEAD, _BODY = 34, 136
"""Pixels of a chart above its bars, where the marks of changes are named, and of its bars."""


class Bars(NamedTuple):
    """Bars of a chart, the oldest first, NaN for none; each with its limit, NaN for none, and whether it is marked."""

    points: Sequence[float]
    limits: Sequence[float] = ()
    over: Sequence[bool] = ()
    kind: str = "bar"
    full: float = 0.0
    """Height that the chart has room for in any case."""

    @property
    def top(self) -> float:
        """The greatest of all."""
        return max(self.full, *(each for each in (*self.points, *self.limits) if not math.isnan(each)), 0.0) or 1.0


def chart(bars: Bars, title: str, legend: str, text: str, span: str, marks: Sequence[tuple[float, str]] = ()) -> Markup:
    """A chart over the time until now; `marks` are places from 0 to 1 with their names."""
    named = Markup().join(_mark(place, name, index) for index, (place, name) in enumerate(marks))
    drawn = Markup(
        '<svg y="{}" width="100%" height="{}"><line class="grid" x2="100%" y1="50%" y2="50%"/>'
        '<line class="grid" x2="100%" y1="100%" y2="100%"/>{}</svg>{}'
    ).format(_HEAD, _BODY, _plot(bars, bars.top * 1.05), named)
    return Markup(
        "<figure><figcaption><strong>{}</strong><span>{}</span></figcaption>"
        '{}<div class="axis"><span>{} ago</span><span>now</span></div></figure>'
    ).format(title, legend, _svg("chart", text, drawn), span)


def _plot(bars: Bars, top: float) -> Markup:
    """The bars, and the limit as a line in steps, in percent of the place that they get."""
    count = len(bars.points)
    step = 100 / max(1, count)
    over = bars.over or [False] * count
    drawn = [
        Markup('<rect x="{:.2f}%" y="{:.2f}%" width="{:.2f}%" height="{:.2f}%" class="{}"/>').format(
            index * step, 100 - tall, step * 0.82, tall, "over" if is_over else bars.kind
        )
        for index, (point, is_over) in enumerate(zip(bars.points, over, strict=True))
        if not math.isnan(point) and (tall := max(0.6, point / top * 100))
    ]
    line = Markup('<line class="limit" x1="{:.2f}%" x2="{:.2f}%" y1="{:.2f}%" y2="{:.2f}%"/>')
    begin, before = 0.0, math.nan
    for limit, run in groupby(100 - limit / top * 100 for limit in bars.limits):
        end = begin + step * sum(1 for _ in run)
        if not math.isnan(limit):
            y = min(max(limit, 0.6), 99.4)
            drawn += [] if math.isnan(before) else [line.format(begin, begin, before, y)]
            drawn.append(line.format(begin, end, y, y))
            before = y
        begin = end
    return Markup().join(drawn)


def _mark(place: float, name: str, index: int) -> Markup:
    """A mark of a change: a line at its time, and who changed what."""
    side, x = ("end", place * 100 - 0.4) if place > 0.5 else ("start", place * 100 + 0.4)
    return Markup(
        '<line class="mark" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%"/>'
        '<text x="{1:.2f}%" y="{2}" text-anchor="{3}">{4}</text>'
    ).format(place * 100, x, 11 + 15 * (index % 2), side, name)


def _svg(kind: str, text: str, content: Markup) -> Markup:
    return Markup('<svg class="{}" role="img" aria-label="{}">{}</svg>').format(kind, text, content)


def gauge(share: float | None) -> Markup:
    """The share of a limit as a bar below its figure."""
    if share is None:
        return Markup()
    return Markup('<svg class="gauge" aria-hidden="true"><rect width="{:.0f}%" height="100%"/></svg>').format(
        min(share, 1.0) * 100
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


def throttle_time(ms: int | None) -> str:
    """A throttle time; a dash for none, or an unknown one."""
    return duration(ms) if ms else NOTHING


def remaining(row: CounterRow) -> str:
    """The rest of the limit: a rate, or tokens."""
    if row.key.kind.family is not Family.MUTATIONS:
        return amount(row.key.kind, row.remaining)
    return amount(row.key.kind, row.remaining, per_s=False) + (" tokens" if row.limit else "")


def used(answer: CheckResult) -> str:
    """The usage that an answer was computed with."""
    if answer.tokens is not None:
        return f"{answer.tokens:.4g} tokens left"
    return amount(answer.kind, answer.rate) if answer.known else NOTHING


def would_wait(answer: CheckResult) -> str:
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
    bars = Bars(row.points, row.limits, row.over())
    return _svg("spark", f"mean rate of each {POINT_MS // 1000} seconds of {_SPAN}", _plot(bars, bars.top))


def rate_chart(row: CounterRow, changes: Iterable[QuotaChange], now_ms: int) -> Markup:
    """The mean rates of the last minutes under the limit of their time, with marks of who changed it."""
    kind, bars = row.key.kind, Bars(row.points, row.limits, row.over())
    highest = amount(kind, max((point for point in row.points if not math.isnan(point)), default=0.0))
    limit = f"limit {amount(kind, row.limit)}"
    text = f"{kind}: highest mean of {POINT_MS // 1000} s {highest} over {_SPAN}, {limit}"
    marks = list(_marks(row, changes, now_ms))
    text += "".join(f"; {name}" for _, name in marks)
    return chart(bars, "Mean rate of each 10 s", f"highest {highest}, {limit}", text, _MINUTES, marks)


def _marks(row: CounterRow, changes: Iterable[QuotaChange], now_ms: int) -> Iterator[tuple[float, str]]:
    """The last changes of quotas of the row's kind: their places on its chart, and what each was."""
    kind = row.key.kind
    begin_ms = (now_ms // POINT_MS + 1) * POINT_MS - _POINTS_MS
    of_kind = (each for each in changes if each.kind is kind or getattr(each.kind, "quota", None) is kind)
    for change in islice(of_kind, _MOST_MARKS):
        at_ms = to_ms(change.changed_at)
        if begin_ms < at_ms <= now_ms:
            set_to = f"set {quota_amount(change.kind, change.new.value)}" if change.new else "removed it"
            yield (at_ms - begin_ms) / _POINTS_MS, f"{change.changed_at:%H:%M} {short(change.changed_by, 20)} {set_to}"


def throttling_chart(row: CounterRow) -> Markup:
    """The throttled part of each POINT_MS, by the time: not by the waits that are kept."""
    points = [waited_ms / 1000 if waited_ms else math.nan for waited_ms in row.waited_points]
    waited = f"{duration(sum(row.waited_points))} in all"
    text = f"throttled for {waited} of {_SPAN}"
    return chart(Bars(points, kind="wait", full=POINT_MS / 1000), "Throttled, of each 10 s", waited, text, _MINUTES)


def decisions_chart(seconds: Sequence[Second], per_s: float | None) -> Markup:
    """The decisions of each second; None is an unknown rate of now."""
    span, counts = _seconds_text(seconds), [float(second.decisions) for second in seconds]
    text = f"decisions per second over the last {span}; now {'unknown' if per_s is None else f'{per_s:.0f}'}"
    return chart(Bars(counts), "Decisions of each second", f"highest {max(counts):.0f}/s", text, span)


def lag_chart(seconds: Sequence[Second], lag_ms: int | None) -> Markup:
    """The greatest age of an event in each second."""
    span, lags = _seconds_text(seconds), [second.lag_ms / 1000 if second.lag_ms else math.nan for second in seconds]
    now = "unknown" if lag_ms is None else duration(lag_ms)
    text = f"age of an event when its decision was read, over the last {span}; now {now}"
    highest = f"highest {duration(max(second.lag_ms for second in seconds))}"
    return chart(Bars(lags), "From event to decision", highest, text, span)


def _seconds_text(seconds: Sequence[Second]) -> str:
    return f"{len(seconds) // 60} minutes"


def client_name(wait: SeenWait) -> str:
    """The client that waited, whosever limit it was; the counter where the event names no client."""
    return counter_name(Tags(wait.user, wait.client_id) if wait.user or wait.client_id else wait.key)


def client_address(wait: SeenWait) -> str:
    """The address of its page."""
    if not (wait.user or wait.client_id):
        return address(wait.key)
    return address(CounterId(wait.key.kind, False, wait.user, wait.client_id, None, -1))


_FUNCTIONS: tuple[Callable[..., str], ...] = (
    *(address, element_id, age, throttle_time, remaining, used, would_wait, sentence, band_of, tenant_of),
    *(client_name, client_address, gauge, sparkline, rate_chart, throttling_chart, decisions_chart, lag_chart),
    *(counter_name, entity_text, member_text, override_text, quota_amount, tightened_text, unlimited_text),
    *(duration, moment, percent, printable, short),
)
FILTERS = {function.__name__: function for function in _FUNCTIONS}
