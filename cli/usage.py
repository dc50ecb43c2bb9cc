"""The commands `sluice usage`, for chargeback, and `sluice slo`: throttled minutes a week by client."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

from sluice.cli.errors import UsageError
from sluice.cli.format import MAX_NAME, print_json, table_lines
from sluice.cli.options import ConfigOption, ToOption, from_option, job_settings
from sluice.cli.sql import print_csv, print_json_lines, say_no_rows
from sluice.insight.format import printable, short
from sluice.insight.reports.span import By, Per


class UsageFormat(StrEnum):
    """Forms of output; json is one object a line."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def usage(
    by: Annotated[By, typer.Option("--by", help="Sum up by this.")] = By.USER,
    per: Annotated[Per, typer.Option("--per", help="Length of a period, in UTC.")] = Per.DAY,
    start: Annotated[str | None, from_option("a day")] = None,
    end: ToOption = None,
    tenants: Annotated[
        Path | None, typer.Option("--tenants", help="YAML: a list of {tenant, users, client_ids}, globs.")
    ] = None,
    output_format: Annotated[UsageFormat, typer.Option("--format", help="Form of the output.")] = UsageFormat.TABLE,
    config: ConfigOption = None,
) -> None:
    """Sum up usage by hour or day: requests, bytes, request time, mutations, throttled requests and their waits.

    Clients without any quota count too. Needs the Delta tables and no Java. Times are those of the events. In CSV a
    single quote stands before a name that a spreadsheet would take for a formula.
    """
    if (by is By.TENANT) != (tenants is not None):
        raise UsageError("--by tenant and --tenants FILE go together")
    if output_format is UsageFormat.PARQUET and sys.stdout.isatty():
        raise UsageError("parquet is no text; send it to a file: sluice usage --format parquet > usage.parquet")
    delta = job_settings(config).delta
    # pyarrow takes half a second to import, and few commands need it
    from sluice.insight.reports import usage as report
    from sluice.insight.reports.span import from_ms, read_span
    from sluice.insight.reports.tenants import Tenants, read_tenants
    from sluice.insight.sql import Tables

    span = read_span(start, end, now=datetime.now(UTC), default=timedelta(days=1))
    known = read_tenants(tenants) if tenants is not None else Tenants()
    found = report.usage(Tables(delta.decisions, delta.quotas, delta.storage_options), span, by, per, known)
    if output_format is UsageFormat.PARQUET:
        import pyarrow.parquet as pq

        pq.write_table(found, sys.stdout.buffer)
    else:
        starts = map(from_ms, found["start"].cast("int64").to_pylist())
        rows = zip(starts, *(column.to_pylist() for column in found.columns[1:]), strict=True)
        _PRINTERS[output_format](found.column_names, rows, sys.stdout)
    if not len(found):
        say_no_rows(delta, delta.decisions)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], out: TextIO) -> None:
    for line in table_lines(columns, ([_shown(value) for value in row] for row in rows)):
        out.write(line + "\n")


def _shown(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, float):
        return f"{value:.0f}"
    return short(str(value), MAX_NAME)


_PRINTERS = {UsageFormat.TABLE: _table, UsageFormat.CSV: print_csv, UsageFormat.JSON: print_json_lines}


def slo(
    start: Annotated[str | None, from_option("7 days")] = None,
    end: ToOption = None,
    objective_minutes: Annotated[
        float, typer.Option("--objective-minutes", help="Minutes a week that a client may be throttled.", min=0)
    ] = 5.0,
    worst: Annotated[int, typer.Option("--worst", help="Most clients to list, the worst first.", min=0)] = 10,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    config: ConfigOption = None,
) -> None:
    """Count throttled minutes a week by client, and the share of clients within an objective.

    A minute with several waits counts once. A span of another length is scaled to a week.
    """
    delta = job_settings(config).delta
    # pyarrow takes half a second to import, and few commands need it
    from sluice.insight.reports.slo import slo as report
    from sluice.insight.reports.span import from_ms, read_span
    from sluice.insight.sql import Tables

    now = datetime.now(UTC)
    span = read_span(start, end, now=now, default=timedelta(days=7))
    found = report(Tables(delta.decisions, delta.quotas, delta.storage_options), span, objective_minutes, worst)
    if not found.clients:
        say_no_rows(delta, delta.decisions)
    if json_output:
        answer = {
            "from": from_ms(span.start_ms),
            "to": from_ms(span.end_ms),
            "objective_minutes": objective_minutes,
            "clients": found.clients,
            "within": found.within,
            "share": found.share,
            "worst": [client._asdict() for client in found.worst],
        }
        print_json(answer)
        return
    share = "" if found.share is None else f" ({100 * found.share:.2f} %)"
    within = f"{found.within} of {found.clients} clients{share}"
    typer.echo(f"{within} were throttled {objective_minutes:g} minutes a week or less")
    for client in found.worst:
        whose = f"user '{client.user}', client-id '{client.client_id}'"
        typer.echo(printable(f"  {client.minutes_a_week:8.1f} minutes a week ({client.minutes} seen): {whose}"))
