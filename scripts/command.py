"""What all commands in `scripts` share: parsing, exit codes, the error line and signals."""

import signal
import sys
from collections.abc import Callable, Sequence
from threading import Event
from types import FrameType
from typing import NoReturn, TypeVar

import typer
from kafka.errors import KafkaError
from typer.exceptions import TyperException

from sluice.configs.errors import InvalidSettingsError
from sluice.state.errors import SluiceError

EXIT_FAILED = 1
EXIT_BAD_USAGE = 2
EXIT_INTERRUPTED = 130

OptionsT = TypeVar("OptionsT")


def run_command(
    name: str, options: type[OptionsT], run: Callable[[OptionsT], int], arguments: Sequence[str] | None = None
) -> int:
    """Parse a command line and return the exit code of `run`, or of its error, which becomes one line on stderr.

    `options` is a dataclass: its fields are annotated as Typer's parameters are, and its docstring is the help text.
    `arguments` are those of the process unless given. Exit codes: 1 failed, 2 bad usage or settings, 130 interrupted.
    """
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 120},
    )
    app.command()(options)
    try:
        parsed = app(args=arguments, prog_name=name, standalone_mode=False)
        return run(parsed) if isinstance(parsed, options) else 0  # --help parses to an exit code
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


def print_error(name: str, error: object) -> None:
    """Write the line `NAME: error: ...` to standard error."""
    print(f"{name}: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)


def stop_on_signals() -> Event:
    """An event that Ctrl-C or SIGTERM sets; a second signal ends the process immediately."""
    stop = Event()

    def set_stop(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, set_stop)
    return stop


def interrupt_on_signals() -> None:
    """Make Ctrl-C and SIGTERM raise KeyboardInterrupt in the main thread, once.

    Later signals are ignored, because they would cut the clean-up short that the first one starts.
    """

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # not SIG_IGN, which child processes would inherit
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
