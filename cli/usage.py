"""The commands `sluice usage`, for chargeback, and `sluice slo`: throttled minutes a week by client."""

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.format import MAX_NAME, csv_safe, json_text, print_json, print_lines, table_lines, write_csv
from sluice.cli.options import ConfigOption, ToOption, from_option, job_settings
from sluice.cli.sql import say_no_rows
from sluice.insight.format import printable, short
from sluice.insight.reports.span import By, Per

if TYPE_CHECKING:
    from sluice.insight.reports.usage import Used


class UsageFormat(StrEnum):
    """Forms of output; json is one object a line."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


_PARQUET_ROWS = 100_000


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
    from sluice.insight.reports.span import read_span
    from sluice.insight.reports.tenants import Tenants, read_tenants
    from sluice.insight.sql import Tables

    now = datetime.now(UTC)
    span = read_span(start, end, now=now, default=timedelta(days=1))
    known = read_tenants(tenants) if tenants is not None else Tenants()
    tables = Tables(delta.decisions, delta.quotas, delta.storage_options)
    rows = report.usage(tables, span, by, per, known)
    amounts = report.TOPIC_AMOUNTS if by is By.TOPIC else report.Amounts._fields
    columns = ("start", *report.NAMES[by], *amounts)
    first = next(rows, None)
    found = itertools.chain([first], rows) if first is not None else ()
    _PRINTERS[output_format](columns, map(_row, found))
    if first is None:
        say_no_rows(delta, delta.decisions)


def _row(used: "Used") -> tuple[Any, ...]:
    from sluice.insight.reports.span import from_ms

    return (from_ms(used.start_ms), *used.names, *used.amounts)


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return csv_safe(value) if isinstance(value, str) else value


def _csv(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    write_csv(columns, ([_cell(value) for value in row] for row in rows), sys.stdout)


def _json(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    for row in rows:
        sys.stdout.write(json_text(dict(zip(columns, row, strict=True))) + "\n")


def _table(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    print_lines(table_lines(columns, ([_shown(value) for value in row] for row in rows)))


def column_is_text(name: str) -> bool:
    """True for a column of times or names, false for one of amounts."""
    return name in ("start", "user", "client_id", "tenant", "topic")


def _shown(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, float):
        return f"{value:.0f}"
    return short(str(value), MAX_NAME)


def _parquet(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, pa.DataType] = {name: pa.string() if column_is_text(name) else pa.int64() for name in columns}
    types |= {"start": pa.timestamp("ms", "UTC")}
    if "request_time_ms" in types:
        types["request_time_ms"] = pa.float64()
    schema = pa.schema(types)
    with pq.ParquetWriter(sys.stdout.buffer, schema) as writer:
        for batch in _batches(rows):
            values = [dict(zip(columns, row, strict=True)) for row in batch]
            writer.write_table(pa.Table.from_pylist(values, schema=schema))


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterable[list[tuple[Any, ...]]]:
    iterator = iter(rows)
    return iter(lambda: list(itertools.islice(iterator, _PARQUET_ROWS)), [])


_PRINTERS: dict[UsageFormat, Callable[[Sequence[str], Iterable[tuple[Any, ...]]], None]] = {
    UsageFormat.TABLE: _table,
    UsageFormat.CSV: _csv,
    UsageFormat.JSON: _json,
    UsageFormat.PARQUET: _parquet,
}


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
