"""The command `sluice slo`: throttled minutes a week by client."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from sluice.cli.format import print_json
from sluice.cli.job_settings import job_settings
from sluice.cli.options import ConfigOption, ToOption, from_option
from sluice.cli.sql import say_no_rows
from sluice.insight.format import printable


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
    from sluice.insight.reports.tables import Tables

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
