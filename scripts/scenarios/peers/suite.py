"""A client's own tests, and what came of them."""

import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from sluice.state.errors import SluiceError

_GO_TEST = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)", re.MULTILINE)
_GO_OUTCOMES = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


class SuiteError(SluiceError):
    """A client's tests can't be run."""


class Outcome(NamedTuple):
    """`passed`, `failed` or `skipped`, and how long it took."""

    text: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.text} {self.seconds:.1f} s"


Outcomes = Mapping[str, Outcome]
"""By the name of the test."""


class Suite(ABC):
    """The tests of a client that need brokers, of which it wants `brokers` with these properties.

    A suite with a `port` looks for the brokers at the next ports. `expected_failures` are tests that pass at a broker
    and fail through the proxy, each with its reason.
    """

    client: ClassVar[str]
    brokers: ClassVar[int] = 1
    port: ClassVar[int] = 0
    properties: ClassVar[Mapping[str, str]] = {}
    expected_failures: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def prepare(self) -> None:
        """Download and build them. Raises SluiceError."""

    @abstractmethod
    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:
        """Run them, or those that the regular expression `tests` finds, against `servers`; `log` gets their output."""


def run_go(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Outcomes:
    """The outcomes of the tests of a Go program; subtests aren't told. Raises SuiteError if there are none."""
    with log.open("w") as output:
        subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(errors="replace")
    outcomes = {name: Outcome(_GO_OUTCOMES[word], float(took)) for word, name, took in _GO_TEST.findall(text)}
    if not outcomes:
        raise SuiteError(f"no test has run: {(text.strip().splitlines() or ['no message'])[-1]}; all of it: {log}")
    return outcomes
