"""Sizes of a bench, which are the options of the command."""

import re
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from scripts.benchmarks.events import LOADS, Load
from scripts.testbed.job import Json, Sections

MEASURES = {
    "throughput": ("a", "requests/s against a copy that decides nothing"),
    "latency": ("b", "against the copy"),
    "cpu": ("e", "CPU time of a request"),
    "audit": ("f", "decisions/s into Delta"),
    "beside-kafka": ("h", "clients at full speed, with the plugin and with Kafka's own quotas"),
    "peers": ("i", "the same decisions in Kafka Streams and in Quix Streams"),
    "tracked": ("k", "latency by tracked entities"),
    "neighbours": ("m", "latency beside a user with wide requests"),
    "invented-names": ("n", "latency beside a client that invents names"),
    "gateway": ("p", "CPU time of the gateway client"),
}
"""Name of a measure -> its letter and title."""


def chosen(text: str, known: Collection[str]) -> list[str]:
    """The items of a list with commas between. Raises typer.BadParameter for one that isn't known."""
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if item not in known:
            raise typer.BadParameter(f"{item!r} is not right; expected some of {','.join(known)}")
    return items


def measure_names(text: str) -> list[str]:
    """The measures of `throughput,b`, by names or letters."""
    letters = {letter: name for name, (letter, _) in MEASURES.items()}
    return chosen(",".join(letters.get(item.strip(), item) for item in text.split(",")), MEASURES)


def _charges(text: str) -> list[int]:
    return [int(item) for item in chosen(text, [str(load.charges) for load in LOADS])]


def _numbers(text: str) -> list[int]:
    if not re.fullmatch(r"\s*[1-9][0-9]*\s*(,\s*[1-9][0-9]*\s*)*", text):
        raise typer.BadParameter(f"{text!r} is not right; expected whole numbers from 1, such as 100,1000")
    return [int(item) for item in text.split(",")]


def _setting(text: str) -> tuple[str, str, Any]:
    match = re.fullmatch(r"([a-z]+)\.([^=]+)=(.*)", text)
    if not match:
        raise typer.BadParameter(f"{text!r} is not right; expected one such as state.pages=64")
    return match[1], match[2], yaml.safe_load(match[3])


def _list(parser: Any, help_text: str) -> Any:
    return typer.Option(parser=parser, metavar="N,...", help=help_text)


Charges = Annotated[Sequence[int] | None, _list(_charges, "Charges a request.  [default: 1,2,4]")]
SettingsOfJob = Annotated[
    list[Any] | None,
    typer.Option(
        "--set",
        parser=_setting,
        metavar="SECTION.NAME=VALUE",
        help="A setting of the job, such as state.pages=64 or spark.spark.driver.memory=4g; can be repeated.",
    ),
]


def loads(charges: Sequence[int] | None) -> Sequence[Load]:
    """The loads with these charges a request, or all."""
    return [load for load in LOADS if charges is None or load.charges in charges]


def sections(settings: list[Any] | None) -> Sections:
    """Settings of the job, by section, of the option `--set`."""
    found: dict[str, dict[str, Any]] = {}
    for section, name, value in settings or ():
        found.setdefault(section, {})[name] = value
    return found


_TITLES = "; ".join(f"{name} ({title})" for name, (_, title) in MEASURES.items())


@dataclass(frozen=True)
class Scale:
    """Measure speed and scale, each against something else in the same run.

    Java compiles for minutes, which doesn't matter to a job that runs for months. So the first runs of throughput, the
    first minute of latency and the first batches of each run don't count.
    """

    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: minutes instead of most of an hour.")] = False
    only: Annotated[
        Collection[str] | None,
        typer.Option(parser=measure_names, metavar="NAME,...", help=f"Measure only these: {_TITLES}."),
    ] = None
    runs: Annotated[int, typer.Option(min=1, help="Runs of every figure.")] = 3
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every single run to this file.")] = None
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables to this file too.")] = None
    batch_events: Annotated[
        int, typer.Option(min=0, show_default="100000; quick: 10000", help="Events of a micro-batch.")
    ] = 0
    users: Annotated[int, typer.Option(min=0, show_default="events of a micro-batch", help="Distinct users.")] = 0
    known: Annotated[
        Sequence[int] | None, _list(_numbers, "Few and many tracked entities.  [default: 10000,1000000 or 50000]")
    ] = None
    charges: Charges = None
    rates: Annotated[
        Sequence[int] | None, _list(_numbers, "Requests/s for latency.  [default: 100,1000,5000; quick: 1000]")
    ] = None
    seconds: Annotated[
        int,
        typer.Option(
            min=0, show_default="120 and 600; quick: 70", help="Length of a run of beside-kafka and invented-names."
        ),
    ] = 0
    settings: SettingsOfJob = None

    warm: int = field(init=False)
    """Batches of each run that don't count."""
    warm_runs: int = field(init=False)
    """Runs of throughput that don't count."""
    warm_s: float = field(init=False)
    """Seconds of the first run of latency, which doesn't count."""
    latency_s: float = field(init=False)
    events: int = field(init=False)
    """Events of one run over a backlog."""

    def __post_init__(self) -> None:
        """Fill in the defaults that depend on others."""
        object.__setattr__(self, "batch_events", self.batch_events or self.of(10_000, 100_000))
        object.__setattr__(self, "users", self.users or self.batch_events)
        object.__setattr__(self, "warm", self.of(1, 2))
        object.__setattr__(self, "warm_runs", self.of(1, 3))
        object.__setattr__(self, "warm_s", self.of(3, 60))
        object.__setattr__(self, "latency_s", self.of(4, 15))
        object.__setattr__(self, "events", self.batch_events * self.of(3, 5))

    def of(self, quick: int, usual: int) -> int:
        """One of two sizes."""
        return quick if self.quick else usual

    def length_s(self, usual: int) -> int:
        """Seconds of a run of beside-kafka or invented-names."""
        return self.seconds or self.of(70, usual)

    def steady_events_per_s(self, batches: Sequence[Json]) -> float:
        """Median throughput of the batches after the warm ones."""
        speeds: list[float] = [batch["events"] * 1000.0 / batch["batch_ms"] for batch in batches[self.warm :]]
        return statistics.median(speeds)
