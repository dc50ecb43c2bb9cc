"""What the number of pages costs where every page is charged: the other side of `known_latency`."""

from scripts.benchmarks.events import ONE_CHARGE, spread
from scripts.benchmarks.report import Figure, Findings
from scripts.benchmarks.rig import BenchmarkRig, Scale
from sluice.kafka_io.clock import now_ms

_PAGES = (32, 1_024, 4_096, 16_384)
_NOT_OF_REQUESTS = ("JIT compiler", "garbage collection", "threads that ended")


def measure_pages(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(l) requests/s and CPU time of a request from a backlog, by the number of pages, in turns.

    The CPU time is that of Spark's tasks and the Python workers: other work on the machine disturbs it far less.
    """
    section, requests = "Throughput by pages, 1 charge a request", "pages-requests"
    batch = {"max_offsets_per_trigger": scale.batch_events}
    speeds: dict[int, list[float]] = {}
    costs_us: dict[int, list[float]] = {}
    with rig.driver() as driver:
        for run in range(scale.runs + 1):  # the first run warms Java up
            for pages in _PAGES:
                name = f"pages-{pages}-{run}"
                setup = rig.setup(name, requests, ONE_CHARGE.quotas, enforce=batch, state={"pages": pages})
                if not run and pages == _PAGES[0]:
                    rig.publish(requests, ONE_CHARGE.backlog(spread(scale.events, scale.users), now_ms()))
                    driver.session(setup)
                driver.start("enforce", setup)
                drained = driver.drain(scale.events)
                if not run:
                    continue
                java_s = sum(value for group, value in drained["jvm_cpu_s"].items() if group not in _NOT_OF_REQUESTS)
                speeds.setdefault(pages, []).append(scale.steady_events_per_s(drained["batches"]))
                costs_us.setdefault(pages, []).append((java_s + drained["python_cpu_s"]) / scale.events * 1e6)
    figures: dict[int, Figure] = {}
    for pages in _PAGES:
        findings.add(section, f"{pages} pages", "requests/s", speeds[pages])
        figures[pages] = findings.add(section, f"{pages} pages, CPU time", "µs/request", costs_us[pages])
    for pages in _PAGES[1:]:
        findings.compare(f"{pages} / {_PAGES[0]} pages, CPU time of a request", figures[pages], figures[_PAGES[0]])
