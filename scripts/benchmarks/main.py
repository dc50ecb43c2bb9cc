"""`./scripts/bench`: speed and scale against a stateless copy and plain loops, all in one run on one machine."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
import yaml
from confluent_kafka import KafkaException
from rich.console import Console

from scripts.benchmarks.beside_kafka import measure_beside_kafka
from scripts.benchmarks.cpu import measure_lookup, measure_stages
from scripts.benchmarks.events import LOADS
from scripts.benchmarks.executors import measure_executors
from scripts.benchmarks.invented_names import measure_invented_names
from scripts.benchmarks.known_latency import measure_known_latency
from scripts.benchmarks.latency import measure_latency
from scripts.benchmarks.neighbours import measure_neighbours
from scripts.benchmarks.pages import measure_pages
from scripts.benchmarks.peers.measure import measure_peers
from scripts.benchmarks.plugin_cost import measure_plugin_cost
from scripts.benchmarks.report import Findings, Report
from scripts.benchmarks.rig import BenchmarkRig, Scale
from scripts.benchmarks.state import measure_known_entities, measure_state
from scripts.benchmarks.throughput import measure_audit, measure_throughput
from scripts.command import EXIT_FAILED, EXIT_INTERRUPTED, interrupt_on_signals, print_error, run_command
from sluice.configs.errors import InvalidSettingsError
from sluice.jvm.java import find_java
from sluice.state.errors import SluiceError

Numbers = Collection[int] | None
Measure = Callable[[BenchmarkRig, Scale, Findings], None]

MEASURES: dict[str, tuple[str, Measure]] = {
    "a": ("throughput against the copy and the loops", measure_throughput),
    "b": ("latency against the copy", measure_latency),
    "c": ("cost of a request by known entities", measure_known_entities),
    "d": ("state and restart", measure_state),
    "e": ("CPU by stage", measure_stages),
    "f": ("audit", measure_audit),
    "g": ("quotas lookup", measure_lookup),
    "h": ("beside Kafka: clients at full speed, with the plugin and with Kafka's own quotas", measure_beside_kafka),
    "i": ("peers: the same decisions in Kafka Streams and in Quix Streams", measure_peers),
    "j": ("cost of the broker plugin", measure_plugin_cost),
    "k": ("latency by known entities", measure_known_latency),
    "l": ("throughput by pages", measure_pages),
    "m": ("neighbours of a user with wide requests", measure_neighbours),
    "n": ("neighbours of a client that invents names", measure_invented_names),
    "o": ("throughput of a small Spark cluster", measure_executors),
}

_PACKAGES = ("pyspark", "delta-spark", "pandas", "pyarrow", "numpy", "msgspec", "kafka-python", "confluent-kafka")


def _chosen(text: str, known: Collection[str]) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if item not in known:
            raise typer.BadParameter(f"{item!r} is not right; expected some of {','.join(known)}")
    return items


def _letters(text: str) -> list[str]:
    return _chosen(text, MEASURES)


def _charges(text: str) -> list[int]:
    return [int(item) for item in _chosen(text, [str(load.charges) for load in LOADS])]


def _numbers(text: str) -> list[int]:
    if not re.fullmatch(r"\s*[1-9][0-9]*\s*(,\s*[1-9][0-9]*\s*)*", text):
        raise typer.BadParameter(f"{text!r} is not right; expected whole numbers from 1, such as 100,1000")
    return [int(item) for item in text.split(",")]


def _setting(text: str) -> tuple[str, str, Any]:
    match = re.fullmatch(r"([a-z]+)\.([^=]+)=(.*)", text)
    if not match:
        raise typer.BadParameter(f"{text!r} is not right; expected one such as state.pages=64")
    return match[1], match[2], yaml.safe_load(match[3])


def _list_option(parser: Callable[[str], list[int]], help_text: str) -> Any:
    return typer.Option(parser=parser, metavar="N,...", help=help_text)


@dataclass(frozen=True)
class BenchOptions:
    """Measure speed and scale, each against something else in the same run."""

    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: minutes instead of most of an hour.")] = False
    only: Annotated[
        Collection[str] | None,
        typer.Option(
            parser=_letters,
            metavar="a,b,...",
            help=f"Measure only these: {'; '.join(f'{letter} {title}' for letter, (title, _) in MEASURES.items())}.",
        ),
    ] = None
    runs: Annotated[int, typer.Option(min=1, help="Runs of every figure.")] = 3
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every single run to this file.")] = None
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tables to this file, as in docs/performance.md.")
    ] = None
    batch_events: Annotated[
        int | None, typer.Option(min=1, help="Events of a micro-batch.  [default: 100000; quick: 10000]")
    ] = None
    users: Annotated[int | None, typer.Option(min=1, help="Distinct users.  [default: events of a micro-batch]")] = None
    known: Annotated[Numbers, _list_option(_numbers, "Known entities for c, d, i and k.")] = None
    charges: Annotated[Numbers, _list_option(_charges, "Charges per request for a and e.  [default: 1,2,4]")] = None
    rates: Annotated[Numbers, _list_option(_numbers, "Requests/s for b.  [default: 100,1000,5000; quick: 1000]")] = None
    seconds: Annotated[
        int | None, typer.Option(min=70, help="Length of a run of h and n.  [default: 120 and 600; quick: 70]")
    ] = None
    every: Annotated[
        bool, typer.Option("--all", help="In h also Java and kafka-python clients, and 3 MB/s, one run of each.")
    ] = False
    settings: Annotated[
        list[Any] | None,
        typer.Option(
            "--set",
            parser=_setting,
            metavar="SECTION.NAME=VALUE",
            help="A setting of the job, such as state.pages=64 or spark.spark.driver.memory=4g; can be repeated.",
        ),
    ] = None

    def scale(self) -> Scale:
        """The sizes that these options ask for."""
        quick = self.quick
        batch_events = self.batch_events or (10_000 if quick else 100_000)
        overrides: dict[str, dict[str, Any]] = {}
        for section, name, value in self.settings or ():
            overrides.setdefault(section, {})[name] = value
        return Scale(
            runs=self.runs,
            warm_runs=1 if quick else 3,
            warm_s=3.0 if quick else 60.0,
            batch_events=batch_events,
            batches=3 if quick else 5,
            warm=1 if quick else 2,
            users=self.users or batch_events,
            known=tuple(self.known or ((1_000, 10_000, 50_000) if quick else (1_000, 10_000, 100_000, 1_000_000))),
            configured=(10, 1_000, 10_000) if quick else (10, 1_000, 100_000),
            rates_per_s=tuple(self.rates or ((1_000,) if quick else (100, 1_000, 5_000))),
            latency_s=4.0 if quick else 15.0,
            held_s=self.seconds or (70 if quick else 120),
            flood_s=self.seconds or (70 if quick else 600),
            every_client=self.every,
            loads=tuple(load for load in LOADS if self.charges is None or load.charges in self.charges),
            overrides=overrides,
        )


def run_bench(options: BenchOptions) -> int:
    """Measure, and show the findings, also those before an interruption; 0 when everything was measured, else 1."""
    scale, findings = options.scale(), Findings()
    environment = _environment(scale)
    interrupt_on_signals()
    psutil.cpu_times_percent()  # the percentages below are since this call
    try:
        with BenchmarkRig(scale.overrides) as rig:
            code = _measure(options.only or MEASURES, rig, scale, findings)
    except KeyboardInterrupt:
        print_error("bench", "interrupted; what was measured so far:")
        code = EXIT_INTERRUPTED
    environment |= _disturbance()
    if not findings.figures:
        return code
    report = Report(environment, findings)
    Console().print(report.renderable())
    if options.json:
        options.json.write_text(report.to_json())
    if options.markdown:
        options.markdown.write_text(report.markdown())
    return code


def _measure(letters: Collection[str], rig: BenchmarkRig, scale: Scale, findings: Findings) -> int:
    """Take the measurements; 1 if one of them fails, which doesn't keep the others from being taken."""
    code = 0
    for letter in letters:
        title, measure = MEASURES[letter]
        start = time.monotonic()
        print(f"bench: ({letter}) {title} ...", file=sys.stderr, flush=True)
        try:
            measure(rig, scale, findings)
        except InvalidSettingsError:  # of --set: the same in every measurement
            raise
        except (SluiceError, KafkaException) as error:
            print_error("bench", f"({letter}) {error}")
            code = EXIT_FAILED
        print(f"bench: ({letter}) took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return code


def _environment(scale: Scale) -> dict[str, str]:
    _, java = find_java()
    packages = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "command": shlex.join(["./scripts/bench", *sys.argv[1:]]),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores of {_processor()}, {memory_gib:.0f} GiB, {platform.system()}",
        "versions": f"Python {platform.python_version()}, Java {java}, Kafka {_kafka_version()}, {packages}",
        "load average over 1 minute, before": f"{os.getloadavg()[0]:.1f}",
        "scale": (
            f"{scale.runs} runs of {scale.batches} batches of {scale.batch_events} events, the first {scale.warm} of "
            f"which don't count; {scale.users} users"
        ),
        "settings changed": json.dumps(scale.overrides) if scale.overrides else "none",
    }


def _disturbance() -> dict[str, str]:
    """How much else the machine did during the measurements."""
    stolen_percent = getattr(psutil.cpu_times_percent(), "steal", 0.0)  # only Linux reports it
    return {
        "load average over 1 minute, after": f"{os.getloadavg()[0]:.1f}",
        "CPU time that the host gave to others": f"{stolen_percent:.1f}%",
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()  # noqa: S607 - git of the PATH

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "state", "streaming", "sinks", "configs")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with uncommitted changes" if changed else "")


def _processor() -> str:
    """The processor's name, which psutil doesn't know."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return found[1] if found else platform.machine()


def _kafka_version() -> str:
    found = re.search(r'name="kafka_2\.13"[^>]*rev="([^"]+)"', Path("scripts/testbed/broker-jars.xml").read_text())
    return found[1] if found else "unknown"


if __name__ == "__main__":
    sys.exit(run_command("bench", BenchOptions, run_bench))
