"""The command `sluice sql`: a query over the Delta tables, without Java."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from sluice.cli.format import OutputFormat, print_rows
from sluice.cli.options import ConfigOption, job_settings
from sluice.configs.settings import DeltaSettings

TABLES = ("decisions", "quota_metrics", "dead_letters", "unreadable", "quotas", "overrides")
"""Settings in section `delta` with a table's path; queries know the table by the same name."""

_FRESH = timedelta(minutes=1)
"""Age of the newest rows from which figures end before now; a gateway's heartbeats are rows too."""


def sql(
    query: Annotated[str, typer.Argument(help="A query: SELECT verdict, count(*) FROM decisions GROUP BY 1")],
    config: ConfigOption = None,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="Form of the output.")] = OutputFormat.TABLE,
) -> None:
    """Query the Delta tables in SQL (DataFusion's), without Java. Nothing can be changed.

    The tables are decisions, quota_metrics, dead_letters, unreadable, quotas and overrides; the view usage has a row
    for each decision with bytes_in, bytes_out, request_points and mutations. Double quotes are for names ("limit"),
    single ones for text ('alice'). A table cuts texts at 60 characters; CSV and JSON have them whole.
    """
    delta = job_settings(config).delta
    # pyarrow takes half a second to import, and few commands need it
    from sluice.sinks.tables.query import run_query, tables_of

    paths = {name: getattr(delta, name) for name in TABLES}
    rows = run_query(query, paths, delta.storage_options)
    print_rows(output_format, rows.columns, rows)
    if output_format is OutputFormat.TABLE:
        typer.echo(f"{rows.count} {'row' if rows.count == 1 else 'rows'}")
    audited = {name: path for name, path in paths.items() if name != "quotas"}
    if not rows.count and tables_of(query, audited):
        say_no_rows(delta, *audited.values())


def say_no_rows(delta: DeltaSettings, *paths: str) -> None:
    """Say on standard error how fresh these tables are, for an answer without rows."""
    from sluice.sinks.tables.query import last_written

    hint = no_rows_hint(last_written(paths, delta.storage_options), datetime.now(UTC))
    typer.echo(f"sluice: {hint}", err=True)


def say_of_then(delta: DeltaSettings, until: datetime) -> None:
    """Say on standard error where the figures end, if nothing was written in the last minute before a time."""
    from sluice.sinks.tables.query import last_written

    written_at = last_written([delta.decisions], delta.storage_options)
    if written_at is not None and min(until, datetime.now(UTC)) - written_at > _FRESH:
        at = written_at.isoformat(timespec="seconds")
        typer.echo(f"sluice: nothing was written since {at}, so this ends there; `sluice doctor` says why", err=True)


def no_rows_hint(written_at: datetime | None, now: datetime) -> str:
    """A hint for a query without rows: the tables follow the decisions by an audit batch or more.

    >>> no_rows_hint(datetime(2026, 1, 1, 11, 59, 30), datetime(2026, 1, 1, 12))
    'no rows; the audit query last wrote 30 s ago, at 2026-01-01T11:59:30: newer decisions are not in the tables yet'
    """
    if written_at is None:
        return "no rows; the audit query has written nothing yet"
    ago_s = (now - written_at).total_seconds()
    at = written_at.isoformat(timespec="seconds")
    return f"no rows; the audit query last wrote {ago_s:.0f} s ago, at {at}: newer decisions are not in the tables yet"
