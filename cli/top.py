"""The command `sluice top`: the clients nearest to their limits, live in the terminal."""

import codecs
import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.job_settings import job_settings
from sluice.cli.options import BootstrapServersOption, ConfigOption, UsageError
from sluice.cli.top_screen import SORTS, View, after_key, cut, rows_of, table_lines, verdicts_per_s
from sluice.configs.settings import Settings, with_bootstrap_servers
from sluice.insight.format import printable
from sluice.insight.live import LiveModel
from sluice.kafka_io.client import connect, error_line
from sluice.kafka_io.clock import now_ms
from sluice.state.decisions.epochs import Fence
from sluice.state.errors import SluiceError
from sluice.state.quotas.kinds import KINDS_BY_NAME

if TYPE_CHECKING:
    from kafka import TopicPartition

SINCE_S = 15
"""How far back decisions are read at the start: no rate lasts longer than its windows, 11 s."""

MOST_READ = 5_000
"""Most decisions that are read at the start, unless --since says how far back: a look is to be quick at any rate."""

SNAPSHOT_ROWS = 40

_POLL_MS = 100
_OFFSETS_TIMEOUT_MS = 10_000

_ALTERNATE_SCREEN = "\x1b[?1049h\x1b[?25l"
_NORMAL_SCREEN = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"

_KEYS = "q quit  s sort  f quota  / filter  Esc all"


class TopError(SluiceError):
    """The decisions can't be read."""


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, and exit.")] = False,
    sort: Annotated[str, typer.Option(help=f"Order: {', '.join(SORTS)}.")] = SORTS[0],
    quota: Annotated[str | None, typer.Option("--quota", help="Show this quota alone.")] = None,
    text: Annotated[str, typer.Option("--filter", help="Show names with this text alone.")] = "",
    since_s: Annotated[
        int | None,
        typer.Option(
            "--since",
            help=f"Seconds of decisions to begin with; by default {SINCE_S}, and at most {MOST_READ} decisions.",
            show_default=False,
            min=1,
        ),
    ] = None,
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds between two looks.", min=0.1)] = 1.0,
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
) -> None:
    """Show the clients nearest to their limits: usage, limit, rate, what is left, level and wait, from the decisions.

    Live on a terminal, until q; elsewhere, and with --once or --json, one look.
    """
    view = _view(sort, quota, text)
    settings = with_bootstrap_servers(job_settings(config), bootstrap_servers)
    is_live = not once and not json_output and sys.stdin.isatty() and sys.stdout.isatty()
    with closing(DecisionsReader(settings, since_s)) as reader:
        reader.read_past()
        if is_live:
            _run_live(reader, view, interval_s)
        elif json_output:
            typer.echo(json.dumps(_snapshot(reader, view), indent=2))
        else:
            for line in _snapshot_lines(reader, view):
                typer.echo(line)


class DecisionsReader:
    """Reads the decisions topic into a live model.

    `since_ms` is the time from which on all decisions are read.
    """

    def __init__(self, settings: Settings, since_s: int | None) -> None:
        """Begin `since_s` seconds ago; None stands for SINCE_S, but at most MOST_READ decisions.

        Raises KafkaUnavailableError, and TopError if there is no topic.
        """
        from kafka import KafkaConsumer, TopicPartition  # slow to import

        self.model = LiveModel(settings.quota)
        self.read = 0
        self._fence = Fence()
        self.last_read_ms = 0
        self.since_ms = now_ms() - (since_s or SINCE_S) * 1000
        self._most = MOST_READ if since_s is None else None
        topic = settings.topics.decisions
        self._consumer = connect(
            KafkaConsumer,
            settings.kafka,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            allow_auto_create_topics=False,
            check_crcs=False,  # TCP and the broker have theirs
            fetch_max_wait_ms=_POLL_MS,
            max_partition_fetch_bytes=8 * 1024 * 1024,
            max_poll_records=5_000,
        )
        partitions = self._consumer.partitions_for_topic(topic)
        if not partitions:
            raise TopError(f"there is no topic {topic}; check topics.decisions, and that the job has run")
        self._partitions = [TopicPartition(topic, number) for number in sorted(partitions)]

    def read_past(self) -> None:
        """Read the decisions up to the present. Raises TopError."""
        from kafka.errors import KafkaError

        consumer, partitions = self._consumer, self._partitions
        try:
            consumer.assign(partitions)
            begins = consumer.offsets_for_times(dict.fromkeys(partitions, self.since_ms), _OFFSETS_TIMEOUT_MS)
            ends = consumer.end_offsets(partitions, _OFFSETS_TIMEOUT_MS)
            counts = {partition: end - begins[partition].offset for partition, end in ends.items() if begins[partition]}
            self._leave_out_old(counts)
            for partition, end in ends.items():
                consumer.seek(partition, end - counts.get(partition, 0))
            until_s = time.monotonic() + _OFFSETS_TIMEOUT_MS / 1000
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                self.poll()
                if time.monotonic() > until_s:
                    raise TopError(f"the decisions of the last {_OFFSETS_TIMEOUT_MS // 1000} s can't be read in time")
        except KafkaError as error:
            raise self._unreadable(error) from error

    def _leave_out_old(self, counts: "dict[TopicPartition, int]") -> None:
        """Reduce the numbers of records to read to `_most` in all, each partition's in proportion."""
        total = sum(counts.values())
        if self._most is None or total <= self._most:
            return
        at_ms = now_ms()
        self.since_ms = at_ms - (at_ms - self.since_ms) * self._most // total
        for partition, count in counts.items():
            counts[partition] = count * self._most // total

    def poll(self) -> None:
        """Read what is there, or wait for it a moment. Raises TopError."""
        from kafka.errors import KafkaError

        try:
            batches = self._consumer.poll(_POLL_MS)
        except KafkaError as error:
            raise self._unreadable(error) from error
        for records in batches.values():
            self.read += len(records)
            self.last_read_ms = now_ms()
            counting = (record.value for record in records if self._fence.passes_record(record))
            self.model.take_all(counting, self.last_read_ms)

    def close(self) -> None:
        """End the connection."""
        self._consumer.close(timeout_ms=500)

    def _unreadable(self, error: Exception) -> TopError:
        return TopError(f"the decisions can't be read ({error_line(error)}); check that this user may read the topic")


def _view(sort: str, quota: str | None, text: str) -> View:
    """The view that the options ask for. Raises UsageError."""
    if sort not in SORTS:
        raise UsageError(f"--sort is {sort!r}; expected one of {', '.join(SORTS)}")
    if quota is not None and quota not in KINDS_BY_NAME:
        raise UsageError(f"--quota is {quota!r}; expected one of {', '.join(KINDS_BY_NAME)}")
    return View(sort, KINDS_BY_NAME.get(quota or ""), text)


def _snapshot(reader: DecisionsReader, view: View) -> dict[str, object]:
    """One look, with all counters."""
    at_ms = now_ms()
    return {
        "at_ms": at_ms,
        "since_ms": reader.since_ms,
        "decisions_read": reader.read,
        "verdicts": dict(sorted(reader.model.total.items())),
        "counters": [row.to_mapping() for row in rows_of(reader.model, view, at_ms, most=reader.model.known)],
    }


def _snapshot_lines(reader: DecisionsReader, view: View) -> Iterator[str]:
    at_ms, model = now_ms(), reader.model
    span_s = max(1.0, (at_ms - reader.since_ms) / 1000)
    verdicts = "  ".join(f"{count / span_s:.1f}/s {verdict}" for verdict, count in sorted(model.total.items()))
    yield f"{reader.read} decisions in {span_s:.0f} s  {printable(verdicts)}  {model.known} counters"
    rows = rows_of(model, view, at_ms, SNAPSHOT_ROWS)
    yield from table_lines(rows) if rows else ["no counter with a limit was charged"]


def _run_live(reader: DecisionsReader, view: View, interval_s: float) -> None:
    """Draw until the user leaves, or SIGTERM; the terminal is as before then."""
    with _own_terminal():
        try:
            _draw_until_left(reader, view, interval_s)
        except KeyboardInterrupt:
            return


def _draw_until_left(reader: DecisionsReader, view: View, interval_s: float) -> None:
    keys = codecs.getincrementaldecoder("utf-8")("replace")
    due_s, size = 0.0, os.get_terminal_size(sys.stdout.fileno())
    while True:
        reader.poll()
        for key in _pressed(keys):
            chosen = after_key(view, key)
            if chosen is None:
                return
            view, due_s = chosen, 0.0
        now_size = os.get_terminal_size(sys.stdout.fileno())
        if time.monotonic() >= due_s or now_size != size:
            size, due_s = now_size, time.monotonic() + interval_s
            _write(_screen(reader, view, size))


def _pressed(keys: codecs.IncrementalDecoder) -> str:
    """The keys pressed since the last look. A key that sends several signs, such as an arrow, counts as none."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return ""
    typed = os.read(sys.stdin.fileno(), 1024)
    if not typed:
        return "q"  # the terminal is gone
    text = keys.decode(typed)
    return "" if len(text) > 1 and text.startswith("\x1b") else text


def _screen(reader: DecisionsReader, view: View, size: os.terminal_size) -> str:
    """One screen: state, table, keys."""
    at_ms, model = now_ms(), reader.model
    verdicts = verdicts_per_s(model, at_ms, reader.since_ms)
    rates = "  ".join(f"{rate:.0f}/s {printable(verdict)}" for verdict, rate in sorted(verdicts.items()))
    age = f"last decision read {(at_ms - reader.last_read_ms) / 1000:.0f} s ago" if reader.last_read_ms else "none yet"
    text = view.text if view.typed is None else f"{view.typed}_"
    chosen = f"by {view.sort}; quota {view.quota.value if view.quota else 'any'}; filter {text or '-'}"
    rows = rows_of(model, view, at_ms, max(0, size.lines - 4))
    coloured = "NO_COLOR" not in os.environ
    table = list(table_lines(rows, size.columns, colour=coloured)) if rows else ["no counter with a limit was charged"]
    head = [cut(f"sluice top  {rates or 'no decisions'}  {model.known} counters  {age}", size.columns)]
    lines = [*head, cut(f"{printable(chosen)}  [{_KEYS}]", size.columns), "", *table][: size.lines - 1]
    return _HOME + "\n".join(line + _TO_LINE_END for line in lines) + _TO_SCREEN_END


@contextmanager
def _own_terminal() -> Iterator[None]:
    """The terminal's other screen, keys one by one and without echo; as before afterwards, also after SIGTERM."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        tty.setcbreak(descriptor)
        _write(_ALTERNATE_SCREEN)
        yield
    finally:
        _write(_NORMAL_SCREEN)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, previous)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
