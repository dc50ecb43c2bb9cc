"""The command `sluice`: exit 0 ok, 1 failed, 2 bad usage or input; an error is one line."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from configs.errors import InvalidSettingsError
from configs.quotas import load_quotas_file
from configs.settings import load_settings, with_bootstrap_servers
from state.errors import InvalidQuotaError, SluiceError
from state.resolution import Quotas
from streaming.errors import StateFileError
from streaming.log import configure_logging
from streaming.quotas_cli import app as quotas_app
from streaming.state_cli import app as state_app

log = logging.getLogger("sluice.job")

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings YAML; gives only what differs from configs/default.yaml.")
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(quotas_app, name="quotas")
app.add_typer(state_app, name="state")


@app.callback(invoke_without_command=True)
def help_without_command(context: typer.Context) -> None:
    """Kafka-style quotas, enforced in real time and cluster-wide on Spark."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(EXIT_BAD_INPUT)


class BadInputError(SluiceError):
    """A file named on the command line can't be used."""


@app.command()
def run(
    config: ConfigOption = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Kafka's address; overrides kafka.bootstrap.servers.")
    ] = None,
    status_file: Annotated[
        Path | None, typer.Option(help="Keep the job's state and last micro-batches in this JSON file.")
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option(help="Log to this file instead of standard error; rotated by size, 10 files kept.")
    ] = None,
    log_file_mib: Annotated[int, typer.Option(help="Size in MiB at which the log file is rotated.", min=1)] = 100,
) -> None:
    """Run the job: requests topic in, decisions topic and Delta tables out, until Ctrl-C or SIGTERM.

    A query that ends by itself is started again on its checkpoint. Exit codes: 0 after Ctrl-C or SIGTERM, 1 when the
    job can't start or the enforce query can't be kept going, 2 for bad usage or settings.
    """
    settings = with_bootstrap_servers(load_settings(config), bootstrap_servers)
    configure_logging(log_file, log_file_mib)
    from streaming.job import Job  # Spark takes a second to import; no other command needs it

    job = Job(settings, status_file)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: job.request_stop())
    try:
        job.run()
    except SluiceError as error:
        if log_file is not None:  # standard error gets the line that `main` writes
            log.error("the job ends: %s", error)
        raise


@app.command()
def simulate(
    quotas: Annotated[Path, typer.Option(help="Quota YAML: a list of {entity: ..., quotas: ...}.")],
    events: Annotated[Path, typer.Option(help="Request events, one JSON object a line; - reads standard input.")],
    config: ConfigOption = None,
) -> None:
    """Decide a file of events without Spark or Kafka, in file order, with the arithmetic of the job.

    Prints each decision as a line of JSON; events that can't be decided go to standard error as dead letters.
    """
    settings = load_settings(config)
    in_force = Quotas(load_quotas_file(quotas))
    from streaming.simulation import Simulation

    try:
        stream = sys.stdin.buffer if str(events) == "-" else events.open("rb")
    except OSError as error:
        raise BadInputError(f"{events}: can't be read ({error.strerror}); give a file of request events") from error
    with stream:
        lines = (line.rstrip(b"\r\n") for line in stream)
        for record in Simulation(in_force, settings).decide(line for line in lines if line.strip()):
            target = sys.stdout if record.topic == settings.topics.decisions else sys.stderr
            target.write(record.value.decode() + "\n")


@app.command()
def doctor(
    config: ConfigOption = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Kafka's address; overrides kafka.bootstrap.servers.")
    ] = None,
) -> None:
    """Check Java, jars, broker, topics, checkpoint and quotas table: a line each."""
    settings = with_bootstrap_servers(load_settings(config), bootstrap_servers)
    from streaming.doctor import run_doctor

    raise typer.Exit(run_doctor(settings))


@app.command()
def maintain(
    config: ConfigOption = None,
    retention_hours: Annotated[
        int | None,
        typer.Option(help="Keep files that older versions of the tables need for so long; overrides delta.", min=1),
    ] = None,
) -> None:
    """Compact the tables of decisions, metrics and dead letters, and remove files no longer needed.

    The job does it by itself every delta.maintain_every_hours. It may run meanwhile. Takes no Java.
    """
    settings = load_settings(config)
    from streaming.maintenance import maintain as maintain_tables

    for done in maintain_tables(settings.delta, retention_hours or settings.delta.retention_hours):
        typer.echo(str(done))


def main() -> None:
    """Run the command line; every error is one line on standard error."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except TyperException as error:
        _fail(error.format_message(), error.exit_code)
    except (InvalidSettingsError, InvalidQuotaError, BadInputError, StateFileError) as error:
        _fail(str(error), EXIT_BAD_INPUT)
    except SluiceError as error:
        _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; nothing to tell it
        sys.exit(EXIT_FAILED)
    except (KeyboardInterrupt, Abort):
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    logging.shutdown()
    print(f"sluice: error: {_printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _printable(text: str) -> str:
    """The text with everything escaped that a terminal would obey instead of showing it."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


if __name__ == "__main__":
    main()
