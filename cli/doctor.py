"""`sluice doctor`: the needs of the job on this machine, then the checks of extras, a line for each with its fix.

Checks of extras are entry points of the group `sluice.checks`: functions of the settings and of an `Ask`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from importlib.metadata import entry_points
from threading import Thread
from typing import TypeVar

from kafka.errors import KafkaConnectionError, KafkaError, LeaderNotAvailableError

from sluice.cli.errors import CheckError, CheckWarningError
from sluice.cli.start_checks import Check, start_checks
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.extras import JOB_PARTS, called
from sluice.configs.settings import Settings
from sluice.process.format import printable
from sluice.state.errors import SluiceError
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.runtime.job_parts import JobView, parts_of_extras

T = TypeVar("T")

Ask = Callable[[Mapping[str, Check], float, str], bool]
"""Begins these checks at once and shows a line for each; True if none fails.

One that has no answer after so many seconds fails with these words, and isn't waited for.
"""

_CHECKS = "sluice.checks"
_NOT_ASKED = (
    "warn  cluster: not asked for brokers, topics, gateways, checkpoints and tables;"
    " pip install 'sluice-kafka[toolbox]'"
)


def run_doctor(settings: Settings, show: Callable[[str], object] = print) -> int:
    """Show a line for each check, `ok`, `warn` or `FAIL`; returns 1 if one fails, else 0. Changes nothing."""
    passed: list[bool] = []

    def ask(checks: Mapping[str, Check], longest_s: float, why: str) -> bool:
        found = [_passes(name, answer, show) for name, answer in _begun(checks, longest_s, why)]
        passed.extend(found)
        return all(found)

    passed.extend(_passes(name, check, show) for name, check in start_checks(settings))
    points = sorted(entry_points(group=_CHECKS), key=lambda point: point.name)
    if not points:
        show(_NOT_ASKED)
    for point in points:
        try:
            called(point, object, settings, ask)
        except InvalidSettingsError as error:
            show(f"FAIL  {printable(' '.join(str(error).split()))}")
            passed.append(False)
    passed.append(_passes("parts of the job", partial(check_parts, settings), show))
    return 0 if all(passed) else 1


def check_parts(settings: Settings) -> str:
    """The parts of the job that extras give, made as the job makes them. Raises InvalidSettingsError."""
    parts_of_extras(JobView(settings, Quotas))
    return ", ".join(sorted(each.name for each in entry_points(group=JOB_PARTS))) or "none is of an extra"


def _passes(name: str, check: Check, show: Callable[[str], object]) -> bool:
    try:
        show(f"ok    {name}: {printable(check())}")  # heartbeats, which have names in them, may be forged
    except CheckWarningError as warning:
        show(f"warn  {name}: {printable(' '.join(str(warning).split()))}")
    except (SluiceError, OSError, KafkaError) as error:
        is_of_topics = isinstance(error, KafkaError) and not isinstance(error, KafkaConnectionError)
        words = unread_text(error, "describe topics, and read them") if is_of_topics else str(error)
        show(f"FAIL  {name}: {printable(' '.join(words.split()))}")
        return False
    return True


def unread_text(error: Exception, right: str) -> str:
    """The reason why a topic can't be read, and the right that a login may lack, if it has a leader."""
    cure = "" if isinstance(error, LeaderNotAvailableError) else f"; check that the user may {right}"
    return f"can't be read ({error}){cure}"


def _begun(checks: Mapping[str, Check], longest_s: float, why: str) -> Iterator[tuple[str, Check]]:
    """The same checks, which begin at once, in threads.

    A broker that hangs takes connections, and no time-out of the client bounds all that a check asks it.
    """
    deadline_s = time.monotonic() + longest_s
    found = {name: in_thread(check) for name, check in checks.items()}
    return ((name, partial(_answer, future, deadline_s, longest_s, why)) for name, future in found.items())


def in_thread(call: Callable[[], T]) -> "Future[T]":
    """The result of a call that runs in a thread of its own, which ends with the process."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # of any class: whoever asks for the answer gets it
            future.set_exception(error)

    Thread(target=run, name="sluice-doctor", daemon=True).start()
    return future


def _answer(future: "Future[str]", deadline_s: float, longest_s: float, why: str) -> str:
    wait([future], max(0.0, deadline_s - time.monotonic()))
    if not future.done():
        raise CheckError(f"no answer in {longest_s:.0f} s; {why}")
    return future.result()
