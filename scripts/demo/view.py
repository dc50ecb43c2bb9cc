"""The display of `./scripts/run`: a table on a terminal, otherwise a line every few seconds."""

import math
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from scripts.testbed.live_counts import Answers
from sluice.state.quotas.kinds import Family, QuotaKind

_KINDS = {str(kind): kind for kind in QuotaKind}
_PREFIXES = ("", "k", "M", "G", "T", "P")
_WIDTH = 80
_NUMBER_WIDTH = 10
_SHOWN_CLIENTS = 5


def overview(counts: Answers, status: dict[str, Any], published: int, published_per_s: float, at_ms: int) -> Group:
    """All numbers as tables. Names come from events, so they are escaped and shown as plain text."""
    return Group(
        _answers(counts, published),
        _job(counts, status, published_per_s),
        _clients(counts, at_ms),
        _decisions(counts),
    )


def line(counts: Answers, status: dict[str, Any], published: int, published_per_s: float) -> str:
    """The main numbers in one line."""
    sent = f"{published} requests ({published_per_s:.0f}/s)"
    if not counts.answered:
        return f"{sent}; waiting for the first micro-batch, the slowest: Java and the workers warm up"
    batch = status.get("enforce", {})
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.verdicts.items()))
    return (
        f"{sent} -> {counts.decisions} decisions ({verdicts or 'none yet'}), "
        f"{counts.dead_letters} dead letters; batch {batch.get('batch_ms', '-')} ms, lag {batch.get('lag', '-')}"
    )


def decision_line(decision: dict[str, Any]) -> str:
    """A decision as one line."""
    who = printable(f"{decision['user'] or '-'} / {decision['client_id'] or '-'}")
    return (
        f"{decision['verdict']:<8} {decision['throttle_time_ms'] / 1000:>8.1f} s  {decision['api']:<14} "
        f"{decision['decided_by']:<24} {who}"
    )


def client_line(client: str, quota: str | None, usage: float, limit: float | None, wait_ms: int) -> str:
    """A busy client as one line."""
    used = f"{amount(quota, usage)} of {amount(quota, limit)} {quota}" if quota and limit is not None else "no quota"
    return f"{printable(client):<22} {used}; " + (f"waits {wait_ms / 1000:.1f} s" if wait_ms else "no wait")


def amount(quota: str, per_s: float) -> str:
    """A rate in the unit of the quota, with three digits or four.

    >>> amount("producer_byte_rate", 1048576), amount("request_percentage", 12.34), amount("consumer.byte.rate", 0)
    ('1.05 MB/s', '12.3 %', '0 B/s')
    >>> amount("controller_mutation_rate", 5)
    '5.0/s'
    """
    family = _KINDS[quota].family
    if family is Family.REQUEST_TIME:
        return f"{per_s:.1f} %"
    power = min(max(0, math.floor(math.log10(max(per_s, 1.0)) / 3 + 0.0002)), len(_PREFIXES) - 1)
    scaled, prefix = per_s / 1000.0**power, _PREFIXES[power]
    if family is Family.MUTATIONS:
        return f"{scaled:.1f}{prefix}/s"
    return f"{scaled:.3g} {prefix}B/s" if prefix else f"{scaled:.0f} B/s"


def _answers(counts: Answers, published: int) -> Table:
    table = _table("Sluice", "requests", "ALLOW", "THROTTLE", "REJECT", "dead letters")
    verdicts = (str(counts.verdicts[verdict]) for verdict in ("ALLOW", "THROTTLE", "REJECT"))
    table.add_row(str(published), *verdicts, str(counts.dead_letters))
    return table


def _job(counts: Answers, status: dict[str, Any], published_per_s: float) -> Table:
    batch = status.get("enforce", {})
    delay_ms = counts.median_delay_ms()
    table = _table(None, "requests/s", "batch ms", "lag", "delay p50")
    table.add_row(
        f"{published_per_s:.0f}",
        str(batch.get("batch_ms", "-")),
        str(batch.get("lag", "-")),
        "first micro-batch" if delay_ms is None else f"{delay_ms} ms",
    )
    return table


def _clients(counts: Answers, at_ms: int) -> Table:
    table = Table(
        title="busiest clients of the load, which doesn't wait",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        width=_WIDTH,
    )
    table.add_column("user | client-id", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("fullest quota", no_wrap=True, width=max(map(len, _KINDS)))
    for column in ("usage", "limit", "wait now"):
        table.add_column(column, no_wrap=True, justify="right", width=_NUMBER_WIDTH)
    for client, quota, usage, limit, wait_ms in counts.busiest(_SHOWN_CLIENTS, at_ms):
        numbers = (amount(quota, usage), amount(quota, limit)) if quota and limit is not None else ("-", "-")
        wait = f"{wait_ms / 1000:.1f} s" if wait_ms else "-"
        table.add_row(escape(printable(client)), quota or "-", *numbers, wait)
    return table


def _decisions(counts: Answers) -> Text:
    lines = ["latest waits and refusals", *map(decision_line, counts.latest())]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _table(title: str | None, *columns: str) -> Table:
    """A table of numbers, each wide enough for ten digits on 80 columns."""
    table = Table(title=title, title_justify="left", width=_WIDTH)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def printable(text: str) -> str:
    """The text with control characters escaped, which a terminal would execute."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
