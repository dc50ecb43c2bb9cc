"""Throughput of the enforce query against a stateless copy, CPU time of a request, and the audit query."""

import statistics

from deltalake import DeltaTable

from scripts.benchmarks.events import ONE_CHARGE, Load, spread
from scripts.benchmarks.report import Findings, at_least
from scripts.benchmarks.rig import BenchmarkRig, Setup
from scripts.benchmarks.scale import Scale, loads
from scripts.testbed.job import Json
from sluice.kafka_io.clock import now_ms

_BARS = {"1 charge": 0.90, "2 charges": 0.75, "4 charges": 0.50}
_AUDIT_BAR = 0.70
_TOGETHER_BAR = 0.40
_UNIT = "requests/s"


def measure_throughput(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Enforce with 1, 2 and 4 charges a request, in turns with a copy whose records are as large as decisions."""
    with rig.driver() as job, rig.driver() as stock:
        for load in loads(scale.charges):
            requests, speeds = f"throughput-{load.charges}-requests", dict[str, list[float]]()
            for run in range(scale.warm_runs + scale.runs):
                setup = _setup(rig, scale, f"throughput-{load.charges}-{run}", requests, load)
                if run == 0:
                    rig.publish_backlog(requests, load, spread(scale.events, scale.users))
                    job.session(setup.file)
                    stock.session(setup.file, stock=True)
                job.start("enforce", setup.file)
                found = {"enforce": scale.steady_events_per_s(job.drain(scale.events)["batches"])}
                stock.start_copy(setup.file, setup.file.parent / "copy", copy_padding(rig, setup, load))
                found["copy"] = scale.steady_events_per_s(stock.drain(scale.events)["batches"])
                for name, speed in found.items() if run >= scale.warm_runs else ():
                    speeds.setdefault(name, []).append(speed)
            section = f"Throughput, {load.name} a request"
            enforce, copy = (findings.add(section, name, _UNIT, values) for name, values in speeds.items())
            name = f"enforce / copy, throughput, {load.name}"
            findings.compare(name, enforce, copy, at_least(_BARS[load.name]))


def measure_cpu(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """CPU time of a request with 1, 2 and 4 charges, and the parts of a micro-batch's duration as Spark reports them.

    A change of the hot path shows here first: other work on the machine disturbs CPU time far less than speed.
    """
    with rig.driver() as driver:
        for load in loads(scale.charges):
            requests, runs = f"cpu-{load.charges}-requests", list[Json]()
            for run in range(scale.warm_runs + scale.runs):
                setup = _setup(rig, scale, f"cpu-{load.charges}-{run}", requests, load)
                if run == 0:
                    rig.publish_backlog(requests, load, spread(scale.events, scale.users))
                    driver.session(setup.file)
                driver.start("enforce", setup.file)
                runs.append(driver.drain(scale.events))
            del runs[: scale.warm_runs]
            section = f"CPU, {load.name} a request"
            for part in ("java", "python"):
                spent_us = [run[f"{part}_cpu_s"] * 1e6 / scale.events for run in runs]
                findings.add(section, part.title(), "µs/request", spent_us)
            parts = runs[0]["batches"][-1]["stages_ms"]
            for part in sorted(parts, key=lambda name: -parts[name]):
                steady = [[batch["stages_ms"].get(part, 0) for batch in run["batches"][scale.warm :]] for run in runs]
                findings.add(section, f"Spark's {part}", "ms/batch", [statistics.median(values) for values in steady])


def measure_audit(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """Decisions/s from the topics into Delta, the size of the files, and both queries at the same time.

    Both together take a backlog from the start until the tables have the last decision. They use all cores until then,
    so that is the rate which they sustain without a growing lag.
    """
    section, requests = "Audit", "audit-requests"
    speeds: dict[str, list[float]] = {"enforce": [], "audit": []}
    whole: dict[str, list[float]] = {"both": [], "enforce": []}
    sizes: list[float] = []
    row_bytes: list[float] = []
    with rig.driver() as driver:
        for run in range(scale.runs):
            setup = _setup(rig, scale, f"audit-{run}", requests, ONE_CHARGE)
            if run == 0:
                rig.publish_backlog(requests, ONE_CHARGE, spread(scale.events, scale.users))
                driver.session(setup.file)
            for query, found in speeds.items():
                driver.start(query, setup.file)
                found.append(scale.steady_events_per_s(driver.drain(scale.events)["batches"]))
            for query, per_s in whole.items():
                driver.start(query, _setup(rig, scale, f"audit-{query}-{run}", requests, ONE_CHARGE).file)
                per_s.append(scale.events / driver.drain(scale.events)["took_s"])
            files = DeltaTable(setup.settings.delta.decisions).get_add_actions(flatten=True)
            file_bytes = files["size_bytes"].to_pylist()
            sizes.append(statistics.median(file_bytes) / 1e6)
            row_bytes.append(sum(file_bytes) / scale.events)
    enforce = findings.add(section, "enforce, 1 charge, for comparison", _UNIT, speeds["enforce"])
    audit = findings.add(section, "audit", "decisions/s", speeds["audit"])
    findings.add(section, "size of a file of decisions", "MB", sizes)
    findings.add(section, "a decision in Delta", "bytes", row_bytes)
    findings.compare("audit / enforce (1 charge), throughput", audit, enforce, at_least(_AUDIT_BAR))
    both = findings.add(section, "enforce and audit together, from the start", "decisions/s", whole["both"])
    alone = findings.add(section, "enforce alone, from the start", _UNIT, whole["enforce"])
    name = "enforce and audit together / enforce alone, throughput from the start"
    findings.compare(name, both, alone, at_least(_TOGETHER_BAR))


def copy_padding(rig: BenchmarkRig, setup: Setup, load: Load) -> int:
    """Bytes to add to the copy's record, so that it is as large as a decision on the same event."""
    _, event = load.event(100_000, 50_000, now_ms())
    return max(0, rig.mean_bytes(setup.settings.topics.decisions) - len(event) - len(',"padding":""'))


def _setup(rig: BenchmarkRig, scale: Scale, name: str, requests: str, load: Load) -> Setup:
    batch = {"max_offsets_per_trigger": scale.batch_events}
    return rig.setup(name, requests, load.quotas, enforce=batch, audit=batch)
