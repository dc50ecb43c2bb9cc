"""Common parts of the commands in `scripts`: parsing, exit codes, the error line and signals."""

import signal
import sys
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

import typer
from kafka.errors import KafkaError
from typer.exceptions import TyperException

from sluice.cli.errors import UsageError
from sluice.cli.options import Command
from sluice.configs.errors import InvalidSettingsError
from sluice.state.errors import SluiceError

EXIT_FAILED = 1
EXIT_BAD_USAGE = 2
EXIT_INTERRUPTED = 130

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

OptionsT = TypeVar("OptionsT")


def run_command(
    name: str, options: type[OptionsT], run: Callable[[OptionsT], int], arguments: Sequence[str] | None = None
) -> int:
    """Parse a command line and return the exit code of `run`, or of its error, as `run_app` does.

    `options` is a dataclass: its fields are annotated as Typer's parameters are, and its docstring is the help text.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Command)(options)
    return run_app(name, app, arguments, lambda parsed: run(parsed) if isinstance(parsed, options) else 0)


def run_app(
    name: str,
    app: typer.Typer,
    arguments: Sequence[str] | None = None,
    code: Callable[[Any], int] = lambda code: int(code or 0),  # --help parses to an exit code too
) -> int:
    """Run a command line; return the exit code that `code` makes of its result, or that of its error.

    An error becomes one line on standard error. `arguments` are those of the process unless given. Exit codes: 1
    failed, 2 bad usage or settings, 130 interrupted.
    """
    if arguments is None:  # the process is this command's: what it has made is removed, whatever ends it
        interrupt_on_signals()
    app.info.context_settings = {"max_content_width": 120}
    app.pretty_exceptions_enable = False
    try:
        return code(app(args=arguments, prog_name=name, standalone_mode=False))
    except TyperException as error:
        print_error(name, error.format_message())
        return error.exit_code
    except InvalidSettingsError as error:
        print_error(name, error)
        return EXIT_BAD_USAGE
    except (SluiceError, KafkaError) as error:
        print_error(name, error)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print_error(name, "interrupted")
        return EXIT_INTERRUPTED


def check_known(what: str, given: Collection[str], known: Collection[str]) -> None:
    """Raises UsageError for a name that isn't known."""
    for unknown in (each for each in given if each not in known):
        raise UsageError(f"no {what} {unknown}; expected {', '.join(known)}")


def print_error(name: str, error: object) -> None:
    """Write the line `NAME: error: ...` to standard error."""
    print(f"{name}: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)


def interrupt_on_signals() -> None:
    """Make Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, once.

    Later signals are ignored, because they would cut the clean-up short that the first one starts.
    """

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        for number in _ENDING:
            signal.signal(number, lambda *_: None)  # not SIG_IGN, which child processes would inherit
        raise KeyboardInterrupt

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN or number is not signal.SIGHUP:  # as nohup has it
            signal.signal(number, interrupt)
