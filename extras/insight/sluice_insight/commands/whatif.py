"""The command `sluice whatif`: recorded clients under other quotas."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import ConfigOption, job_settings
from sluice.process.format import printable
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice_insight.commands.span_options import ToOption, from_option
from sluice_insight.reports.left_out import LeftOut
from sluice_insight.reports.span import read_span
from sluice_insight.texts import counter_name
from sluice_reading.format import quantity, short
from sluice_reading.options import quotas_in_force, quotas_of_file
from sluice_reading.output import print_json, print_lines, time_text
from sluice_reading.text_tables import MAX_NAME, table_lines, terminal_width
from sluice_reading.texts import entity_text, value_text
from sluice_reading.times import from_ms

if TYPE_CHECKING:
    from sluice_insight.whatif.replay import ClientName, ClientReplay
    from sluice_insight.whatif.run import Replayed

    Clients = Mapping[ClientName, ClientReplay]

SHOWN_CLIENTS = 20
COLUMNS = (
    *("client", "requests", "throttled then", "same", "now", "minutes waited then", "same", "now"),
    *("bytes then", "same", "now", "not sent", "throttled by"),
)
UNKNOWN = "?"
"""In place of a figure whose error is larger than the effect that it foretells."""

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
    """Replay recorded decisions under the quotas of a file, and compare throttled requests, waits and bytes.

    Then is the recording, same the replay under the quotas that were in force, so the method's own error, and now that
    under the file. A figure whose error is larger than the effect is a question mark. Each of a client's connections is
    a line: a throttled one sends later, and one that was throttled all the time sends more under a higher limit. Needs
    the Delta tables, and neither the job nor Java.
    """
    settings = job_settings(config)
    wanted = quotas_of_file(quotas)
    span = read_span(start, end, now=datetime.now(UTC), default=timedelta(days=1))
    only = None if not client else [_client(text) for text in client]
    present = quotas_in_force(settings, "the error of the replay is that without quotas", at=from_ms(span.end_ms))
    from sluice_insight.reports.recorded_waits import wait_ends
    from sluice_insight.whatif.overrides import recorded_overrides
    from sluice_insight.whatif.run import Task, replay, stepped  # pyarrow takes half a second to import
    from sluice_reading.query import Tables

    idle_expiry_ms = settings.state.idle_expiry_s * 1000
    delta = settings.delta
    ends = wait_ends(Tables(delta.decisions, delta.quotas, delta.storage_options), span)
    recorded = recorded_overrides(delta.overrides, delta.storage_options, span)
    storage, quota, scenarios = delta.storage_options, settings.quota, stepped(present, wanted, steps)
    tried = [present, *scenarios]
    task = Task(delta.decisions, storage, span, tried, quota, idle_expiry_ms, only, ends=ends, recorded=recorded)
    replayed = replay(task, processes)
    left_out = replayed.left_out(settings.kafka) if only is None else LeftOut()
    replayed = replayed.without(left_out)
    if json_output:
        heading: Json = {"from_ms": span.start_ms, "to_ms": span.end_ms, "decisions": replayed.rows}
        heading["left_out"] = {"own": len(left_out.own), "small": len(left_out.small)}
        print_json(heading | _report_json(replayed, scenarios), indent=True)
        return
    typer.echo(f"{time_text(from_ms(span.start_ms))} to {time_text(from_ms(span.end_ms))}: {replayed.rows} decisions")
    if client and not replayed.clients[-1]:
        typer.echo(
            "sluice: nobody of these names sent anything; --client /NAME is a client-id without a user", err=True
        )
    print_lines(report_lines(replayed, scenarios, left_out, terminal_width()))


def report_lines(
    replayed: "Replayed", scenarios: Sequence[Sequence[QuotaEntry]], left_out: LeftOut, width: int | None = None
) -> Iterable[str]:
    """A table of the clients under the last scenario, as wide as this, and of all scenarios if there are several."""
    same, *_, clients = replayed.clients
    ordered = by_change(same, clients)
    waiting = [(name, client) for name, client in ordered if client.now.throttled or client.then.throttled]
    shown = [(short(counter_name(Tags(*name)), MAX_NAME), client_json(name, same, client)) for name, client in waiting]
    rows = [_cells(name, figures) for name, figures in shown[:SHOWN_CLIENTS]]
    if more := len(waiting) - len(rows):
        rows.append([f"and {more} more that wait", *[""] * (len(COLUMNS) - 1)])
    rows.append(_cells(f"all {len(ordered)} clients", total_json(same, clients)))
    yield from table_lines(COLUMNS, rows, width, ("throttled by", "not sent", "requests"), COLUMNS[:1])
    if any(UNKNOWN in row for row in rows):
        yield (
            f"{UNKNOWN}: the error, between then and same, is larger than the effect, between same and now;"
            " or the waits are too short to be seen, or the client would send more than was recorded"
        )
    if len(scenarios) > 1:
        yield ""
        cells = [_step_cells(*step) for step in enumerate((total_json(same, each) for each in replayed.clients[1:]), 1)]
        yield from table_lines(("step", "throttled", "minutes waited", "clients throttled"), cells)
        yield ""
        yield from table_lines(("limit", "step 1", f"step {len(scenarios)}"), _limit_cells(scenarios[0], scenarios[-1]))
    yield from _notes(clients)
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
    if text := left_out.text():
        yield text


def _notes(clients: "Clients") -> Iterable[str]:
    """A line for clients that send more than was recorded, and one for those that would."""
    for said, names in (
        ("waited for most of the span, and go on with requests like their last ones", _names(clients, "repeated")),
        (
            "wanted more than was recorded, nobody knows how much: their bytes are the least",
            _names(clients, "wants_more"),
        ),
    ):
        if names:
            yield f"{len(names)} clients {said}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"


def _names(clients: "Clients", flag: str) -> list[str]:
    return [short(counter_name(Tags(*name)), MAX_NAME) for name, client in clients.items() if getattr(client, flag)]


def by_change(same: "Clients", clients: "Clients") -> "list[tuple[ClientName, ClientReplay]]":
    """The clients, those first whose waits the quotas change most."""

    def change(client: "tuple[ClientName, ClientReplay]") -> tuple[int, int, "ClientName"]:
        name, of_client = client
        return -abs(of_client.now.waited_ms - same[name].now.waited_ms), -of_client.now.waited_ms, name

    return sorted(clients.items(), key=change)


FIGURES = ("throttled", "refused", "waited_ms", "bytes")
"""The figures of a client's side that a replay foretells."""


def total_json(same: "Clients", clients: "Clients") -> Json:
    """The sums over all clients; `clients_throttled` counts those with a wait."""
    found = _figures([(same[name], client) for name, client in clients.items()])
    for side in ("then", "now"):
        throttled = (getattr(client, side).throttled > 0 for client in clients.values())
        found[f"clients_throttled_{side}"] = sum(throttled)
    return found


def client_json(name: "ClientName", same: "Clients", client: "ClientReplay") -> Json:
    """One client then and now, and now under the quotas of then."""
    found: Json = {"user": name[0], "client_id": name[1]} | _figures([(same[name], client)])
    found |= {"repeated": client.repeated, "wants_more": client.wants_more}
    return found | {"held_by": dict(sorted(client.waits.items()))}


def _figures(clients: "Sequence[tuple[ClientReplay, ClientReplay]]") -> Json:
    """The sums of figures of clients, each under the quotas of then and under others; null for one that isn't known."""
    from sluice_insight.whatif.run import Figure

    found: Json = {"requests": sum(client.then.requests for _, client in clients)}
    are_seen = all(client.is_seen for _, client in clients)
    are_content = not any(client.wants_more for _, client in clients)  # else their bytes are the least
    unsent = Figure(0, sum(before.unsent for before, _ in clients), sum(client.unsent for _, client in clients))
    for name in FIGURES:
        figure = Figure(
            sum(getattr(client.then, name) for _, client in clients),
            sum(getattr(before.now, name) for before, _ in clients),
            sum(getattr(client.now, name) for _, client in clients),
        )
        shown = name if name != "waited_ms" else "minutes_waited"
        is_known = figure.is_known and (not figure.now or (are_seen and (name == "bytes" or are_content)))
        for side, value in figure._asdict().items():
            minutes = _minutes(value) if name == "waited_ms" else value
            found[f"{shown}_{side}"] = None if side == "now" and not is_known else minutes
    return found | {"not_sent_same": unsent.same, "not_sent": unsent.now if unsent.is_known else None}


def _report_json(replayed: "Replayed", scenarios: Sequence[Sequence[QuotaEntry]]) -> Json:
    same, *_, clients = replayed.clients
    steps = [
        {"limits": _limits_text(entries), "total": total_json(same, of_step)}
        for entries, of_step in zip(scenarios, replayed.clients[1:], strict=True)
    ]
    return {
        "without_amounts": replayed.without_amounts,
        **{f"without_{part}": unknown for part, unknown in replayed.unknown.items()},
        "given_up": max(replayed.given_up),
        "total": total_json(same, clients),
        "steps": steps if len(steps) > 1 else [],
        "clients": [client_json(name, same, client) for name, client in by_change(same, clients)],
    }


def _client(text: str) -> tuple[str, str | None]:
    """User and client-id of --client; a user alone means all its client-ids.

    >>> _client("alice"), _client("alice/app"), _client("/app")
    (('alice', None), ('alice', 'app'), ('', 'app'))
    """
    user, slash, client_id = text.partition("/")
    if not text:
        raise UsageError("--client is empty; expected a user such as alice, or a user and a client-id, alice/app")
    return user, client_id if slash else None


def _cells(name: str, figures: Json) -> list[str]:
    held_by = figures.get("held_by", {})
    cells = [name, str(figures["requests"])]
    for figure, text in (
        ("throttled", str),
        ("minutes_waited", "{:.1f}".format),
        ("bytes", lambda size: quantity(size, "B")),
    ):
        values = (figures[f"{figure}_{side}"] for side in ("then", "same", "now"))
        cells += [UNKNOWN if value is None else text(value) for value in values]
    unsent = UNKNOWN if figures["not_sent"] is None else str(figures["not_sent"])
    return [*cells, unsent, ", ".join(sorted(held_by, key=lambda quota: (-held_by[quota], quota)))]


def _step_cells(number: int, total: Json) -> list[str]:
    minutes, throttled = total["minutes_waited_now"], total["throttled_now"]
    shown = UNKNOWN if minutes is None else f"{minutes:.1f}"
    return [str(number), UNKNOWN if throttled is None else str(throttled), shown, str(total["clients_throttled_now"])]


def _limit_cells(first: Sequence[QuotaEntry], last: Sequence[QuotaEntry]) -> Iterable[list[str]]:
    """The limits that the steps change; between these two they move by equal amounts."""
    for before, after in zip(first, last, strict=True):
        if before != after:
            whose = short(entity_text(after.entity), 2 * MAX_NAME)
            yield [f"{whose}: {after.kind}", value_text(before), value_text(after)]


def _limits_text(entries: Sequence[QuotaEntry]) -> list[str]:
    return [f"{printable(entity_text(entry.entity))}: {entry.kind} {value_text(entry)}" for entry in entries]


def _minutes(waited_ms: float) -> float:
    return round(waited_ms / 60_000, 3)
