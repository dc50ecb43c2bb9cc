"""CPU: which stage of the enforce query spends it, and what looking up quotas costs."""

import json
import os
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench_daemon import FOLDER_VARIABLE, LOOKUP
from scripts.bench_events import TWO_CHARGES, Load, configured, spread
from scripts.bench_place import Json, Place, Scale, SparkDriver, now_ms
from scripts.bench_report import Findings, at_most
from state.quota_entry import QuotaEntry

_SAMPLED: dict[str, Any] = {"spark.python.daemon.module": "scripts.bench_daemon"}
_LOOKUP_BAR = 0.10
_JVM = "JVM, "


class ProfiledDriver:
    """A Spark driver whose Python workers are sampled, and the readings so far."""

    def __init__(self, place: Place, scale: Scale, name: str) -> None:
        self._place, self._scale, self._name = place, scale, name
        self._folder = place.folder / f"{name}-profile"
        self._folder.mkdir()
        self._runs = 0

    def driver(self) -> SparkDriver:
        """The process to run in."""
        return self._place.driver({FOLDER_VARIABLE: str(self._folder)})

    def run(self, driver: SparkDriver, requests: str, quotas: Sequence[QuotaEntry]) -> tuple[Counter[str], list[Json]]:
        """CPU seconds by stage, and the micro-batches, of one run over the backlog."""
        batch = {"max_offsets_per_trigger": self._scale.batch_events}
        setup = self._place.setup(f"{self._name}-{self._runs}", requests, quotas, enforce=batch, spark=_SAMPLED)
        if self._runs == 0:
            driver.session(setup)
        self._runs += 1
        before = self._seconds()
        driver.start("enforce", setup)
        drained = driver.drain(self._scale.events)
        spent = self._seconds()
        spent.subtract(before)
        for group, seconds in drained["jvm_cpu_s"].items():
            spent[f"{_JVM}{group}"] += seconds
        return spent, drained["batches"]

    def _seconds(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for file in Path(self._folder).iterdir():
            total.update(json.loads(file.read_text()))
        return total


def measure_stages(place: Place, scale: Scale, findings: Findings) -> None:
    """(e) CPU time a request by stage, with 1, 2 and 4 charges, and the parts of a micro-batch's time."""
    profiled = ProfiledDriver(place, scale, "cpu")
    with profiled.driver() as driver:
        for load in scale.loads:
            requests = f"cpu-{len(load.quotas)}-requests"
            _publish(place, scale, requests, load)
            runs = [profiled.run(driver, requests, load.quotas) for _ in range(scale.runs)]
            section = f"CPU, {load.name} a request"
            stages = Counter[str]()
            for spent, _ in runs:
                stages.update(spent)
            del stages[LOOKUP]
            for stage, _ in stages.most_common():
                spent_us = [spent[stage] * 1e6 / scale.events for spent, _ in runs]
                findings.add(section, stage if stage.startswith(_JVM) else f"Python, {stage}", "µs/request", spent_us)
            _batch_parts(findings, f"Micro-batch, {load.name} a request", [batches for _, batches in runs], scale.warm)


def measure_lookup(place: Place, scale: Scale, findings: Findings) -> None:
    """(g) looking up quotas with few and many configured entities, as a share of the batches' time."""
    section, requests = "Quotas lookup, 2 charges a request", "lookup-requests"
    profiled = ProfiledDriver(place, scale, "lookup")
    shares: dict[int, list[float]] = {count: [] for count in scale.configured}
    speeds: dict[int, list[float]] = {count: [] for count in scale.configured}
    _publish(place, scale, requests, TWO_CHARGES)
    with profiled.driver() as driver:
        for _ in range(scale.runs):
            for count in scale.configured:
                spent, batches = profiled.run(driver, requests, configured(TWO_CHARGES, count))
                batch_s = sum(batch["batch_ms"] for batch in batches) / 1000.0
                shares[count].append(spent[LOOKUP] / (batch_s * (os.cpu_count() or 1)))
                speeds[count].append(scale.steady_events_per_s(batches))
    for count, values in shares.items():
        name = f"share of the batches' time, {count} configured"
        findings.add(section, name, "of 1", values, at_most(_LOOKUP_BAR))
    figures = [
        findings.add(section, f"enforce, {count} configured, profiled", "requests/s", values)
        for count, values in speeds.items()
    ]
    least, most = scale.configured[0], scale.configured[-1]
    findings.compare(f"{most} / {least} configured entities, throughput", figures[-1], figures[0])


def _publish(place: Place, scale: Scale, requests: str, load: Load) -> None:
    place.setup(f"{requests}-made", requests)  # makes the topic
    place.publish(requests, load.backlog(spread(scale.events, scale.users), now_ms()))


def _batch_parts(findings: Findings, section: str, runs: Sequence[Sequence[Json]], warm: int) -> None:
    """Median ms of the parts that Spark reports of a micro-batch."""
    parts = runs[0][-1]["stages_ms"]
    for part in sorted(parts, key=lambda name: -parts[name]):
        values = [statistics.median(batch["stages_ms"].get(part, 0) for batch in batches[warm:]) for batches in runs]
        findings.add(section, part, "ms/batch", values)
