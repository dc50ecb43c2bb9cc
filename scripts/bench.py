"""`./scripts/bench`: speed and scale against a stateless copy and plain loops, all in one run on one machine."""

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import yaml
from confluent_kafka import KafkaException
from rich.console import Console

from configs.errors import InvalidSettingsError
from scripts.bench_cpu import measure_lookup, measure_stages
from scripts.bench_events import LOADS
from scripts.bench_latency import measure_latency
from scripts.bench_place import BenchError, Place, Scale
from scripts.bench_report import Findings, Report
from scripts.bench_state import measure_known_entities, measure_state
from scripts.bench_throughput import measure_audit, measure_throughput
from state.errors import SluiceError
from streaming.java import find_java

Measure = Callable[[Place, Scale, Findings], None]

MEASURES: dict[str, tuple[str, Measure]] = {
    "a": ("throughput against the copy and the loops", measure_throughput),
    "b": ("latency against the copy", measure_latency),
    "c": ("cost of a request by known entities", measure_known_entities),
    "d": ("state and restart", measure_state),
    "e": ("CPU by stage", measure_stages),
    "f": ("audit", measure_audit),
    "g": ("quotas lookup", measure_lookup),
}

_PACKAGES = ("pyspark", "delta-spark", "pandas", "pyarrow", "numpy", "msgspec", "kafka-python", "confluent-kafka")


def main() -> int:
    """Measure, and show what was found: 0 when all was measured, 1 when not, 2 for bad usage."""
    parser = _parser()
    options = parser.parse_args()
    scale = _scale(options)
    signal.signal(signal.SIGTERM, _interrupt)
    environment, findings, console = _environment(scale), Findings(), Console()
    stolen_before, all_before = _cpu_ticks()
    try:
        with Place(scale.overrides) as place:
            code = _measure(options.only, place, scale, findings)
    except SluiceError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        code = 2 if isinstance(error, InvalidSettingsError) else 1
    except KeyboardInterrupt:
        print("bench: stopped; what was measured so far:", file=sys.stderr)
        code = 130
    environment["load average over 1 minute, after"] = f"{os.getloadavg()[0]:.1f}"
    stolen, ticks = _cpu_ticks()
    environment["CPU time that the host gave to others"] = f"{(stolen - stolen_before) / (ticks - all_before or 1):.1%}"
    if not findings.figures:
        return code
    report = Report(environment, findings)
    console.print(report.renderable())
    if options.json:
        options.json.write_text(report.to_json())
    if options.markdown:
        options.markdown.write_text(report.markdown())
    return code


def _measure(letters: list[str], place: Place, scale: Scale, findings: Findings) -> int:
    """1 if something could not be measured; the rest is measured all the same."""
    code = 0
    for letter in letters:
        title, measure = MEASURES[letter]
        start = time.monotonic()
        print(f"bench: ({letter}) {title} ...", file=sys.stderr, flush=True)
        try:
            measure(place, scale, findings)
        except (BenchError, KafkaException) as error:
            print(f"bench: error: ({letter}) {error}", file=sys.stderr)
            code = 1
        print(f"bench: ({letter}) took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return code


def _interrupt(_: int, __: object) -> NoReturn:
    raise KeyboardInterrupt


def _scale(options: argparse.Namespace) -> Scale:
    quick: bool = options.quick
    batch_events: int = options.batch_events or (10_000 if quick else 100_000)
    return Scale(
        runs=options.runs,
        warm_runs=1 if quick else 3,
        warm_s=3.0 if quick else 60.0,
        batch_events=batch_events,
        batches=3 if quick else 5,
        warm=1 if quick else 2,
        users=options.users or batch_events,
        known=options.known or ((1_000, 10_000, 50_000) if quick else (1_000, 10_000, 100_000, 1_000_000)),
        configured=(10, 1_000, 10_000) if quick else (10, 1_000, 100_000),
        rates_per_s=options.rates or ((1_000,) if quick else (100, 1_000, 5_000)),
        latency_s=4.0 if quick else 15.0,
        loads=tuple(load for load in LOADS if options.charges is None or load.charges in options.charges),
        overrides=_overrides(options.set),
    )


def _overrides(given: list[tuple[str, str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for section, name, value in given:
        sections.setdefault(section, {})[name] = value
    return sections


def _environment(scale: Scale) -> dict[str, str]:
    _, java = find_java()
    packages = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    return {
        "command": shlex.join(["./scripts/bench", *sys.argv[1:]]),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores of {_processor()}, {_memory_gib():.0f} GiB, {platform.system()}",
        "versions": f"Python {platform.python_version()}, Java {java}, Kafka {_kafka_version()}, {packages}",
        "load average over 1 minute, before": f"{os.getloadavg()[0]:.1f}",
        "scale": (
            f"{scale.runs} runs of {scale.batches} batches of {scale.batch_events} events, the first {scale.warm} of "
            f"which don't count; {scale.users} users"
        ),
        "settings changed": json.dumps(scale.overrides) if scale.overrides else "none",
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()  # noqa: S607 - git of the PATH

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "state", "streaming", "sinks", "configs")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with uncommitted changes" if changed else "")


def _cpu_ticks() -> tuple[int, int]:
    """CPU time that a virtual machine wasn't given, and all of it; no time at all where the kernel doesn't say."""
    stat = Path("/proc/stat")
    ticks = [int(number) for number in stat.read_text().split("\n", 1)[0].split()[1:9]] if stat.exists() else [0] * 8
    return ticks[-1], sum(ticks)


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _kafka_version() -> str:
    found = re.search(r'name="kafka_2\.13"[^>]*rev="([^"]+)"', Path("configs/jars.xml").read_text())
    return found[1] if found else "unknown"


def _parser() -> argparse.ArgumentParser:
    letters = "\n".join(f"  {letter}  {title}" for letter, (title, _) in MEASURES.items())
    parser = argparse.ArgumentParser(
        prog="./scripts/bench",
        description=f"Speed and scale, each against something else in the same run:\n{letters}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: some minutes instead of most of an hour")
    parser.add_argument("--only", type=_letters, default=list(MEASURES), metavar="a,b,...", help="only these")
    parser.add_argument("--runs", type=_positive, default=3, help="runs of every figure (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single run there")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the tables there, as in docs/performance.md"
    )
    parser.add_argument("--batch-events", type=_positive, help="events of a micro-batch (100000; quick 10000)")
    parser.add_argument("--users", type=_positive, help="distinct users (as many as events of a micro-batch)")
    parser.add_argument("--known", type=_numbers, metavar="N,...", help="numbers of known entities for c and d")
    parser.add_argument("--charges", type=_charges, metavar="N,...", help="charges a request for a and e (1,2,4)")
    parser.add_argument("--rates", type=_numbers, metavar="N,...", help="requests/s for b (100,1000,5000; quick 1000)")
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="SECTION.NAME=VALUE",
        help="a setting of the job, such as state.shards=64 or spark.spark.driver.memory=4g; can be repeated",
    )
    return parser


def _letters(text: str) -> list[str]:
    letters = [letter.strip() for letter in text.split(",")]
    for letter in letters:
        if letter not in MEASURES:
            raise argparse.ArgumentTypeError(f"{letter!r} is not right; expected some of {','.join(MEASURES)}")
    return letters


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not right; expected a whole number from 1")
    return int(text)


def _charges(text: str) -> tuple[int, ...]:
    known = {load.charges for load in LOADS}
    numbers = _numbers(text)
    if not known.issuperset(numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: expected some of {','.join(map(str, sorted(known)))}")
    return numbers


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_positive(part.strip()) for part in text.split(","))


def _setting(text: str) -> tuple[str, str, Any]:
    match = re.fullmatch(r"([a-z]+)\.([^=]+)=(.*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not right; expected one such as state.shards=64")
    return match[1], match[2], yaml.safe_load(match[3])


if __name__ == "__main__":
    sys.exit(main())
