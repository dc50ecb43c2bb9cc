"""Sizes of a bench, which are the options of the command."""

import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from sluice_demo.job import Json, Sections
from sluice_lab.benchmarks.events import LOADS, Load
from sluice_lab.scenarios.closed_loop.situation import BrokersSituation

MEASURES = {
    "throughput": "requests/s against a copy that decides nothing, and CPU time of a request",
    "tenants": "requests/s with a tenant's counter beside the client's",
    "latency": "against the copy",
    "micro-batch": "where its time goes, in the first minute and later",
    "start": "seconds to the first decision, and those of Kafka Streams",
    "mutations": "wait of CreateTopics at a gateway, for the decision and by the share",
    "audit": "decisions/s into Delta",
    "beside-kafka": "clients of three libraries at full speed, with the plugin, proxies and Kafka's own quotas",
    "proxy-filter": "throughput and latency of a proxy that throttles nobody, with and without the filter",
    "many-clients": "CPU time of a broker with the plugin and 10 000 clients",
    "peers": "the same decisions in Kafka Streams, Quix Streams and a plain loop",
    "tracked": "latency by tracked entities",
    "storage": "latency by where checkpoints are",
    "neighbours": "latency beside a user with wide events",
    "invented-names": "latency beside a client that invents names",
    "gateway": "CPU time of the gateway client",
    "reports": "CPU time and memory of reports over a day",
}
"""Name of a measure -> its title."""

LIBRARIES = ("librdkafka", "java", "kafka-python")
"""Libraries of the clients of beside-kafka."""

_KINDS = {
    "own-quotas": BrokersSituation(own_quotas=True),
    "plugin": BrokersSituation(),
    "1-proxy": BrokersSituation(proxies=1),
    "2-proxies": BrokersSituation(proxies=2),
    "4-proxies": BrokersSituation(proxies=4),
}
ROWS = {
    f"{name}-{kind}": replace(situation, brokers=brokers)
    for name, brokers in {"1-broker": 1, "3-brokers": 3}.items()
    for kind, situation in _KINDS.items()
}
"""Row of beside-kafka -> its brokers and proxies."""


def chosen(text: str, known: Collection[str]) -> list[str]:
    """The items of a list with commas between. Raises typer.BadParameter for one that isn't known."""
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if item not in known:
            raise typer.BadParameter(f"{item!r} is not right; expected some of {','.join(known)}")
    return items


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


def _list(parser: Any, help_text: str, metavar: str = "N,...") -> Any:
    return typer.Option(parser=parser, metavar=metavar, help=help_text)


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


_NAMES = "NAME,..."
_TITLES = "; ".join(f"{name} ({title})" for name, title in MEASURES.items())


@dataclass(frozen=True)
class Scale:
    """Measure speed and scale, each against something else in the same run.

    Java compiles for minutes, which doesn't matter to a job that runs for months. So no run over a backlog counts until
    each side has decided 150 micro-batches, or compiles for less than 5 µs a request; nor do the first minute of
    latency, which is as much, and the first batches of each run.
    """

    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: minutes instead of hours, and Java is not warm.")
    ] = False
    only: Annotated[
        Collection[str] | None, _list(partial(chosen, known=MEASURES), f"Measure only these: {_TITLES}.", _NAMES)
    ] = None
    runs: Annotated[int, typer.Option(min=1, help="Runs of every figure.")] = 3
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every single run to this file.")] = None
    batch_events: Annotated[
        int, typer.Option(min=0, show_default="100000; quick: 10000", help="Events of a micro-batch.")
    ] = 0
    charges: Charges = None
    rates: Annotated[
        Sequence[int] | None, _list(_numbers, "Requests/s for latency.  [default: 100,1000,5000; quick: 1000]")
    ] = None
    seconds: Annotated[
        int,
        typer.Option(
            min=0,
            show_default="120, 600, 120 and 60; quick: 70, 70, 70 and 3",
            help="Length of a run of beside-kafka and invented-names, and of the time until Java is warm for"
            " micro-batch and for measures of latency.",
        ),
    ] = 0
    libraries: Annotated[
        Collection[str] | None,
        _list(
            partial(chosen, known=LIBRARIES),
            f"Libraries of the clients of beside-kafka: {', '.join(LIBRARIES)}.  [default: all]",
            _NAMES,
        ),
    ] = None
    rows: Annotated[
        Collection[str] | None,
        _list(
            partial(chosen, known=ROWS),
            f"Rows of beside-kafka, {next(iter(ROWS))} besides: {', '.join(ROWS)}.  [default: all]",
            _NAMES,
        ),
    ] = None
    settings: SettingsOfJob = None

    warm: int = field(init=False)
    """Batches of each run that don't count."""
    warm_s: float = field(init=False)
    """Seconds until Java is warm for latency, in a run that doesn't count: 150 micro-batches and more."""
    latency_s: float = field(init=False)
    users: int = field(init=False)
    """Distinct users, as many as events of a micro-batch."""
    events: int = field(init=False)
    """Events of one run over a backlog."""

    def __post_init__(self) -> None:
        """Fill in the defaults that depend on others."""
        object.__setattr__(self, "batch_events", self.batch_events or self.of(10_000, 100_000))
        object.__setattr__(self, "users", self.batch_events)
        object.__setattr__(self, "warm", self.of(1, 2))
        object.__setattr__(self, "warm_s", self.seconds or self.of(3, 60))
        object.__setattr__(self, "latency_s", self.of(4, 15))
        object.__setattr__(self, "events", self.batch_events * self.of(3, 5))

    def of(self, quick: int, usual: int) -> int:
        """One of two sizes."""
        return quick if self.quick else usual

    def length_s(self, usual: int) -> int:
        """Seconds of a run of beside-kafka or invented-names, or until micro-batch is warm."""
        return self.seconds or self.of(70, usual)

    def steady_events_per_s(self, batches: Sequence[Json]) -> float:
        """Median throughput of the batches after the warm ones."""
        speeds: list[float] = [batch["events"] * 1000.0 / batch["batch_ms"] for batch in batches[self.warm :]]
        return statistics.median(speeds)


_WARM_BATCHES = 150
_WARM_US = 5.0


def counted_runs(scale: Scale, take: Callable[[int], Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    """The runs over a backlog that count, each with the results of all sides; `take` is given the number of the run.

    Runs count once Java is warm on all sides: after 150 micro-batches, or when a run spends less than 5 µs a request on
    compiling. A quick bench takes one run before.
    """
    counted: list[Mapping[str, Json]] = []
    is_warm = False
    for number in count():
        found = take(number)
        if is_warm:
            counted.append(found)
        batches = (number + 1) * scale.events // scale.batch_events
        compiling_us = max(side["compiler_cpu_s"] for side in found.values()) * 1e6 / scale.events
        is_warm = is_warm or scale.quick or batches >= _WARM_BATCHES or compiling_us < _WARM_US
        if len(counted) == scale.runs:
            break
    return counted
