"""Throughput of the enforce query against a stateless copy, and with tenants; and the audit query."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from deltalake import DeltaTable

from sluice.process.clock import now_ms
from sluice_demo.job import Json
from sluice_lab.benchmarks.events import ONE_CHARGE, Load, spread
from sluice_lab.benchmarks.report import Figure, Findings, at_least
from sluice_lab.benchmarks.rig import BenchmarkRig, Driver, Setup
from sluice_lab.benchmarks.scale import Scale, counted_runs, loads

_BARS = {"1 charge": 0.90, "2 charges": 0.85, "4 charges": 0.65}
_AUDIT_BAR = 0.70
_TOGETHER_BAR = 0.40
_TENANTS_BAR = 0.80
_UNIT = "requests/s"


def measure_throughput(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Enforce with 1, 2 and 4 charges a request, in turns with a copy whose records are as large as decisions."""
    with rig.driver() as job, rig.driver() as stock:
        for load in loads(scale.charges):
            section = f"Throughput, {load.name} a request"
            runs = counted_runs(scale, partial(_run, rig, scale, load, job, stock))
            enforce, copy = _add_sides(findings, section, scale, runs, ("enforce", "copy"))
            findings.compare(f"enforce / copy, throughput, {load.name}", enforce, copy, at_least(_BARS[load.name]))


def measure_tenants(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Enforce with 1 charge a request, in turns with a charge on the counter of the client's tenant beside it."""
    section = "Tenants, 1 charge a request"
    with rig.driver() as job:
        runs = counted_runs(scale, partial(_tenants_run, rig, scale, job))
    alone, beside = _add_sides(findings, section, scale, runs, ("alone", "with the tenant's"))
    findings.compare("with the tenant's charge / alone, throughput", beside, alone, at_least(_TENANTS_BAR))


def _tenants_run(rig: BenchmarkRig, scale: Scale, job: Driver, number: int) -> dict[str, Json]:
    """One run over the backlog with each of both loads."""
    requests, found = "tenants-requests", dict[str, Json]()
    for name, load in {"alone": ONE_CHARGE, "with the tenant's": ONE_CHARGE.in_tenants()}.items():
        setup = _setup(rig, scale, f"tenants-{load.charges}-{number}", requests, load)
        if number == 0 and not found:
            rig.publish_backlog(requests, load, spread(scale.events, scale.users))
            job.session(setup.file)
        job.start("enforce", setup.file)
        found[name] = job.drain(scale.events)
    return found


def _add_sides(
    findings: Findings, section: str, scale: Scale, runs: Sequence[Mapping[str, Json]], sides: Sequence[str]
) -> list[Figure]:
    """Add throughput and CPU time of each side; the figures of throughput."""
    figures = [
        findings.add(section, side, _UNIT, [scale.steady_events_per_s(run[side]["batches"]) for run in runs])
        for side in sides
    ]
    for side in sides:
        for part, name in {"java": "Java", "compiler": "of it Java's compiler", "python": "Python"}.items():
            spent_us = [run[side][f"{part}_cpu_s"] * 1e6 / scale.events for run in runs]
            findings.add(section, f"{side}: {name}", "CPU-µs/request", spent_us)
    return figures


def _run(rig: BenchmarkRig, scale: Scale, load: Load, job: Driver, stock: Driver, number: int) -> dict[str, Json]:
    """One run of enforce over the backlog, and one of the copy."""
    name = f"throughput-{load.charges}"
    setup = _setup(rig, scale, f"{name}-{number}", f"{name}-requests", load)
    if number == 0:
        rig.publish_backlog(setup.settings.topics.requests, load, spread(scale.events, scale.users))
        job.session(setup.file)
        stock.session(setup.file, stock=True)
    job.start("enforce", setup.file)
    enforce = job.drain(scale.events)
    stock.start_copy(setup.file, setup.file.parent / "copy", copy_padding(rig, setup, load))
    return {"enforce": enforce, "copy": stock.drain(scale.events)}


def measure_audit(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Decisions/s from the topics into Delta, the size of the files, and both queries at the same time.

    Both together take a backlog from the start until the tables have the last decision. They use all cores until then,
    so that is the rate which they sustain without a growing lag.
    """
    section = "Audit"
    with rig.driver() as driver:
        runs = counted_runs(scale, partial(_audit_run, rig, scale, driver))
    speeds = {name: [scale.steady_events_per_s(run[name]["batches"]) for run in runs] for name in ("enforce", "audit")}
    whole = {name: [scale.events / run[name]["took_s"] for run in runs] for name in ("both", "alone")}
    sizes = [run["audit"]["file_bytes"] for run in runs]
    enforce = findings.add(section, "enforce, 1 charge, for comparison", _UNIT, speeds["enforce"])
    audit = findings.add(section, "audit", "decisions/s", speeds["audit"])
    findings.add(section, "size of a file of decisions", "MB", [statistics.median(each) / 1e6 for each in sizes])
    findings.add(section, "a decision in Delta", "bytes", [sum(each) / scale.events for each in sizes])
    findings.compare("audit / enforce (1 charge), throughput", audit, enforce, at_least(_AUDIT_BAR))
    both = findings.add(section, "enforce and audit together, from the start", "decisions/s", whole["both"])
    alone = findings.add(section, "enforce alone, from the start", _UNIT, whole["alone"])
    name = "enforce and audit together / enforce alone, throughput from the start"
    findings.compare(name, both, alone, at_least(_TOGETHER_BAR))


def _audit_run(rig: BenchmarkRig, scale: Scale, driver: Driver, number: int) -> dict[str, Json]:
    """Both queries over a backlog one after the other, then both at once, and enforce alone from the start."""
    requests, found = "audit-requests", dict[str, Json]()
    setup = _setup(rig, scale, f"audit-{number}", requests, ONE_CHARGE)
    if number == 0:
        rig.publish_backlog(requests, ONE_CHARGE, spread(scale.events, scale.users))
        driver.session(setup.file)
    for query in ("enforce", "audit"):
        driver.start(query, setup.file)
        found[query] = driver.drain(scale.events)
    files = DeltaTable(setup.settings.delta.decisions).get_add_actions(flatten=True)
    found["audit"]["file_bytes"] = files["size_bytes"].to_pylist()
    for query, name in {"both": "both", "enforce": "alone"}.items():
        driver.start(query, _setup(rig, scale, f"audit-{name}-{number}", requests, ONE_CHARGE).file)
        found[name] = driver.drain(scale.events)
    return found


def copy_padding(rig: BenchmarkRig, setup: Setup, load: Load) -> int:
    """Bytes to add to the copy's record, so that it is as large as a decision on the same event."""
    _, event = load.event(100_000, 50_000, now_ms())
    return max(0, rig.mean_bytes(setup.settings.topics.decisions) - len(event) - len(',"padding":""'))


def _setup(rig: BenchmarkRig, scale: Scale, name: str, requests: str, load: Load) -> Setup:
    batch = {"max_offsets_per_trigger": scale.batch_events}
    return rig.setup(name, requests, load.quotas, enforce=batch, audit=batch)
