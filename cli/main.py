"""The command `sluice`: exit 0 ok, 1 failed, 2 bad usage or input; an error is one line."""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from sluice.cli.errors import BadInputError, CheckError, CheckWarningError, UsageError
from sluice.cli.extras import CommandLine
from sluice.cli.options import (
    BootstrapServersOption,
    Command,
    ConfigOption,
    JobConfigOption,
    command_group,
    job_settings,
    settings_file,
)
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.quotas import load_quotas_file
from sluice.configs.settings import load_settings, reach_stores, with_absolute_paths, with_bootstrap_servers
from sluice.kafka_io.errors import UnsupportedPropertyError
from sluice.process.format import printable
from sluice.process.surroundings import foreign_python, refused_output
from sluice.state.errors import InvalidQuotaError, SluiceError
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.runtime.log import OWNER_ONLY, configure_logging, leave_rotation_signals

log = logging.getLogger("sluice.job")

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

_ENDS_AS_ASKED = "the job ends: %s asked it to"

_JAVA_END_S = 10.0
"""Longest wait for Java to remove its temporary files."""

MOST_SHOWN = 2000
"""Longest error shown, in characters; a name in it may be of any length."""

app = command_group(
    "One Kafka quota for each client, whatever the number of brokers or gateways that serve it.",
    CommandLine,
    completes=True,
)
app.add_typer(
    command_group(
        "Alter, describe and explain the quotas. A running job reads each new version by itself.", CommandLine
    ),
    name="quotas",
)
app.add_typer(
    command_group(
        "Group users and client-ids into tenants. `sluice quotas alter --tenant NAME` sets the limits of one.",
        CommandLine,
    ),
    name="tenants",
)


@app.callback(invoke_without_command=True)
def show_version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """The version, if it is asked for."""
    if version:
        from importlib.metadata import version as installed_version  # slow to import, as a mail parser comes with it

        typer.echo(f"sluice {installed_version('sluice-kafka')}")
        raise typer.Exit


@app.command(cls=Command)
def run(
    config: JobConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
    status_file: Annotated[
        Path | None, typer.Option(help="JSON file for the job's state and last micro-batches.")
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option(help="Log file instead of standard error; rotated by size, 10 files kept.")
    ] = None,
    log_file_mib: Annotated[int, typer.Option(help="Size in MiB at which the log file is rotated.", min=1)] = 100,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Wait while another driver leads on the checkpoint, which has to be a URI."),
    ] = False,
) -> None:
    """Run the job: requests topic in, decisions topic and Delta tables out, until Ctrl-C or SIGTERM.

    A query that ends by itself is started again on its checkpoint. Exit codes: 0 after Ctrl-C or SIGTERM, 1 when the
    job can't start or the enforce query can't be kept going, 2 for bad usage or settings.
    """
    _on_signals(_end_at_once)
    os.umask(OWNER_ONLY)
    path, source = settings_file(config, running=False)  # a running demo has a job already
    settings = with_absolute_paths(with_bootstrap_servers(load_settings(path), bootstrap_servers))
    reach_stores(settings)
    if standby and "://" not in settings.enforce.checkpoint:
        raise UsageError(
            "--standby takes over a checkpoint in shared storage, but enforce.checkpoint is the path"
            f" {settings.enforce.checkpoint}; expected a URI"
        )
    configure_logging(log_file, log_file_mib)
    leave_rotation_signals(log_file)
    log.info("settings: %s", source)
    from sluice.cli.start_checks import start_checks
    from sluice.streaming.runtime.properties import start_java

    for name, check in start_checks(settings):  # before anything waits for a broker
        try:
            check()
        except CheckWarningError as warning:
            log.warning("%s: %s", name, warning)
        except OSError as error:  # of a file that the system refuses; the doctor says the same
            raise CheckError(str(error)) from error
    java = None if standby else start_java(settings)
    from sluice.streaming.job import Job  # Spark takes a second to import, while Java starts

    job = Job(settings, status_file, standby, java)
    _on_signals(job.request_stop)
    try:
        job.run()
        log.info(_ENDS_AS_ASKED, job.stopped_by)
    except Exception as error:
        _log_end(error, in_file=log_file is not None)
        raise
    finally:
        from sluice.streaming.java_bridge import end_java

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # the exit code is known; Python's own end would make it 143
        end_java(_JAVA_END_S)


def _on_signals(stop: Callable[[str], object]) -> None:
    """Let SIGTERM and Ctrl-C call it with their names."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop(signal.Signals(number).name))


def _end_at_once(by: str) -> None:
    log.info(_ENDS_AS_ASKED, by)
    sys.exit(0)  # there is nothing to end first yet


def _log_end(error: Exception, *, in_file: bool) -> None:
    """Log why the job ends, where standard error has less: it gets the line that `main` writes."""
    if not isinstance(error, SluiceError):
        log.error("the job ends by a fault of its own", exc_info=error)
    elif in_file:
        log.error("the job ends: %s", error)


@app.command(cls=Command)
def simulate(
    quotas: Annotated[Path, typer.Option(help="Quota YAML: a list of {entity: ..., quotas: ...}.")],
    events: Annotated[Path, typer.Option(help="Request events, one JSON object a line; - reads standard input.")],
    config: JobConfigOption = None,
) -> None:
    """Decide a file of events with the arithmetic of the job, without Spark or Kafka.

    Prints each decision as a line of JSON, in file order. Dead letters go to standard error.
    """
    settings = job_settings(config, running=False, say=False)  # only dead letters go to standard error
    in_force = Quotas(load_quotas_file(quotas))
    from sluice.streaming.enforce.simulation import Simulation

    try:
        stream = sys.stdin.buffer if str(events) == "-" else events.open("rb")
    except OSError as error:
        raise BadInputError(f"{events}: can't be read ({error.strerror}); give a file of request events") from error
    with stream:
        lines = (line.rstrip(b"\r\n") for line in stream)
        for record in Simulation(in_force, settings).decide(line for line in lines if line.strip()):
            target = sys.stdout if record.topic == settings.topics.decisions else sys.stderr
            target.write(record.value.decode() + "\n")


@app.command(cls=Command)
def doctor(config: ConfigOption = None, bootstrap_servers: BootstrapServersOption = None) -> None:
    """Check Java, jars, broker, topics, checkpoint and tables, a line for each."""
    settings = job_settings(config, bootstrap_servers)
    from sluice.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(settings))


UNEXPECTED = "Sluice didn't expect this:"
"""Begins the line of an error that no command knows."""

BAD_INPUT = (InvalidSettingsError, InvalidQuotaError, BadInputError, UnsupportedPropertyError)
"""Errors that end a command with exit code 2."""


def main() -> None:
    """Run the command line; every error is one line on standard error."""
    _check_surroundings()
    try:
        code = app(standalone_mode=False) or 0
        sys.stdout.flush()  # here, where an error is one line
        sys.exit(code)
    except TyperException as error:
        _fail(error.format_message().replace(": Value error, ", ": ", 1), error.exit_code)  # pydantic's words
    except BAD_INPUT as error:
        _fail(str(error), EXIT_BAD_INPUT)
    except SluiceError as error:
        _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has closed the pipe
        sys.exit(EXIT_FAILED)
    except (KeyboardInterrupt, Abort):
        _fail("interrupted", 130)
    except Exception as error:  # a fault of Sluice's own, if nothing around it is: the place is enough for a report
        unknown = f"{UNEXPECTED} {type(error).__name__} at {_place(error)}: {error}; please report it"
        _fail(refused_output(error) or foreign_python() or unknown, EXIT_FAILED)


def _place(error: Exception) -> str:
    """The innermost line of Sluice's code that an error came from, such as `cli/top.py:12`."""
    lines = ((str(frame.f_globals.get("__name__")), line) for frame, line in walk_tb(error.__traceback__))
    own = [(name.removeprefix("sluice."), line) for name, line in lines if name.startswith(("sluice.", "sluice_"))]
    return ", ".join(f"{name.replace('.', '/')}.py:{line}" for name, line in own[-1:])


def _check_surroundings() -> None:
    """End the process if a name isn't UTF-8, of which Python has surrogates, or its working directory is gone."""
    if (odd := next((each for each in sys.argv if re.search("[\ud800-\udfff]", each)), None)) is not None:
        if sys.getfilesystemencoding() != "utf-8":
            cure = f"this Python reads them as {sys.getfilesystemencoding()}: set LC_ALL=C.UTF-8 and no PYTHONUTF8"
        else:
            cure = "check the encoding of the terminal or script"
        _fail(f"{odd} isn't UTF-8, as all names are; {cure}", EXIT_BAD_INPUT)
    try:
        os.getcwd()
    except OSError as error:
        _fail(f"the working directory was removed, or can't be read ({error.strerror}); go to another one: cd /", 1)


def _fail(message: str, code: int) -> None:
    logging.shutdown()
    print(f"sluice: error: {printable(' '.join(message[:MOST_SHOWN].split()))}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
