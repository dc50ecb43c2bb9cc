"""The command `sluice whatif`: recorded clients under other quotas."""

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.format import MAX_NAME, print_json, print_lines, table_lines, terminal_width, time_text
from sluice.cli.options import ConfigOption, ToOption, from_option, job_settings, quotas_of_file
from sluice.configs.settings import Settings
from sluice.insight.reports.span import from_ms, read_span
from sluice.insight.texts import counter_name, entity_text, value_text
from sluice.process.format import printable, short
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.entry import QuotaEntry

if TYPE_CHECKING:
    from sluice.insight.whatif.replay import ClientName, ClientReplay
    from sluice.insight.whatif.run import Replayed

SHOWN_CLIENTS = 20
COLUMNS = ("client", "requests", "throttled then", "now", "minutes waited then", "now", "not sent", "throttled by")

Json = dict[str, Any]


def whatif(
    quotas: Annotated[Path, typer.Option(help="All quotas that would be in force, as `sluice quotas export` prints.")],
    start: Annotated[str | None, from_option("a day")] = None,
    end: ToOption = None,
    client: Annotated[
        list[str] | None, typer.Option("--client", help="Show this user, or user/client-id, alone. Repeatable.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps from the limits in force to those of the file.", min=1, max=20)] = 1,
    processes: Annotated[int, typer.Option(help="Most processes.", min=1)] = min(os.cpu_count() or 1, 4),
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, with all clients.")] = False,
    config: ConfigOption = None,
) -> None:
    """Replay recorded decisions under the quotas of a file, and compare throttled requests and waits, now and then.

    A throttled client sends later: it falls behind the recording by the wait it did not have then. Needs the table of
    decisions, and neither the job nor Java.
    """
    settings = job_settings(config)
    wanted = quotas_of_file(quotas)
    span = read_span(start, end, now=datetime.now(UTC), default=timedelta(days=1))
    scenarios = [wanted]
    if steps > 1:
        scenarios = _stepped(settings, wanted, steps)
    from sluice.insight.reports.recorded_waits import wait_ends
    from sluice.insight.sql import Tables
    from sluice.insight.whatif.overrides import recorded_overrides
    from sluice.insight.whatif.run import Task, replay  # pyarrow takes half a second to import

    only = None if not client else [_client(text) for text in client]
    idle_expiry_ms = settings.state.idle_expiry_s * 1000
    delta = settings.delta
    ends = wait_ends(Tables(delta.decisions, delta.quotas, delta.storage_options), span)
    recorded = recorded_overrides(delta.overrides, delta.storage_options, span)
    storage, quota = delta.storage_options, settings.quota
    task = Task(delta.decisions, storage, span, scenarios, quota, idle_expiry_ms, only, ends=ends, recorded=recorded)
    replayed = replay(task, processes)
    if json_output:
        heading = {"from_ms": span.start_ms, "to_ms": span.end_ms, "decisions": replayed.rows}
        print_json(heading | _report_json(replayed, scenarios), indent=True)
        return
    typer.echo(f"{time_text(from_ms(span.start_ms))} to {time_text(from_ms(span.end_ms))}: {replayed.rows} decisions")
    if client and not replayed.clients[-1]:
        typer.echo(
            "sluice: nobody of these names sent anything; --client /NAME is a client-id without a user", err=True
        )
    print_lines(report_lines(replayed, scenarios, terminal_width()))


def report_lines(
    replayed: "Replayed", scenarios: Sequence[Sequence[QuotaEntry]], width: int | None = None
) -> Iterable[str]:
    """A table of the clients under the last scenario, as wide as this, and of all scenarios if there are several."""
    *_, clients = replayed.clients
    ordered = by_change(clients)
    waiting = [(name, client) for name, client in ordered if client.now.throttled or client.then.throttled]
    rows = [_row(short(counter_name(Tags(*name)), MAX_NAME), client) for name, client in waiting[:SHOWN_CLIENTS]]
    if more := len(waiting) - len(rows):
        rows.append([f"and {more} more that wait", *[""] * (len(COLUMNS) - 1)])
    rows.append(_cells(f"all {len(ordered)} clients", total_json(clients), ""))
    yield from table_lines(COLUMNS, rows, width, ("throttled by", "not sent"), COLUMNS[:1])
    if len(scenarios) > 1:
        yield ""
        cells = [_step_cells(number, clients) for number, clients in enumerate(replayed.clients, start=1)]
        yield from table_lines(("step", "throttled", "minutes waited", "clients throttled"), cells)
        yield ""
        yield from table_lines(("limit", "step 1", f"step {len(scenarios)}"), _limit_cells(scenarios[0], scenarios[-1]))
    for part, unknown in replayed.unknown.items():
        name = part.value.replace("_", "-")
        if unknown and any(part.is_of(entry.entity) for entries in scenarios for entry in entries):
            yield (
                f"{unknown} of {replayed.rows} decisions have no {name}, as a gateway sums up several {name}s:"
                f" no quota on {name}s is tried on them"
            )
    if replayed.without_amounts:
        yield f"{replayed.without_amounts} of {replayed.rows} decisions say no amounts, and were free"
    if any(replayed.given_up):
        yield f"{max(replayed.given_up)} requests were given up, because too many others waited to be sent"


def by_change(clients: "dict[ClientName, ClientReplay]") -> "list[tuple[ClientName, ClientReplay]]":
    """The clients, those first whose waits change most."""

    def change(client: "tuple[ClientName, ClientReplay]") -> tuple[int, int, "ClientName"]:
        name, of_client = client
        return -abs(of_client.now.waited_ms - of_client.then.waited_ms), -of_client.now.waited_ms, name

    return sorted(clients.items(), key=change)


def total_json(clients: "dict[ClientName, ClientReplay]") -> Json:
    """The sums over all clients; `clients_throttled` counts those with a wait."""
    parts = [client_json(name, client) for name, client in clients.items()]
    names = ("requests", "throttled_then", "throttled_now", "refused_then", "refused_now")
    sums: Json = {name: sum(part[name] for part in parts) for name in (*names, "not_sent")}
    for side in ("then", "now"):
        waited_ms = sum(getattr(client, side).waited_ms for client in clients.values())
        sums[f"minutes_waited_{side}"] = _minutes(waited_ms)
        sums[f"clients_throttled_{side}"] = sum(getattr(client, side).throttled > 0 for client in clients.values())
    return sums


def client_json(name: "ClientName", client: "ClientReplay") -> Json:
    """One client then and now."""
    user, client_id = name
    return {
        "user": user,
        "client_id": client_id,
        "requests": client.then.requests,
        "throttled_then": client.then.throttled,
        "throttled_now": client.now.throttled,
        "refused_then": client.then.refused,
        "refused_now": client.now.refused,
        "minutes_waited_then": _minutes(client.then.waited_ms),
        "minutes_waited_now": _minutes(client.now.waited_ms),
        "not_sent": client.unsent,
        "held_by": dict(sorted(client.waits.items())),
    }


def _report_json(replayed: "Replayed", scenarios: Sequence[Sequence[QuotaEntry]]) -> Json:
    *_, clients = replayed.clients
    steps = [
        {"limits": _limits_text(entries), "total": total_json(of_step)}
        for entries, of_step in zip(scenarios, replayed.clients, strict=True)
    ]
    return {
        "without_amounts": replayed.without_amounts,
        **{f"without_{part}": unknown for part, unknown in replayed.unknown.items()},
        "given_up": max(replayed.given_up),
        "total": total_json(clients),
        "steps": steps if len(steps) > 1 else [],
        "clients": [client_json(name, client) for name, client in by_change(clients)],
    }


def _stepped(settings: Settings, wanted: Sequence[QuotaEntry], steps: int) -> list[list[QuotaEntry]]:
    """The quotas of each step, beginning with those in force."""
    from sluice.insight.whatif.run import stepped
    from sluice.sinks.tables.quotas import QuotasTable  # deltalake is slow to import

    present = QuotasTable(settings.delta.quotas, settings.delta.storage_options).entries()
    return stepped(present, wanted, steps)


def _client(text: str) -> tuple[str, str | None]:
    """User and client-id of --client; a user alone means all its client-ids.

    >>> _client("alice"), _client("alice/app"), _client("/app")
    (('alice', None), ('alice', 'app'), ('', 'app'))
    """
    user, slash, client_id = text.partition("/")
    if not text:
        raise UsageError("--client is empty; expected a user such as alice, or a user and a client-id, alice/app")
    return user, client_id if slash else None


def _row(name: str, client: "ClientReplay") -> list[str]:
    throttled_by = sorted(client.waits, key=lambda quota: (-client.waits[quota], quota))
    return _cells(name, client_json(("", ""), client), ", ".join(throttled_by))


def _cells(name: str, figures: Json, throttled_by: str) -> list[str]:
    counts = [str(figures[key]) for key in ("requests", "throttled_then", "throttled_now")]
    minutes = [f"{figures[key]:.1f}" for key in ("minutes_waited_then", "minutes_waited_now")]
    return [name, *counts, *minutes, str(figures["not_sent"]), throttled_by]


def _step_cells(number: int, clients: "dict[ClientName, ClientReplay]") -> list[str]:
    total = total_json(clients)
    minutes, throttled = f"{total['minutes_waited_now']:.1f}", str(total["clients_throttled_now"])
    return [str(number), str(total["throttled_now"]), minutes, throttled]


def _limit_cells(first: Sequence[QuotaEntry], last: Sequence[QuotaEntry]) -> Iterable[list[str]]:
    """The limits that the steps change; between these two they move by equal amounts."""
    for before, after in zip(first, last, strict=True):
        if before != after:
            whose = short(entity_text(after.entity), 2 * MAX_NAME)
            yield [f"{whose}: {after.kind}", value_text(before), value_text(after)]


def _limits_text(entries: Sequence[QuotaEntry]) -> list[str]:
    return [f"{printable(entity_text(entry.entity))}: {entry.kind} {value_text(entry)}" for entry in entries]


def _minutes(waited_ms: int) -> float:
    return round(waited_ms / 60_000, 3)
