"""The command `sluice top`: the clients nearest to their limits, live in the terminal."""

import codecs
import math
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins
from rich.cells import cell_len

from sluice.cli.errors import UsageError
from sluice.cli.options import BootstrapServersOption, ConfigOption, job_settings
from sluice.configs.capacity import broker_limits
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import Settings
from sluice.kafka_io.client import OF_COMMANDS
from sluice.process.clock import now_ms
from sluice.process.format import NOTHING, error_line, percent, printable
from sluice.state.quotas.kinds import KINDS_BY_NAME, Family, QuotaKind
from sluice.state.shares.load import NO_LIMITS, BrokerLimits
from sluice.state.troubles import Trouble
from sluice_insight.errors import TopError
from sluice_insight.live import NEAR_LIMIT, OVER, CounterId, CounterRow, CounterState, LiveModel
from sluice_insight.row_marks import RowMark, RowMarks
from sluice_insight.texts import counter_name
from sluice_reading.format import amount, short
from sluice_reading.job_probe import JobProbe
from sluice_reading.output import print_json, print_lines
from sluice_reading.text_tables import MAX_NAME, table_lines, terminal_width
from sluice_reading.texts import unlimited_text
from sluice_reading.times import duration

if TYPE_CHECKING:
    from rich.console import Group

    from sluice.kafka_io.kafka_python import FetchedRecord

SINCE_S = 60
"""Seconds of decisions that are read at the start: those of the means and waits that are shown."""

SNAPSHOT_ROWS = 40

SORTS = ("usage", "wait", "rate", "name")
QUOTAS = (None, *QuotaKind)
"""The filters that a key goes through; None shows all quotas."""

COLUMNS = (
    *("CLIENT", "QUOTA", "USED", "LIMIT", "MEAN", "RATE", "LEFT", "LEVEL"),
    *("WAITED/MIN", "MIN/H", "LAST 3 MINUTES"),
)
_LEAST = ("LEVEL", "LEFT", "LAST 3 MINUTES", "MIN/H", "RATE", "LIMIT", "MEAN")
"""The columns that a narrow terminal has no room for, the first of these first."""

SPARK_POINTS = 18
_SPARKS = "▁▂▃▄▅▆▇█"
_MAX_FILTER = 80
_NO_COUNTER = "no counter with a limit was charged"

_BANDS = ((OVER, "red"), (NEAR_LIMIT, "yellow"), (0.8, "cyan"))
"""Shares of the limit from which on a row has a colour."""

_RATE_S = 10
"""Seconds over which verdicts are counted."""

_TROUBLES_S = 25.0
"""Longest wait of one table for what is wrong; without it the decisions are shown alone."""

MOST_TROUBLES = 4

_WAIT_MS = 100
_READ_PAST_S = 30.0

_KEYS = ("q quit", "s sort", "f quota", "/ filter", "Esc all")


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, and exit.")] = False,
    sort: Annotated[str, typer.Option(help=f"Order: {', '.join(SORTS)}.")] = SORTS[0],
    quota: Annotated[str | None, typer.Option("--quota", help="Show this quota alone.")] = None,
    text: Annotated[str, typer.Option("--filter", help="Show names with this text alone.")] = "",
    since_s: Annotated[int, typer.Option("--since", help="Seconds of decisions to begin with.", min=1)] = SINCE_S,
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds between two tables.", min=0.1)] = 1.0,
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
) -> None:
    """Show the clients nearest to their limits, from the decisions: usage, limit, rate, rest, level and wait.

    Live on a terminal, until q; elsewhere, and with --once or --json, one table.
    """
    view = _view(sort, quota, text)
    settings = job_settings(config, bootstrap_servers)
    is_live = not once and not json_output and sys.stdin.isatty() and sys.stdout.isatty()
    with closing(DecisionsReader(settings, since_s)) as reader, reader.now.service(now_ms):
        reader.read_past()
        if not is_live:
            reader.now.first.wait(_TROUBLES_S)
        if is_live:
            _run_live(reader, view, interval_s)
        elif json_output:
            print_json(_snapshot(reader, view), indent=True)
        else:
            print_lines(snapshot_lines(reader, view, terminal_width()))


@dataclass(frozen=True)
class View:
    """The user's choice. `typed` is the filter while it is being typed, None otherwise."""

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


def rows_of(model: LiveModel, view: View, now_ms: int, most: int, *, is_stale: bool = False) -> list[CounterRow]:
    """The first `most` counters with a limit that the view chooses, in its order; of old decisions without figures."""
    text = (view.text if view.typed is None else view.typed).casefold()
    with model.lock:
        chosen = [counter for counter in model.counters() if _is_chosen(counter, view.quota, text)]
        ordered = nsmallest(most, chosen, key=_ORDERS[view.sort](model, now_ms))
        rows = [model.row(counter, now_ms) for counter in ordered]
    return [row.of_then() for row in rows] if is_stale else rows


def _is_chosen(counter: CounterState, quota: QuotaKind | None, text: str) -> bool:
    if counter.limit is None or (quota is not None and counter.key.kind is not quota):
        return False
    return not text or text in " | ".join(_names(counter.key)).casefold()


_Order = Callable[[LiveModel, int], Callable[[CounterState], tuple[Any, ...]]]

_ORDERS: Mapping[str, _Order] = {
    "usage": lambda model, now_ms: (
        lambda counter: (
            -(model.usage.used(counter, now_ms) or 0.0),
            -(model.usage.share(counter, now_ms) or 0.0),
            counter.key,
        )
    ),
    "wait": lambda _, now_ms: lambda counter: (-counter.waited_ms(now_ms), counter.key),
    "rate": lambda model, now_ms: lambda counter: (-(model.usage.rate(counter, now_ms) or 0.0), counter.key),
    "name": lambda _, __: lambda counter: (*_names(counter.key), counter.key),
}


def _names(key: CounterId) -> tuple[str, str, str]:
    return key.user, key.client_id, key.topic or key.tenant


def json_row(row: CounterRow) -> dict[str, object]:
    """The row as `--json` prints it."""
    return {
        "entity": row.key.tags(),
        "quota": row.key.kind,
        "mode": "shadow" if row.key.shadow else "enforce",
        "matched": row.matched,
        "limit": row.limit,
        "rate": row.rate,
        "mean": row.mean,
        "usage": row.used,
        "remaining": row.remaining,
        "wait_ms": row.wait_ms,
        "waited_ms": row.waited_ms,
        "minutes_throttled": row.hour_minutes,
        "points": row.points,
    }


def verdicts_per_s(model: LiveModel, now_ms: int, since_ms: int) -> dict[str, float]:
    """Decisions a second by verdict, over the last seconds, at most those since `since_ms`."""
    seconds = max(1, min(_RATE_S, (now_ms - since_ms) // 1000))
    counted: dict[str, float] = {}
    for second in model.seconds(now_ms)[-seconds:]:
        for verdict, count in second.verdicts.items():
            counted[verdict] = counted.get(verdict, 0.0) + count / seconds
    return counted


def row_lines(rows: Sequence[CounterRow], width: int | None = None, marks: RowMarks | None = None) -> Iterator[str]:
    """The rows as a table, with as many columns as a terminal of this width has room for."""
    return table_lines(COLUMNS, (_cells(row, marks) for row in rows), width, _LEAST, COLUMNS[:1])


def _cells(row: CounterRow, marks: RowMarks | None) -> tuple[str, ...]:
    """The row as texts, one for each of COLUMNS. A hold stands in place of the waits, which it doesn't cause."""
    kind, mark = row.key.kind, RowMark() if marks is None else marks.of(row.key, row.limit)
    return (
        short(counter_name(row.key), MAX_NAME),
        kind.value + (" (shadow)" if row.key.shadow else ""),
        percent(row.used),
        amount(kind, row.limit) + (f" ({mark.limit})" if mark.limit else ""),
        amount(kind, row.mean),
        amount(kind, row.rate),
        amount(kind, row.remaining, per_s=kind.family is not Family.MUTATIONS),
        short(row.matched, MAX_NAME),
        mark.held or (duration(row.waited_ms) if row.waited_ms else NOTHING),
        str(row.hour_minutes),
        "".join(map(_block, row.points, row.limits, row.over()))[-SPARK_POINTS:],
    )


def _marks(reader: "DecisionsReader", at_ms: int) -> RowMarks:
    return RowMarks.of_limits(reader.now.limits, reader.model.gateways.heard(at_ms), at_ms)


def _block(point: float, limit: float, is_over: bool) -> str:
    """A mean rate as a block: a full one is over the limit, the last but one at it. Empty where nothing was charged.

    >>> "".join(map(_block, [math.nan, 0.0, 50.0, 100.0, 120.0], [100.0] * 5, [False, False, False, False, True]))
    ' ▁▄▇█'
    """
    share = min(point / limit, 1.0) if point > 0 and limit > 0 else 0.0
    return " " if math.isnan(point) else _SPARKS[-1 if is_over else round(share * (len(_SPARKS) - 2))]


class DecisionsReader:
    """A reader of the decisions topic into a live model."""

    def __init__(self, settings: Settings, since_s: int) -> None:
        """Begin `since_s` seconds ago. Raises KafkaUnavailableError, and TopError if there is no topic."""
        from sluice.kafka_io.topic_reader import TopicReader
        from sluice.streaming.checkpoint.folder import Checkpoint, is_locked
        from sluice_insight.troubles_now import TroublesNow  # Kafka's client is slow to import

        self.model = LiveModel(settings.quota, limits=_capacities(settings))
        self.last_read_ms = 0
        self.since_ms = now_ms() - since_s * 1000
        topic = settings.topics.decisions
        kafka = settings.kafka | OF_COMMANDS
        probe = JobProbe(f"http://{settings.health.place}" if settings.health.port else None)
        self.now = TroublesNow(
            kafka, settings.topics, probe, lambda: is_locked(Checkpoint(settings.enforce.checkpoint))
        )
        self._topic = TopicReader(kafka, topic, self.since_ms, fenced=True, on_restart=self.model.forget)
        with _readable():
            if not self._topic.partitions():
                raise TopError(f"there is no topic {topic}; check topics.decisions, and that the job has run")

    @property
    def decided(self) -> int:
        """Decisions of requests that were read; heartbeats of gateways are none."""
        return sum(self.model.total.values())

    def read_past(self) -> None:
        """Read the decisions up to the present. Raises TopError."""
        until_s = time.monotonic() + _READ_PAST_S
        with _readable():
            for _, record in self._topic.read_to_end():
                self._apply([record])
                if time.monotonic() > until_s:
                    read = f"{self.decided} decisions were read in {_READ_PAST_S:g} s"
                    raise TopError(f"{read}, and more are left; give --since fewer seconds")

    def read_new(self) -> None:
        """Read the decisions there are, or wait for one a moment. Raises TopError."""
        with _readable():
            self._apply([record for _, record in self._topic.read(_WAIT_MS)])

    def _apply(self, records: "Sequence[FetchedRecord]") -> None:
        if records:
            self.last_read_ms = now_ms()
            self.model.on_records((record.value for record in records), self.last_read_ms)

    def close(self) -> None:
        """End the connection."""
        self._topic.close()


def _capacities(settings: Settings) -> BrokerLimits:
    try:
        return broker_limits(settings.brokers)
    except InvalidSettingsError:  # a file that can't be read, which the doctor names
        return NO_LIMITS


@contextmanager
def _readable() -> Iterator[None]:
    """Raise TopError for an error of Kafka's client in this block."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        raise TopError(
            f"the decisions can't be read ({error_line(error)}); see with `sluice doctor` that the brokers answer, and"
            " check that this user may read the topic"
        ) from error


def _view(sort: str, quota: str | None, text: str) -> View:
    """The view that the options ask for. Raises UsageError."""
    if sort not in SORTS:
        raise UsageError(f"--sort is {sort!r}; expected one of {', '.join(SORTS)}")
    if quota is not None and quota not in KINDS_BY_NAME:
        raise UsageError(f"--quota is {quota!r}; expected one of {', '.join(KINDS_BY_NAME)}")
    return View(sort, KINDS_BY_NAME.get(quota or ""), text)


def _snapshot(reader: DecisionsReader, view: View) -> dict[str, object]:
    at_ms, now = now_ms(), reader.now
    is_stale, marks = now.is_stale(at_ms), _marks(reader, at_ms)
    rows = rows_of(reader.model, view, at_ms, most=reader.model.known, is_stale=is_stale)
    return {
        "at_ms": at_ms,
        "troubles": [to_builtins(each) for each in now.troubles(reader.model, at_ms)],
        "troubles_known": now.is_known,
        "stale": is_stale,
        "since_ms": reader.since_ms,
        "decisions_read": reader.decided,
        "verdicts": dict(sorted(reader.model.total.items())),
        "counters": [json_row(row) | {"held": marks.of(row.key, row.limit).held} for row in rows],
        "unlimited": [to_builtins(each) for each in reader.model.gateways.unlimited(at_ms)],
    }


def snapshot_lines(reader: DecisionsReader, view: View, width: int | None) -> Iterator[str]:
    """One table, what is wrong above it."""
    at_ms, model = now_ms(), reader.model
    yield from (text for text, _ in trouble_lines(reader.now.troubles(model, at_ms)))
    if not reader.now.is_known:
        yield f"not known: what else is wrong; the brokers did not tell in {_TROUBLES_S:.0f} s, see sluice doctor"
    span_s = max(1.0, (at_ms - reader.since_ms) / 1000)
    verdicts = "  ".join(f"{count / span_s:.1f}/s {verdict}" for verdict, count in sorted(model.total.items()))
    yield f"{reader.decided} decisions in {span_s:.0f} s  {printable(verdicts)}  {model.known} counters"
    rows = rows_of(model, view, at_ms, SNAPSHOT_ROWS, is_stale=reader.now.is_stale(at_ms))
    yield from row_lines(rows, width, _marks(reader, at_ms)) if rows else [_NO_COUNTER]
    yield from _unlimited_lines(model, at_ms, width)


def trouble_lines(troubles: Sequence[Trouble]) -> list[tuple[str, str]]:
    """A line and its colour for each of the worst troubles, and the number of the others.

    >>> trouble_lines([Trouble("hold", "warn", "x is stopped"), Trouble("no_leader", "fail", "no leader")])
    [('warn  x is stopped', 'yellow'), ('FAIL  no leader', 'red')]
    """
    marks = {"fail": ("FAIL", "red"), "warn": ("warn", "yellow")}
    lines = [(f"{marks[each.severity][0]}  {printable(each.line)}", marks[each.severity][1]) for each in troubles]
    more = len(lines) - MOST_TROUBLES
    return [*lines[:MOST_TROUBLES], *([(f"{more} more: sluice doctor", "yellow")] if more > 0 else [])]


def _unlimited_lines(model: LiveModel, at_ms: int, width: int | None) -> Sequence[str]:
    """A line with the heaviest clients without a limit, as many as there is room for; none if there are none."""
    names = [printable(unlimited_text(each)) for each in model.gateways.unlimited(at_ms)]
    return [fitting([f"without a limit: {names[0]}", *names[1:]], width or 10 * MAX_NAME)] if names else []


def _run_live(reader: DecisionsReader, view: View, interval_s: float) -> None:
    """Draw until the user leaves, or SIGTERM; the terminal is as before then."""
    from rich.console import Console, ConsoleDimensions
    from rich.live import Live

    console = Console(highlight=False)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        due_s = 0.0
        while True:
            reader.read_new()
            for key in pressed():
                chosen = after_key(view, key)
                if chosen is None:
                    return
                view, due_s = chosen, 0.0
            size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))
            if time.monotonic() >= due_s or console.size != size:
                console.size, due_s = (
                    size,
                    time.monotonic() + interval_s,
                )  # rich's own ignores a change if COLUMNS is set
                live.update(screen(reader, view, max(0, size.height - 4), size.width), refresh=True)


def screen(reader: DecisionsReader, view: View, most: int, width: int) -> "Group":
    """One screen: state, view and keys, and a table of the first `most` rows, as far as each has room."""
    from rich.console import Group
    from rich.text import Text

    at_ms, model = now_ms(), reader.model
    verdicts = verdicts_per_s(model, at_ms, reader.since_ms)
    rates = [f"{rate:.0f}/s {printable(verdict)}" for verdict, rate in sorted(verdicts.items())] or ["no decisions"]
    age = f"read {(at_ms - reader.last_read_ms) / 1000:.0f} s ago" if reader.last_read_ms else "none read yet"
    text = view.text if view.typed is None else f"{view.typed}_"
    chosen = [
        f"by {view.sort}",
        *([view.quota.value] if view.quota else []),
        *([f"filter {printable(text)}"] if text else []),
    ]
    unlimited, troubles = _unlimited_lines(model, at_ms, width), trouble_lines(reader.now.troubles(model, at_ms))
    left = max(0, most - len(unlimited) - len(troubles))
    rows = rows_of(model, view, at_ms, left, is_stale=reader.now.is_stale(at_ms))
    head = [
        (fitting(["sluice top", *rates, f"{model.known} counters", age], width), ""),
        (fitting([*chosen, *_KEYS], width), ""),
        *troubles,
        ("", ""),
    ]
    table = (
        [*zip(row_lines(rows, width, _marks(reader, at_ms)), ["", *map(colour, rows)], strict=True)]
        if rows
        else [(_NO_COUNTER, "")]
    )
    lines = [*head, *table, *((line, "") for line in unlimited)]
    return Group(*(Text(line, style, no_wrap=True, overflow="ellipsis") for line, style in lines))


def colour(row: CounterRow) -> str:
    """The colour of a row near its limit; rich leaves it out where NO_COLOR is set."""
    return next((name for share, name in _BANDS if (row.used or 0.0) >= share), "")


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """The terminal with keys one by one and without echo, and a call for the keys pressed since the last one.

    SIGTERM and Ctrl-C end the block; the terminal is as before then.
    """
    descriptor, decoder = sys.stdin.fileno(), codecs.getincrementaldecoder("utf-8")("replace")

    def pressed() -> str:
        if not select.select([sys.stdin], [], [], 0)[0]:
            return ""
        typed = os.read(descriptor, 1024)
        if not typed:
            return "q"  # the terminal is gone
        text = decoder.decode(typed)
        return "" if len(text) > 1 and text.startswith("\x1b") else text  # an arrow, for example, sends several signs

    before = termios.tcgetattr(descriptor)
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        tty.setcbreak(descriptor)
        yield pressed
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, previous)


def fitting(parts: Iterable[str], width: int) -> str:
    """The first parts that a line of this width has room for, the very first in any case.

    >>> fitting(["sluice top", "25/s ALLOW", "397 counters"], 30)
    'sluice top  25/s ALLOW'
    """
    first, *others = parts
    for part in others:
        if cell_len(f"{first}  {part}") > width:
            break
        first = f"{first}  {part}"
    return first
