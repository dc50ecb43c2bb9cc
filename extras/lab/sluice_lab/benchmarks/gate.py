"""`./scripts/bench-gate`: speed of this checkout against that of an earlier commit, on one machine in turns."""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from scripts.command import EXIT_BAD_USAGE, EXIT_FAILED, interrupt_on_signals, run_command
from sluice.state.errors import SluiceError
from sluice_lab.benchmarks.latency import CPU_OF_BATCH
from sluice_lab.benchmarks.report import shown, table
from sluice_proxy.processes import Child, last_line

_NEEDS = (
    "requirements.lock",
    "configs/jars.xml",
    "configs/jars.sha256",
    "*/broker-jars.sha256 extras/*/*/broker-jars.sha256",
)
"""Files that say which packages and jars a checkout needs, as patterns: of several one fits, as a file has moved."""

_MORE_TURNS = 2
"""Turns that follow where this side seems slower: a disturbance ends, a slower program stays slower."""

_BENCH = ("--only", "throughput", "--charges", "1", "--quick")
_LATENCY = ("--only", "latency", "--rates", "1000", "--quick")

_COUNTED = 3
_COLD_RUNS = 9
"""Runs of throughput over 150 000 requests until Java is warm: a new one decides its first million slower."""

_RUN_S = 1800.0
_END_S = 30.0


@dataclass(frozen=True)
class GateOptions:
    """Compare this checkout's speed with that of an earlier commit, both in turns on this machine.

    The harness gives the CPU time of the Python workers for a request with 1, 2 and 4 charges: the least of all turns.
    The bench gives throughput over the copy, the median of all runs, and the least CPU time of the query without Java's
    compiler, both after 1 500 000 requests; at 1 000 requests/s the least p50 and the least CPU time of a micro-batch,
    of a Java that is not warm. Exit code 1 if this checkout is worse by more than the limit.
    """

    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT",
            show_default="the newest tag; before there is one, where HEAD left main, or HEAD's parent",
            help="The commit to compare with.",
        ),
    ] = None
    limit: Annotated[float, typer.Option(min=0, help="Per cent that may be lost.")] = 5.0
    quick: Annotated[bool, typer.Option("--quick", help="A tiny load, to try the gate itself.")] = False


class GateError(SluiceError):
    """The two sides can't be compared."""


class OtherLayoutError(GateError):
    """A side has no such program, or one with other options."""


class Side(NamedTuple):
    """A checkout, and the Python that runs it."""

    name: str
    folder: Path
    python: Path

    def run(self, log: Path, module: str, *arguments: str) -> str:
        """The output of a module of this checkout. Raises GateError when it fails, OtherLayoutError."""
        for name in (module, module.replace("sluice_lab.", "scripts.")):  # an earlier commit's laboratory was there
            if any((path / f"{name.replace('.', '/')}.py").is_file() for path in self._paths):
                break
        else:
            raise OtherLayoutError(f"{self.name} has no {module}: there is nothing to compare it with")
        environment = (f"PYTHONPATH={':'.join(map(str, self._paths))}", "PYTHONHASHSEED=0")
        command = ("/usr/bin/env", "-C", str(self.folder), *environment, str(self.python), "-m", name, *arguments)
        child = Child(command, log)
        try:
            code = child.wait(_RUN_S)
        finally:
            child.end(signal.SIGTERM, _END_S)
        if code == EXIT_BAD_USAGE:
            raise OtherLayoutError(f"{self.name}'s {module} has other options: there is nothing to compare it with")
        if code:
            raise GateError(f"{self.name}: {module}: {last_line(log)}")
        return log.read_text()

    @property
    def _paths(self) -> Sequence[Path]:
        return self.folder, *((self.folder / "extras" / name) for name in ("demo", "lab", "native"))


@dataclass
class Compared:
    """A quantity of both sides. Of a cost the least value counts, of anything else the median."""

    name: str
    unit: str
    is_cost: bool
    before: list[float] = field(default_factory=list)
    now: list[float] = field(default_factory=list)

    @property
    def counting(self) -> tuple[float, float]:
        """The values that count, before and now."""
        chosen: Callable[[Iterable[float]], float] = min if self.is_cost else statistics.median
        return chosen(self.before), chosen(self.now)

    def is_worse(self, limit: float) -> bool:
        """True if more than `limit` per cent are lost.

        >>> Compared("CPU", "µs", True, [20.0, 30.0], [25.0, 21.0]).is_worse(5.0)
        False
        """
        if not self.before or not self.now:
            return False
        before, now = self.counting
        return now > before * (1 + limit / 100) if self.is_cost else now < before * (1 - limit / 100)

    def row(self, limit: float) -> tuple[str, ...]:
        """The row of the table."""
        before, now = self.counting
        verdict = f"WORSE by more than {limit:g} %" if self.is_worse(limit) else "ok"
        return self.name, *(f"{shown(value)} {self.unit}" for value in (before, now)), f"{now / before:.3f}", verdict


class Found(NamedTuple):
    """The values of a quantity in one turn of a side."""

    name: str
    unit: str
    is_cost: bool
    values: Sequence[float]


class Part(NamedTuple):
    """One of the programs: how often it runs on each side, and its run with a tiny load or not."""

    title: str
    turns: int
    measure: Callable[[Side, Path, bool], Sequence[Found]]


def harness(side: Side, folder: Path, quick: bool) -> list[Found]:
    """CPU time of a request in the Python workers, by charges."""
    size = ("--events", "1000", "--users", "1000", "--batches", "1") if quick else ()
    printed = side.run(folder / "harness.log", "sluice_lab.benchmarks.harness", *size)
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    name = "CPU of the workers, charges:"
    return [Found(f"{name} {each['charges']}", "µs/request", True, [each["total_us"]]) for each in found]


def bench(side: Side, folder: Path, quick: bool) -> list[Found]:
    """Throughput over the copy's, and CPU time of Java and Python without Java's compiler, of each warm run."""
    runs, batch_events = (1, 2_000) if quick else (_COLD_RUNS + _COUNTED, 50_000)
    size = ("--batch-events", str(batch_events), "--runs", str(runs))
    file = folder / "bench.json"
    side.run(folder / "bench.log", "sluice_lab.benchmarks.main", *_BENCH, *size, "--json", str(file))
    figures = json.loads(file.read_text())["figures"]
    values = {figure["name"]: figure["values"][-_COUNTED:] for figure in figures}
    pairs = zip(values["enforce"], values["copy"], strict=True)
    found = [Found("throughput over the copy, 1 charge", "", False, [enforce / copy for enforce, copy in pairs])]
    parts = [values.get(f"enforce: {part}") for part in ("Java", "Python", "of it Java's compiler")]
    if all(parts):  # the first benches don't have them
        spent = [java + python - compiler for java, python, compiler in zip(*parts, strict=True)]
        found.append(Found("CPU of the query, 1 charge", "µs/request", True, spent))
    return found


def latency(side: Side, folder: Path, quick: bool) -> list[Found]:
    """p50 at 1 000 requests/s, and the CPU time of a micro-batch without Java's compiler, of each run."""
    file = folder / "latency.json"
    runs = "1" if quick else "3"
    side.run(folder / "latency.log", "sluice_lab.benchmarks.main", *_LATENCY, "--runs", runs, "--json", str(file))
    values = {figure["name"]: figure["values"] for figure in json.loads(file.read_text())["figures"]}
    found = [Found("p50 at 1 000 requests/s", "ms", True, values["enforce, p50"])]
    if spent := values.get(CPU_OF_BATCH):  # earlier benches don't have it
        found.append(Found("CPU of a micro-batch, 1 000 requests/s", "ms", True, spent))
    return found


PARTS = (Part("harness", 3, harness), Part("throughput", 2, bench), Part("latency", 2, latency))


def compare(part: Part, before: Side, now: Side, options: GateOptions) -> list[Compared]:
    """The quantities of a part, in turns. Raises GateError naming the side on which it fails."""
    found: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(part.turns + _MORE_TURNS):
            if turn >= part.turns and not any(each.is_worse(options.limit) for each in found.values()):
                break
            for side in (now, before) if turn % 2 else (before, now):
                for each in part.measure(side, Path(folder), options.quick):
                    compared = found.setdefault(each.name, Compared(each.name, each.unit, each.is_cost))
                    (compared.now if side is now else compared.before).extend(each.values)
    return [each for each in found.values() if each.before and each.now]


def run_gate(options: GateOptions) -> int:
    """Compare, print the table, and return 1 if this checkout is slower."""
    commit = baseline(options.baseline)
    interrupt_on_signals()
    now, found = Side("this checkout", Path.cwd(), Path(sys.executable)), list[Compared]()
    with checked_out(commit) as before:
        for part in PARTS:
            print(f"bench-gate: {part.title} ...", file=sys.stderr, flush=True)
            try:
                found += compare(part, before, now, options)
            except OtherLayoutError as error:
                print(f"bench-gate: {error}")
    if not found:
        raise GateError(f"nothing of {before.name} can be compared")
    rows = (each.row(options.limit) for each in found)
    print("\n".join(table("Measure", before.name, now.name, "Ratio", "Verdict", rows=rows)))
    return EXIT_FAILED if any(each.is_worse(options.limit) for each in found) else 0


def baseline(given: str | None) -> str:
    """The short name of the commit to compare with. Raises typer.BadParameter for one that doesn't exist."""
    head = _git("rev-parse", "HEAD")
    for name in [given] if given else [_git("describe", "--tags", "--abbrev=0"), _git("merge-base", "main", "HEAD")]:
        commit = _git("rev-parse", "--short", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if commit and (given or not head.startswith(commit)):
            return commit
    if given:
        raise typer.BadParameter(f"{given!r} is no commit of this repository; see git log", param_hint="--baseline")
    return _git("rev-parse", "--short", "HEAD~1")


@contextmanager
def checked_out(commit: str) -> Iterator[Side]:
    """A commit in a worktree of its own, with this Python and these jars if it needs the same, else with its own."""
    _git("worktree", "prune")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "baseline"
        _git("worktree", "add", "--quiet", "--detach", str(folder), commit)
        try:
            side = Side(commit, folder, _prepared(folder))
            for module in ("sluice_native.build", "sluice.streaming.native.build"):  # an earlier commit's were there
                with suppress(OtherLayoutError):
                    side.run(Path(parent) / "native.log", module)
            yield side
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _prepared(folder: Path) -> Path:
    """The Python for a checkout: this one with this checkout's jars, or what its own set-up makes. Raises GateError."""
    if all(_contents(folder, name) == _contents(Path(), name) for name in _NEEDS):
        (folder / ".jars").symlink_to(Path(".jars").absolute())
        return Path(sys.executable)
    print(
        "bench-gate: the baseline needs other packages or jars: they are installed first", file=sys.stderr, flush=True
    )
    done = subprocess.run(["./scripts/setup"], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GateError(f"the baseline can't be set up: {done.stderr.strip()[-500:]}")
    return folder / ".venv/bin/python"


def _contents(folder: Path, pattern: str) -> list[bytes]:
    return [file.read_bytes() for each in pattern.split() for file in folder.glob(each)]


def _git(*arguments: str) -> str:
    """The output of git; nothing if it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)  # noqa: S607 - of the PATH
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(run_command("bench-gate", GateOptions, run_gate))
