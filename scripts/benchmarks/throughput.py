"""Throughput: the enforce query against the stateless copy and two plain loops; and the audit query."""

import statistics

from deltalake import DeltaTable

from scripts.benchmarks.events import ONE_CHARGE, Load, spread
from scripts.benchmarks.loops import CLIENTS
from scripts.benchmarks.report import Figure, Findings, at_least
from scripts.benchmarks.rig import BenchmarkRig, Drivers, Scale, Setup
from sluice.kafka_io.clock import now_ms

_BARS = {"1 charge": 0.90, "2 charges": 0.75, "4 charges": 0.50}
_LOOP_BAR = 3.0
_AUDIT_BAR = 0.70
_TOGETHER_BAR = 0.40
_UNIT = "requests/s"

COPY = "copy"
TUNED_COPY = "copy with the job's session and Kafka clients"


def measure_throughput(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(a) enforce with 1, 2 and 4 charges per request, alternating with the queries and loops it is compared to."""
    for load in scale.loads:
        requests = f"throughput-{len(load.quotas)}-requests"
        plain = rig.setup(f"throughput-{len(load.quotas)}", requests, load.quotas)
        rig.publish(requests, load.backlog(spread(scale.events, scale.users), now_ms()))
        speeds: dict[str, list[float]] = {}
        with rig.driver() as driver, rig.driver() as stock:
            driver.session(plain)
            stock.session(plain, stock=True)
            drivers = Drivers(driver, stock)
            for run in range(scale.warm_runs):
                _queries(rig, scale, drivers, load, requests, f"warm-{run}")
            for run in range(scale.runs):
                found = _queries(rig, scale, drivers, load, requests, str(run))
                found |= _loops(rig, scale, load, plain)
                for name, speed in found.items():
                    speeds.setdefault(name, []).append(speed)
        _report(findings, load, speeds)


def measure_audit(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(f) decisions/s from the topics into Delta, and the size of the files; and both queries at the same time.

    Both together take a backlog from the start until the tables have the last decision. They use all cores until then,
    so that is the rate which they sustain without a growing lag.
    """
    section, requests = "Audit", "audit-requests"
    batch = {"max_offsets_per_trigger": scale.batch_events}
    speeds: dict[str, list[float]] = {"enforce": [], "audit": []}
    whole: dict[str, list[float]] = {"both": [], "enforce": []}
    sizes: list[float] = []
    row_bytes: list[float] = []
    with rig.driver() as driver:
        for run in range(scale.runs):
            setup = rig.setup(f"audit-{run}", requests, ONE_CHARGE.quotas, enforce=batch, audit=batch)
            if run == 0:
                rig.publish(requests, ONE_CHARGE.backlog(spread(scale.events, scale.users), now_ms()))
                driver.session(setup)
            for query, found in speeds.items():
                driver.start(query, setup)
                found.append(scale.steady_events_per_s(driver.drain(scale.events)["batches"]))
            for query, per_s in whole.items():
                driver.start(
                    query, rig.setup(f"audit-{query}-{run}", requests, ONE_CHARGE.quotas, enforce=batch, audit=batch)
                )
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


def _queries(
    rig: BenchmarkRig, scale: Scale, drivers: Drivers, load: Load, requests: str, name: str
) -> dict[str, float]:
    """Requests/s of the enforce query and then of both copies, whose records are as large as the decisions."""
    batch = {"max_offsets_per_trigger": scale.batch_events}
    setup = rig.setup(f"throughput-{len(load.quotas)}-{name}", requests, load.quotas, enforce=batch)
    drivers.job.start("enforce", setup)
    speeds = {"enforce": scale.steady_events_per_s(drivers.job.drain(scale.events)["batches"])}
    padding = copy_padding(rig, setup, load)
    for copy, driver, tuned in ((COPY, drivers.stock, False), (TUNED_COPY, drivers.job, True)):
        checkpoint = str(setup.file.parent / f"copy-{tuned}")
        driver.start("copy", setup, checkpoint=checkpoint, padding_bytes=padding, tuned=tuned)
        speeds[copy] = scale.steady_events_per_s(driver.drain(scale.events)["batches"])
    return speeds


def _loops(rig: BenchmarkRig, scale: Scale, load: Load, plain: Setup) -> dict[str, float]:
    """Requests/s of the plain loops."""
    return {f"{client} loop": rig.loop(client, plain, load.name, scale.batch_events) for client in CLIENTS}


def copy_padding(rig: BenchmarkRig, setup: Setup, load: Load) -> int:
    """Bytes to add to the copy's record, so that it is as large as a decision on the same event."""
    _, event = load.event(100_000, 50_000, now_ms())
    return max(0, rig.mean_bytes(setup.settings.topics.decisions) - len(event) - len(',"padding":""'))


def _report(findings: Findings, load: Load, speeds: dict[str, list[float]]) -> None:
    section = f"Throughput, {load.name} a request"
    figures: dict[str, Figure] = {name: findings.add(section, name, _UNIT, values) for name, values in speeds.items()}
    enforce = figures.pop("enforce")
    for name, figure in figures.items():
        bar = None
        if name == COPY and load.name in _BARS:
            bar = at_least(_BARS[load.name])
        elif name == "kafka-python loop" and load is ONE_CHARGE:
            bar = at_least(_LOOP_BAR)
        findings.compare(f"enforce / {name}, throughput, {load.name}", enforce, figure, bar)
