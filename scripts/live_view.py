"""What `./scripts/run` shows: a table on a terminal, else a line every few seconds."""

from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from scripts.tally import Tally

_SHOWN_CLIENTS = 5


def overview(tally: Tally, status: dict[str, Any], published: int, published_per_s: float) -> Group:
    """Everything at a glance; names come from events, so they are shown as plain text."""
    return Group(_numbers(tally, status, published, published_per_s), _clients(tally), _decisions(tally))


def line(tally: Tally, status: dict[str, Any], published: int, published_per_s: float) -> str:
    """The same in one line."""
    batch = status.get("enforce", {})
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.verdicts.items()))
    return (
        f"{published} requests ({published_per_s:.0f}/s) -> {tally.decisions} decisions ({verdicts or 'none yet'}), "
        f"{tally.dead_letters} dead letters; batch {batch.get('batch_ms', '-')} ms, lag {batch.get('lag', '-')}"
    )


def decision_line(decision: dict[str, Any]) -> str:
    """One decision in a line."""
    who = f"{decision['user'] or '-'} / {decision['client_id'] or '-'}"
    return (
        f"{decision['verdict']:<8} {decision['throttle_time_ms']:>7} ms  {decision['api']:<16} {who:<28} "
        f"by {decision['decided_by']}"
    )


def _numbers(tally: Tally, status: dict[str, Any], published: int, published_per_s: float) -> Table:
    batch = status.get("enforce", {})
    delay_ms = tally.median_delay_ms()
    table = Table(title="Sluice", title_justify="left", min_width=80)
    for column in ("requests", "per s", "ALLOW", "THROTTLE", "REJECT", "dead letters", "batch ms", "lag", "delay p50"):
        table.add_column(column, justify="right")
    table.add_row(
        str(published),
        f"{published_per_s:.0f}",
        *(str(tally.verdicts[verdict]) for verdict in ("ALLOW", "THROTTLE", "REJECT")),
        str(tally.dead_letters),
        str(batch.get("batch_ms", "-")),
        str(batch.get("lag", "-")),
        "-" if delay_ms is None else f"{delay_ms} ms",
    )
    return table


def _clients(tally: Tally) -> Table:
    table = Table(title="most throttled", title_justify="left", min_width=80)
    table.add_column("user | client-id")
    table.add_column("sum of waits", justify="right")
    for client, throttled_ms in tally.most_throttled(_SHOWN_CLIENTS):
        table.add_row(escape(client), f"{throttled_ms / 1000:.1f} s")
    return table


def _decisions(tally: Tally) -> Text:
    return Text("\n".join(["latest waits and refusals", *map(decision_line, tally.last())]))
