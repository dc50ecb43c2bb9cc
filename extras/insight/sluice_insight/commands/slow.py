"""The command `sluice explain --slow`: one cause, and the line of time that shows it."""

from datetime import UTC, datetime

import typer
from kafka.errors import KafkaError

from sluice.configs.settings import Settings
from sluice.kafka_io.client import OF_COMMANDS
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.process.format import error_line
from sluice.state.quotas.entity import Tags
from sluice_insight.commands.freshness import say_no_rows, say_of_then
from sluice_insight.reports.span import Span, read_time
from sluice_reading.output import print_json, print_lines
from sluice_reading.text_tables import terminal_width
from sluice_reading.times import read_length, to_ms


def explain_slow(
    settings: Settings, user: str, client_id: str, at: str | None, since: str, *, json_output: bool
) -> None:
    """Print why a client was slow before a time, and its line of time; exit code 1 if nothing is known of it."""
    from sluice_insight.slow.line import Telemetry
    from sluice_insight.slow.sources import TELEMETRY_TOPIC, Recorded, slow_client, telemetry_in
    from sluice_insight.slow.words import json_answer, lines

    length_ms, now = read_length(since), datetime.now(UTC)
    until = now if at is None else read_time(at, now)
    span, told = Span(to_ms(until) - length_ms, to_ms(until)), list[Telemetry]()
    try:
        told = telemetry_in(settings.kafka | OF_COMMANDS, TELEMETRY_TOPIC, span)
    except (KafkaError, KafkaUnavailableError, OSError) as error:
        typer.echo(f"sluice: topic {TELEMETRY_TOPIC} can't be read: {error_line(error)}", err=True)
    answer = slow_client(Recorded.of(settings.delta), Tags(user, client_id), span, told)
    if json_output:
        print_json(json_answer(answer))
    else:
        said = lines(answer, terminal_width())
        print_lines(said if answer.evidence.is_known else [next(said)])  # else every row is empty
    if not answer.evidence.is_known:
        from sluice_insight.commands.explain import say_known
        from sluice_reading.query import Tables

        tables = Tables(settings.delta.decisions, settings.delta.quotas, settings.delta.storage_options)
        say_known(tables, [(user or None, client_id or None)], until, f"sent nothing in {since}")
        say_no_rows(settings.delta, settings.delta.decisions)
        raise typer.Exit(1)
    say_of_then(settings.delta, until)
