"""The command `sluice console`: a web page of clients, their limits, usage and waits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.options import BootstrapServersOption, ConfigOption, job_settings
from sluice.configs.capacity import broker_limits
from sluice.configs.settings import Settings

if TYPE_CHECKING:
    from sluice_insight.console.server import Sources


def console(
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8089,
    address: Annotated[str, typer.Option(help="Address to listen on; all but loopback need a token.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(help="Access token. Prefer --token-file, which keeps it out of the process list.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token in its first line.")] = None,
    max_clients: Annotated[
        int, typer.Option(help="Counters kept; the least recently charged go first.", min=1, max=5_000_000)
    ] = 200_000,
) -> None:
    """Show clients, their limits, usage and waits on a web page, until Ctrl-C or SIGTERM; prints its address.

    Reads the topics of decisions, limits and dead letters and the Delta tables, and changes nothing.
    """
    settings = job_settings(config, bootstrap_servers)
    from sluice_insight.console.server import ConsoleOptions, console_facts, console_server, running, token_of

    options = ConsoleOptions(address, port, token_of(token, token_file), max_clients)
    facts, readers = console_facts(_sources(settings), options)
    server = console_server(facts, options)  # before a reader logs anything: a port in use is one line
    with running(readers):
        typer.echo(f"Sluice console: {server.url}")
        server.serve()


def _sources(settings: Settings) -> "Sources":
    from sluice.streaming.checkpoint.folder import Checkpoint, is_locked
    from sluice_insight.console.server import Sources
    from sluice_reading.query import Tables

    checkpoint = Checkpoint(settings.enforce.checkpoint)

    return Sources(
        dict(settings.kafka),
        settings.topics,
        settings.quota,
        Tables(settings.delta.decisions, settings.delta.quotas, settings.delta.storage_options),
        f"http://{settings.health.place}" if settings.health.port else None,
        settings.delta.overrides,
        broker_limits(settings.brokers),
        settings.gives_way,
        lambda: is_locked(checkpoint),
    )
