"""Where the time of a micro-batch goes: the driver's and the stages' milliseconds, and the CPU time of each part."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from sluice_demo.job import Json
from sluice_lab.benchmarks.events import ONE_CHARGE
from sluice_lab.benchmarks.latency import answered
from sluice_lab.benchmarks.report import Findings
from sluice_lab.benchmarks.rig import BenchmarkRig, Driver, Setup
from sluice_lab.benchmarks.scale import Scale
from sluice_lab.benchmarks.throughput import copy_padding

_FIRST_S = 10.0
"""A query starts in these seconds of requests; its first minute follows."""

_MEASURED_S = 30.0
_WARM_S = 120
_STAGES = ("stage 1", "stage 2")

Parts = dict[str, float]
"""Name of a part -> milliseconds of a micro-batch."""


def measure_micro_batch(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """The parts of a micro-batch of enforce and copy: in the first minute of a new Java, and once it is warm."""
    for rate_per_s in scale.rates or (1_000,):
        columns: dict[str, Parts] = {}
        setups = {name: _setup(rig, name, rate_per_s) for name in ("enforce", "copy")}
        for name, setup in setups.items():
            padding_bytes = copy_padding(rig, setups["enforce"], ONE_CHARGE) if name == "copy" else None
            first, warm = _measured(rig, scale, setup, rate_per_s, padding_bytes)
            columns |= {f"{name}, first minute": first, f"{name}, warm": warm}
        section = f"Micro-batch at {rate_per_s} requests/s"
        for part in dict.fromkeys(part for parts in columns.values() for part in parts):
            findings.add_line(section, part, {name: ("ms", [of.get(part, 0.0)]) for name, of in columns.items()}, {})


def _setup(rig: BenchmarkRig, name: str, rate_per_s: int) -> Setup:
    name = f"micro-batch-{name}-{rate_per_s}"
    return rig.setup(name, f"{name}-requests", ONE_CHARGE.quotas)


def _measured(
    rig: BenchmarkRig, scale: Scale, setup: Setup, rate_per_s: int, padding_bytes: int | None
) -> tuple[Parts, Parts]:
    """The parts in the first minute and later, of enforce, or of a copy whose records get the padding."""
    with rig.driver() as driver, rig.reader(setup.settings.topics.decisions) as reader:
        driver.session(setup.file, stock=padding_bytes is not None)
        if padding_bytes is None:
            driver.start("enforce", setup.file)
        else:
            driver.start_copy(setup.file, setup.file.parent / "copy", padding_bytes)
        ask = partial(answered, rig, scale, setup, reader, rate_per_s)
        ask(_FIRST_S)
        first = _sampled(driver, ask)
        ask(scale.length_s(_WARM_S))
        warm = _sampled(driver, ask)
        driver.stop()
    return first, warm


def _sampled(driver: Driver, ask: Callable[[float], object]) -> Parts:
    driver.sample()
    ask(_MEASURED_S)
    return parts_of(driver.sample())


def parts_of(sample: Json) -> Parts:
    """The medians of a sample's micro-batches, and its CPU time by micro-batch.

    >>> batch = {"triggerExecution": 160, "queryPlanning": 20, "addBatch": 130, "walCommit": 2, "commitOffsets": 3}
    >>> job = {"ms": 100, "stages_ms": [30, 60]}
    >>> sample = {"batches": [batch], "jobs": [job], "number": 10, "cpu_ms": {"tasks": 700, "java": 1500}}
    >>> parts = parts_of(sample)
    >>> parts["whole"], parts["planning"], parts["writer before its job"], parts["stage 1"], parts["CPU: tasks"]
    (160.0, 20.0, 30.0, 30.0, 70.0)
    """
    batches: Sequence[Mapping[str, float]] = sample["batches"]
    jobs: Sequence[Json] = sample["jobs"]
    job_ms = _median(job["ms"] for job in jobs)
    add_batch_ms = _median(batch.get("addBatch", 0) for batch in batches)
    whole_ms = _median(batch["triggerExecution"] for batch in batches)
    parts = {
        "whole": whole_ms,
        "newest offsets": _median(batch.get("latestOffset", 0) for batch in batches),
        "planning": _median(batch.get("queryPlanning", 0) for batch in batches),
        "offsets and commits written": _median(
            batch.get("walCommit", 0) + batch.get("commitOffsets", 0) for batch in batches
        ),
        "writer before its job": max(0.0, add_batch_ms - job_ms),
    }
    for number, stage in enumerate(_STAGES):
        parts[stage] = _median(job["stages_ms"][number] for job in jobs if len(job["stages_ms"]) > number)
    parts["rest of the job"] = max(0.0, job_ms - sum(parts[stage] for stage in _STAGES))
    cpu = {f"CPU: {part}": ms / max(1, sample["number"]) for part, ms in sample["cpu_ms"].items()}
    return parts | cpu


def _median(values: Iterable[float]) -> float:
    found = [float(value) for value in values]
    return statistics.median(found) if found else 0.0
