"""The commands `sluice usage`, for chargeback, and `sluice slo`: throttled minutes a week by client."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import ConfigOption, job_settings
from sluice.configs.settings import Settings
from sluice.process.format import percent
from sluice.process.texts import NO_NAME
from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.resolution import Quotas
from sluice.state.quotas.tenants import Tenants
from sluice_insight.commands.errors import NO_TENANT
from sluice_insight.commands.freshness import say_no_rows, say_of_then
from sluice_insight.commands.rows import print_rows
from sluice_insight.commands.span_options import ToOption, from_option
from sluice_insight.reports.span import By, Per
from sluice_insight.texts import counter_name
from sluice_reading.format import quantity, short
from sluice_reading.options import quotas_in_force, quotas_of_file
from sluice_reading.output import print_json, print_lines, time_text
from sluice_reading.text_tables import MAX_NAME, table_lines, terminal_width
from sluice_reading.times import duration

if TYPE_CHECKING:
    from pyarrow import Table

SORTS = (
    "requests",
    "bytes",
    "bytes_in",
    "bytes_out",
    "request_time",
    "mutations",
    "throttled_requests",
    "throttled",
)
"""The amounts that --sort takes; those of `insight.reports.usage`, which is slow to import."""

TOPIC_SORTS = ("bytes", "bytes_in", "bytes_out", "mutations")
"""The amounts that topics have."""


class UsageFormat(StrEnum):
    """Forms of output; json is one object a line."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def usage(
    by: Annotated[
        By | None,
        typer.Option(
            "--by", help="Sum up by this.", show_default="user, or client where most quotas in force are on client-ids"
        ),
    ] = None,
    per: Annotated[Per, typer.Option("--per", help="Length of a period, in UTC.")] = Per.DAY,
    start: Annotated[str | None, from_option("a day")] = None,
    end: ToOption = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", help=f"Highest first, with its share of the period: {', '.join(SORTS)}."),
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", help="Most rows of a period; sorted by bytes without --sort.", min=1)
    ] = None,
    tenants: Annotated[
        Path | None,
        typer.Option("--tenants", help="YAML with tenants other than those of the quotas table, with --by tenant."),
    ] = None,
    output_format: Annotated[UsageFormat, typer.Option("--format", help="Form of the output.")] = UsageFormat.TABLE,
    config: ConfigOption = None,
) -> None:
    """Sum up usage by hour or day: requests, bytes, request time, mutations, throttled requests and their waits.

    Clients without any quota count too; brokers, controllers, Sluice itself, and clients with under 100 requests and
    1 MB do not. A table that ends now has holds and the limits that give way. Needs the Delta tables and no Java. Times
    are those of the events. In CSV a single quote stands before a name that a spreadsheet would take for a formula.
    """
    settings = job_settings(config)
    by = by or (_default_by(settings) if tenants is None else By.TENANT)
    sort = _checked_sort("bytes" if sort is None and top is not None else sort, by)
    if output_format is UsageFormat.PARQUET and sys.stdout.isatty():
        raise UsageError("parquet is no text; send it to a file: sluice usage --format parquet > usage.parquet")
    delta = settings.delta
    # pyarrow takes half a second to import, and few commands need it
    from sluice_insight.reports import usage as report
    from sluice_insight.reports.span import read_span
    from sluice_reading.query import Tables
    from sluice_reading.times import from_ms

    now = datetime.now(UTC)
    span = read_span(start, end, now=now, default=timedelta(days=1))
    known = _tenants(settings, by, tenants)
    tables = Tables(delta.decisions, delta.quotas, delta.storage_options)
    found, left_out = report.usage(tables, span, by, per, known, settings.kafka)
    if sort is not None:
        found = report.ranked(found, sort, top)
    is_present = end is None and by is not By.TOPIC and output_format is UsageFormat.TABLE
    in_force = _in_force(settings, by, _names(found, report.NAMES[by]), now) if is_present else []
    _print(found, output_format, sort, in_force)
    if text := left_out.text():
        typer.echo(f"sluice: {text}", err=True)
    if len(found) or text:
        if by is By.USER and len(found) and not any(found["user"].to_pylist()):
            typer.echo("sluice: no request has a user; --by client has the client-ids", err=True)
        say_of_then(delta, from_ms(span.end_ms))
    elif by is By.TOPIC and len(report.usage(tables, span, By.USER, Per.SPAN, known)[0]):
        typer.echo(f"sluice: {_NO_TOPIC}", err=True)
    else:
        say_no_rows(delta, delta.decisions)


def _default_by(settings: Settings) -> By:
    """The name that most quotas in force are set on."""
    from sluice_insight.whatif.whose import Whose, whose_of

    return By.USER if Whose.USER in whose_of(quotas_in_force(settings)) else By.CLIENT


def _checked_sort(sort: str | None, by: By) -> str | None:
    """The amount to sort by. Raises UsageError for one that the rows don't have."""
    known = TOPIC_SORTS if by is By.TOPIC else SORTS
    if sort is not None and sort not in known:
        raise UsageError(f"--sort is {sort!r}; expected one of {', '.join(known)}")
    return sort


def _names(found: "Table", columns: Sequence[str]) -> list[tuple[str, ...]]:
    return list(zip(*(found[name].to_pylist() for name in columns), strict=True))


def _print(found: "Table", output_format: UsageFormat, sort: str | None, in_force: Sequence[str]) -> None:
    """Print usage, with a column of what is in force if there is anything."""
    if output_format is UsageFormat.PARQUET:
        import pyarrow.parquet as pq

        pq.write_table(found, sys.stdout.buffer)
        return
    from sluice_reading.times import from_ms

    starts = map(from_ms, found["start"].cast("int64").to_pylist())
    columns: list[Iterable[Any]] = [starts, *(column.to_pylist() for column in found.columns[1:])]
    names = found.column_names
    if any(in_force):
        columns, names = [*columns, in_force], [*names, "in force"]
    print_rows(output_format, names, zip(*columns, strict=True), _SHOWN, _least(sort), NAMES)


def _in_force(settings: Settings, by: By, names: Sequence[tuple[str, ...]], now: datetime) -> list[str]:
    """The hold of each of these users, clients or tenants, or else its limits that give way now; "" for neither."""
    from sluice_insight.row_marks import RowMarks
    from sluice_insight.whatif.overrides import last_overrides
    from sluice_reading.query import Tables
    from sluice_reading.times import to_ms

    delta, now_ms = settings.delta, to_ms(now)
    said = last_overrides(delta.overrides, delta.storage_options, now_ms)
    if not any(record.overrides for record in said.values()):
        return []
    tables, lately = Tables(delta.decisions, delta.quotas, delta.storage_options), now_ms - _HEARD_MS
    heartbeats = f"FROM decisions WHERE api = '{HEARTBEAT_API}' AND timestamp_ms > {lately}"
    heard = tables.rows(f"SELECT DISTINCT instance {heartbeats}")
    marks = RowMarks(said, Quotas(quotas_in_force(settings)), [instance for (instance,) in heard], now_ms)
    if by is By.TENANT:
        return [marks.of_client("", "", tenant) for (tenant,) in names]
    return [marks.of_client(user, *(client_id or [""])) for user, *client_id in names]


_HEARD_MS = 60_000
"""The newest decisions whose gateways count as alive; the table is some seconds behind."""

_NO_TOPIC = (
    "no decision of this span names a topic: brokers don't, and proxies do where a quota is set on topics;"
    " --by client has the bytes"
)


def _tenants(settings: Settings, by: By, file: Path | None) -> Tenants:
    """The tenants to sum up by: those of a file, or of the quotas in force. Raises UsageError if there are none."""
    if by is not By.TENANT:
        if file is not None:
            raise UsageError(f"--tenants FILE is given with --by {by}; expected --by tenant")
        return Tenants()
    entries = quotas_in_force(settings) if file is None else quotas_of_file(file)
    tenants = Quotas(entries).tenants
    if not tenants:
        raise UsageError(NO_TENANT)
    return tenants


def _name(name: str | None) -> str:
    return short(name or "", MAX_NAME) or NO_NAME


_SHOWN: dict[str, Callable[[Any], str]] = {
    "user": _name,
    "client_id": _name,
    "start": lambda at: at.strftime("%Y-%m-%d %H:%M"),
    "bytes_in": lambda size: quantity(size, "B"),
    "bytes_out": lambda size: quantity(size, "B"),
    "request_time_ms": duration,
    "throttled_ms": duration,
    "share": percent,
    "in force": str,
}
"""The form of a column's values in a table."""

NAMES = ("user", "client_id", "tenant", "topic")
"""The columns that a narrow terminal cuts."""

_LEAST = (
    *("mutations", "request_time", "requests", "throttled_requests", "throttled", "bytes_out", "bytes_in"),
    *("share", "start"),
)
"""The columns that it has no room for, the first of these first; those of the amount that ranks are kept longest."""


def _least(sort: str | None) -> list[str]:
    from sluice_insight.reports.usage import AMOUNTS  # slow to import

    kept = () if sort is None else [name.removesuffix("_ms") for name in AMOUNTS[sort]]
    return sorted(_LEAST, key=lambda name: name in kept)


def slo(
    by: Annotated[By, typer.Option("--by", help="Count for each client, or for all members of a tenant.")] = By.CLIENT,
    start: Annotated[str | None, from_option("7 days")] = None,
    end: ToOption = None,
    objective_minutes: Annotated[
        float, typer.Option("--objective-minutes", help="Minutes a week that a client may be throttled.", min=0)
    ] = 5.0,
    worst: Annotated[int, typer.Option("--worst", help="Most clients to list, the worst first.", min=0)] = 10,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    config: ConfigOption = None,
) -> None:
    """Count throttled minutes a week by client or tenant, and the share of them within an objective.

    A minute with several waits counts once. The recorded part of the span is scaled to a week. Brokers and
    controllers don't count.
    """
    if by not in (By.CLIENT, By.TENANT):
        raise UsageError(f"--by is {by}; expected client or tenant")
    settings = job_settings(config)
    delta, tenants = settings.delta, _tenants(settings, by, None) if by is By.TENANT else None
    # pyarrow takes half a second to import, and few commands need it
    from sluice_insight.reports.slo import slo as report
    from sluice_insight.reports.span import read_span
    from sluice_reading.query import Tables
    from sluice_reading.times import from_ms

    now = datetime.now(UTC)
    span = read_span(start, end, now=now, default=timedelta(days=7))
    tables = Tables(delta.decisions, delta.quotas, delta.storage_options)
    found = report(tables, span, objective_minutes, worst, tenants)
    if not found.clients:
        say_no_rows(delta, delta.decisions)
    if json_output:
        answer = {
            "from": from_ms(span.start_ms),
            "to": from_ms(span.end_ms),
            "objective_minutes": objective_minutes,
            f"{by}s": found.clients,
            "within": found.within,
            "share": found.share,
            "recorded_from": None if found.first_ms is None else from_ms(found.first_ms),
            "recorded_to": None if found.last_ms is None else from_ms(found.last_ms),
            "brokers_and_controllers": found.left_out,
            "worst": [client._asdict() for client in found.worst],
        }
        print_json(answer)
        return
    share = "" if found.share is None else f" ({100 * found.share:.2f} %)"
    within = f"{found.within} of {found.clients} {by}s{share}"
    typer.echo(f"{within} were throttled {objective_minutes:g} minutes a week or less")
    if found.first_ms is not None:
        recorded = duration(60_000 * found.recorded_minutes)
        left_out = f"; {found.left_out} brokers and controllers left out" if found.left_out else ""
        since = time_text(from_ms(found.first_ms))
        typer.echo(f"recorded: {recorded} of the {duration(span.length_ms)} asked for, since {since}{left_out}")
    if found.worst:
        rows = (
            (
                counter_name(Tags(client.user, client.client_id, tenant=client.tenant)),
                f"{client.minutes_a_week:.1f}",
                str(client.minutes),
                percent(min(client.minutes / found.recorded_minutes, 1.0)),
            )
            for client in found.worst
        )
        columns = (by.value, "minutes a week", "seen", "of those recorded")
        print_lines(table_lines(columns, rows, terminal_width(), columns[:0:-1], columns[:1]))
