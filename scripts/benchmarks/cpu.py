"""CPU time by stage of the enforce query, and the cost of looking up quotas."""

import json
import os
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks.daemon import FOLDER_VARIABLE, LOOKUP
from scripts.benchmarks.events import TWO_CHARGES, Load, configured, spread
from scripts.benchmarks.report import Findings, at_most
from scripts.benchmarks.rig import BenchmarkRig, Scale, SparkDriver
from scripts.testbed.job import Json
from sluice.kafka_io.clock import now_ms
from sluice.state.quotas.entry import QuotaEntry

_SAMPLED: dict[str, Any] = {"spark.python.daemon.module": "scripts.benchmarks.daemon"}
_LOOKUP_BAR = 0.10
_JVM = "JVM, "


class ProfiledDriver:
    """Runs of a Spark driver whose Python workers are sampled."""

    def __init__(self, rig: BenchmarkRig, scale: Scale, name: str) -> None:
        self._rig, self._scale, self._name = rig, scale, name
        self._folder = rig.folder / f"{name}-profile"
        self._folder.mkdir()
        self._runs = 0

    def driver(self) -> SparkDriver:
        """A new driver process, whose workers write their profiles into this object's folder."""
        return self._rig.driver({FOLDER_VARIABLE: str(self._folder)})

    def run(self, driver: SparkDriver, requests: str, quotas: Sequence[QuotaEntry]) -> tuple[Counter[str], list[Json]]:
        """CPU seconds by stage, and the micro-batches, of one run over the backlog."""
        batch = {"max_offsets_per_trigger": self._scale.batch_events}
        setup = self._rig.setup(f"{self._name}-{self._runs}", requests, quotas, enforce=batch, spark=_SAMPLED)
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


def measure_stages(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(e) CPU time per request by stage, with 1, 2 and 4 charges, and the parts of a micro-batch's duration."""
    profiled = ProfiledDriver(rig, scale, "cpu")
    with profiled.driver() as driver:
        for load in scale.loads:
            requests = f"cpu-{len(load.quotas)}-requests"
            _publish(rig, scale, requests, load)
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


def measure_lookup(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(g) the lookup of quotas with few and with many configured entities, as a share of the batches' duration."""
    section, requests = "Quotas lookup, 2 charges a request", "lookup-requests"
    profiled = ProfiledDriver(rig, scale, "lookup")
    shares: dict[int, list[float]] = {count: [] for count in scale.configured}
    speeds: dict[int, list[float]] = {count: [] for count in scale.configured}
    _publish(rig, scale, requests, TWO_CHARGES)
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


def _publish(rig: BenchmarkRig, scale: Scale, requests: str, load: Load) -> None:
    rig.setup(f"{requests}-made", requests)  # makes the topic
    rig.publish(requests, load.backlog(spread(scale.events, scale.users), now_ms()))


def _batch_parts(findings: Findings, section: str, runs: Sequence[Sequence[Json]], warm: int) -> None:
    """Median duration in ms of the parts of a micro-batch that Spark reports."""
    parts = runs[0][-1]["stages_ms"]
    for part in sorted(parts, key=lambda name: -parts[name]):
        values = [statistics.median(batch["stages_ms"].get(part, 0) for batch in batches[warm:]) for batches in runs]
        findings.add(section, part, "ms/batch", values)
