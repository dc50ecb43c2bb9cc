"""Latency by where checkpoints are: on this machine's disk, on HDFS, and on an object store."""

from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np

from scripts.benchmarks.events import ONE_CHARGE
from scripts.benchmarks.latency import WARM_S, Latencies, steady
from scripts.benchmarks.report import Findings, at_most
from scripts.benchmarks.rig import BenchmarkRig, Driver
from scripts.benchmarks.scale import Scale
from scripts.testbed.hdfs import Hdfs
from scripts.testbed.object_store import ObjectStore
from sluice.demo.job import Json

_RATE_PER_S = 1_000
_DELAY_S = 0.02
_PERCENTILES = (50, 99)
_BAR = at_most(3.0)


class _Place(NamedTuple):
    """Where checkpoints are: a URI to begin with, None for the disk, and the settings that it needs."""

    name: str
    url: str | None
    settings: dict[str, Json]
    driver: Driver
    delay_s: float = 0.0


def measure_storage(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """p50 and p99 of the enforce query at 1 000 requests/s, in turns; the store is in Python, and shares the cores."""
    with ExitStack() as stack:
        hdfs = stack.enter_context(Hdfs(rig.folder / "hdfs", 1))
        store = stack.enter_context(ObjectStore(rig.folder / "store"))
        disk, on_hdfs, on_store = (stack.enter_context(rig.driver()) for _ in range(3))
        places = (
            _Place("disk", None, {}, disk),
            _Place("HDFS", hdfs.url, {}, on_hdfs),
            _Place("S3", store.url, store.settings(), on_store),
            _Place(f"S3 that answers in {_DELAY_S * 1000:.0f} ms", store.url, store.settings(), on_store, _DELAY_S),
        )
        for rate_per_s in scale.rates or (_RATE_PER_S,):
            found: dict[tuple[str, int], list[float]] = {}
            for run in range(scale.runs + 1):  # the first one warms Java up
                for place in places:
                    store.misbehave(delay_s=place.delay_s)
                    latencies_ms = _latencies_ms(rig, scale, place, rate_per_s, run)
                    for percentile in _PERCENTILES if run else ():
                        value = float(np.percentile(latencies_ms, percentile))
                        found.setdefault((place.name, percentile), []).append(value)
            section = f"Latency at {rate_per_s} requests/s by the storage of checkpoints"
            figures = {
                key: findings.add(section, f"{key[0]}, p{key[1]}", "ms", values) for key, values in found.items()
            }
            for place in places[1:]:
                name = f"checkpoints on {place.name} / on disk, p50 latency at {rate_per_s}/s"
                findings.compare(name, figures[place.name, 50], figures["disk", 50], _BAR)


def _latencies_ms(rig: BenchmarkRig, scale: Scale, place: _Place, rate_per_s: int, run: int) -> Latencies:
    """Those of a new query on a new checkpoint."""
    name = f"storage-{rate_per_s}-{run}-{place.name.replace(' ', '-')}"
    checkpoints = {
        query: {"checkpoint": f"{place.url}/{name}/{query}"} for query in ("enforce", "audit") if place.url is not None
    }
    setup = rig.setup(name, f"{name}-requests", ONE_CHARGE.quotas, **checkpoints, **place.settings)
    if run == 0 and not place.delay_s:
        place.driver.session(setup.file)
    start = partial(place.driver.start, "enforce", setup.file)
    return steady(rig, scale, setup, start, place.driver.stop, rate_per_s, WARM_S if run else scale.warm_s)
