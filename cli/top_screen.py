"""What `sluice top` shows, as lines of text: which counters, in which order, and what keys do."""

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any, NamedTuple

from sluice.insight.format import printable
from sluice.insight.live import CounterState, LiveModel
from sluice.state.quotas.kinds import Family, QuotaKind

SORTS = ("usage", "wait", "rate", "name")
QUOTAS = (None, *QuotaKind)
"""The filters that a key goes through; None shows all quotas."""

MAX_NAME_CELLS = 40
SPARK_POINTS = 18
_SPARKS = "▁▂▃▄▅▆▇█"
_MAX_FILTER = 80

_BANDS = ((1.0, "31"), (0.9, "33"), (0.8, "36"))
"""Shares of the limit from which on a row has a colour: red, yellow, cyan."""

_SECONDS = 10
"""Verdicts are counted over so many seconds."""


class Row(NamedTuple):
    """One counter. `remaining` is in tokens for mutations, else in the unit of the limit, per second."""

    entity: dict[str, str | int]
    quota: QuotaKind
    mode: str
    matched: str
    limit: float | None
    rate: float | None
    usage: float | None
    remaining: float | None
    wait_ms: int
    minutes_throttled: int
    points: list[float]

    @property
    def name(self) -> str:
        """The entity in one text, as it was given."""
        return " | ".join(f"{part}" for part in self.entity.values())

    def to_mapping(self) -> dict[str, Any]:
        """The row for JSON: without a point where nothing was decided."""
        points = [None if math.isnan(point) else point for point in self.points]
        return self._asdict() | {"points": points}


@dataclass(frozen=True)
class View:
    """What the user has chosen. `typed` is the filter while it is being typed, None otherwise."""

    sort: str = "usage"
    quota: QuotaKind | None = None
    text: str = ""
    typed: str | None = None


def after_key(view: View, key: str) -> View | None:
    """The view after a key; None when the user leaves.

    >>> after_key(View(), "s").sort, after_key(View(), "f").quota.value, after_key(View(), "q")
    ('wait', 'producer_byte_rate', None)
    >>> after_key(View(typed="ali"), "q").typed
    'aliq'
    """
    if view.typed is not None:
        return _after_typing(view, view.typed, key)
    if key in ("q", "\x03", "\x04"):
        return None
    if key == "s":
        return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
    if key == "f":
        return replace(view, quota=QUOTAS[(QUOTAS.index(view.quota) + 1) % len(QUOTAS)])
    if key == "/":
        return replace(view, typed="")
    if key == "\x1b":
        return replace(view, text="", quota=None)
    return view


def _after_typing(view: View, typed: str, key: str) -> View:
    if key in ("\n", "\r"):
        return replace(view, text=typed, typed=None)
    if key in ("\x1b", "\x03"):
        return replace(view, typed=None)
    if key in ("\x7f", "\x08"):
        return replace(view, typed=typed[:-1])
    return replace(view, typed=(typed + key)[:_MAX_FILTER]) if key.isprintable() else view


def rows_of(model: LiveModel, view: View, now_ms: int, most: int) -> list[Row]:
    """The first `most` counters with a limit that the view chooses, in its order."""
    text = (view.text if view.typed is None else view.typed).casefold()
    with model.lock:
        chosen = [counter for counter in model.counters() if _is_chosen(counter, view.quota, text)]
        ordered = nsmallest(most, chosen, key=_ORDERS[view.sort](model, now_ms))
        return [_row(model, counter, now_ms) for counter in ordered]


def _is_chosen(counter: CounterState, quota: QuotaKind | None, text: str) -> bool:
    if counter.limit is None or (quota is not None and counter.key.kind is not quota):
        return False
    key = counter.key
    return not text or text in f"{key.user} | {key.client_id} | {key.topic or ''}".casefold()


_Order = Callable[[LiveModel, int], Callable[[CounterState], tuple[Any, ...]]]

_ORDERS: Mapping[str, _Order] = {
    "usage": lambda model, now_ms: lambda counter: (-(_used(model, counter, now_ms) or 0.0), counter.key),
    "wait": lambda _, now_ms: lambda counter: (-counter.wait_ms(now_ms), counter.key),
    "rate": lambda model, now_ms: lambda counter: (-(model.usage.rate(counter, now_ms) or 0.0), counter.key),
    "name": lambda _, __: lambda counter: (counter.key.user, counter.key.client_id, counter.key),
}


def _used(model: LiveModel, counter: CounterState, now_ms: int) -> float | None:
    """The share of the limit in use; a client that waits has used it up, whatever is left of its rate."""
    share = model.usage.share(counter, now_ms)
    return max(share or 0.0, 1.0) if counter.wait_ms(now_ms) and not counter.key.shadow else share


def _row(model: LiveModel, counter: CounterState, now_ms: int) -> Row:
    key = counter.key
    names: dict[str, str | int] = {"user": key.user, "client_id": key.client_id, "topic": key.topic or ""}
    entity = {part: name for part, name in names.items() if name != ""}
    return Row(
        entity | ({"partition": key.partition} if key.topic is not None else {}),
        key.kind,
        "shadow" if key.shadow else "enforce",
        counter.matched,
        counter.limit,
        model.usage.rate(counter, now_ms),
        _used(model, counter, now_ms),
        model.usage.remaining(counter, now_ms),
        counter.wait_ms(now_ms),
        counter.throttled_minutes(now_ms),
        counter.points(now_ms),
    )


def verdicts_per_s(model: LiveModel, now_ms: int, since_ms: int) -> dict[str, float]:
    """Decisions a second by verdict, over the last seconds, at most those since `since_ms`."""
    seconds = max(1, min(_SECONDS, (now_ms - since_ms) // 1000))
    counted: dict[str, float] = {}
    for second in model.seconds(now_ms)[-seconds:]:
        for verdict, count in second.verdicts.items():
            counted[verdict] = counted.get(verdict, 0.0) + count / seconds
    return counted


COLUMNS = ("CLIENT", "QUOTA", "USED", "LIMIT", "RATE", "LEFT", "LEVEL", "WAIT", "MIN/H", "LAST 3 MINUTES")


def table_lines(rows: Sequence[Row], width: int | None = None, *, colour: bool = False) -> Iterator[str]:
    """The rows as a table of at most `width` cells; None stands for any."""
    cells = [_cells(row) for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(COLUMNS, *cells, strict=True)]
    yield cut(_joined(COLUMNS, widths), width)
    for row, texts in zip(rows, cells, strict=True):
        line = cut(_joined(texts, widths), width)
        code = next((code for share, code in _BANDS if (row.usage or 0.0) >= share), None) if colour else None
        yield f"\x1b[{code}m{line}\x1b[0m" if code else line


def _joined(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Numbers to the right."""
    padded = []
    for number, (text, width) in enumerate(zip(texts, widths, strict=True)):
        space = " " * (width - cell_width(text))
        padded.append(space + text if number in (2, 3, 4, 5, 7, 8) else text + space)
    return "  ".join(padded).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    family = row.quota.family
    return (
        cut(printable(row.name[:200]) or "-", MAX_NAME_CELLS),
        row.quota.value + (" (shadow)" if row.mode == "shadow" else ""),
        "-" if row.usage is None else f"{min(row.usage, 99.99):.0%}",
        amount_text(row.limit, family),
        amount_text(row.rate, family),
        amount_text(row.remaining, family),
        printable(row.matched[:40]),
        wait_text(row.wait_ms),
        str(row.minutes_throttled),
        sparkline(row.points[-SPARK_POINTS:], row.limit),
    )


def amount_text(amount: float | None, family: Family) -> str:
    """An amount in few digits, in the unit of its quota.

    >>> [amount_text(amount, Family.BYTES) for amount in (None, 512.0, 1_048_576.0, 2.5e9)]
    ['-', '512 B', '1.05 MB', '2.50 GB']
    >>> amount_text(12.345, Family.REQUEST_TIME), amount_text(-60.0, Family.MUTATIONS)
    ('12.3 %', '-60.0')
    """
    if amount is None:
        return "-"
    if family is Family.BYTES:
        for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
            if abs(amount) >= 1000**power:
                return f"{min(amount, 1e18) / 1000**power:.2f} {unit}"
        return f"{amount:.0f} B"
    text = f"{amount:.1f}" if abs(amount) < 1e6 else f"{amount:.1e}"
    return f"{text} %" if family is Family.REQUEST_TIME else text


def wait_text(wait_ms: int) -> str:
    """What is left of a wait.

    >>> wait_text(0), wait_text(1499), wait_text(754_000)
    ('-', '1.5 s', '12:34')
    """
    if wait_ms >= 60_000:
        return f"{wait_ms // 60_000}:{wait_ms // 1000 % 60:02d}"
    return f"{wait_ms / 1000:.1f} s" if wait_ms else "-"


def sparkline(points: Sequence[float], limit: float | None) -> str:
    """Rates as blocks; a full one is the limit, or more. Nothing was decided where there is none.

    >>> sparkline([math.nan, 0.0, 50.0, 100.0, 200.0], 100.0)
    ' ▁▅██'
    """
    blocks = []
    for point in points:
        share = 0.0 if limit is None or not point > 0 else min(point / limit, 1.0)
        blocks.append(" " if math.isnan(point) else _SPARKS[round(share * (len(_SPARKS) - 1))])
    return "".join(blocks)


def cell_width(text: str) -> int:
    """How many cells of a terminal the text takes.

    >>> cell_width("abc"), cell_width("日本"), cell_width("e\u0301")
    (3, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(_sign_width(sign) for sign in text)


def _sign_width(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def cut(text: str, width: int | None) -> str:
    """The text in at most so many cells.

    >>> cut("alice", 5), cut("alice", 4), cut("日本語", 5)
    ('alice', 'ali…', '日本…')
    """
    if width is None or cell_width(text) <= width:
        return text
    kept, used = [], 1
    for sign in text:
        used += _sign_width(sign)
        if used > width:
            break
        kept.append(sign)
    return "".join(kept) + "…"
