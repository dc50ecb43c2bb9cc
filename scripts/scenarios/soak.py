"""`./scripts/soak`: a steady load for a long time, under which the job's memory and speed have to stay the same."""

import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from scripts.command import run_command
from scripts.testbed.job import wait_until
from scripts.testbed.load_generator import LoadGenerator
from scripts.testbed.processes import descendants, resident_mib
from scripts.testbed.reconciliation import answered, reconcile_counts
from scripts.testbed.rig import Rig, run_scenario
from scripts.testbed.work_folder import folder_bytes

_SAMPLE_S = 10.0
_FLAT_RATIO = 1.2
_FLAT_LAG_S = 10.0
_DRAIN_S = 1800
_BAD_SHARE = 0.001
_CLIENTS = 10
_SECTIONS = {
    "topics": {"partitions": 2},
    # Spark keeps 100 versions by default. Until they are all there, state would seem to grow for many minutes.
    "spark": {"spark.sql.streaming.minBatchesToRetain": 10},
}


@dataclass(frozen=True)
class SoakOptions:
    """Run the job under a steady load for a long time, and check that its memory and speed stay the same.

    First every entity sends one request, so that all state exists when the measurement begins. Then the load goes on
    at a steady rate, and a sample is taken every 10 s. At the end the medians of the first and of the last third of
    the samples are compared, and requests, decisions and tables are reconciled.

    \b
    Measures:
      java_mib        memory of Spark's Java virtual machine, resident
      workers_mib     memory of all Python workers of the job, resident; pages that they share count for each
      driver_mib      memory of the job's own Python process, resident
      state_mib       files of the state store in the checkpoint, with the 10 older versions that Spark keeps here
                      (not judged: an entity's windows fill until it has sent a request in each of them)
      batch_ms        duration of the last micro-batch
      batch_requests  requests in it (not judged)
      lag             requests without an answer

    A measure is flat when its median grows by at most 20 %. A lag may grow while it is below the requests of 10 s.

    The reconciliation compares counts: requests = decisions + dead letters, one row in Delta for each request, by its
    offset, and each charge counted once in quota_metrics. It does not simulate the decisions: ./scripts/chaos does.

    The run is stored in .work/soak, which the next run empties; it takes about 2 KiB for each request. The exit code
    is 0 when everything is flat and balances, else 1.

    \b
      ./scripts/soak                                     30 minutes over a million entities
      ./scripts/soak --hot --seconds 600                 one entity with a million requests and more
      ./scripts/soak --seconds 60 --entities 20000       a short try
    """

    seconds: Annotated[float, typer.Option(min=30, help="Length of the measurement in seconds.")] = 1800.0
    entities: Annotated[int, typer.Option(min=1, help="Number of users that send requests.")] = 1_000_000
    rate: Annotated[float, typer.Option(min=1, max=1e9, help="Requests/s.")] = 2000.0
    hot: Annotated[bool, typer.Option("--hot", help="One single user sends everything; --entities is ignored.")] = False
    seed: Annotated[int, typer.Option(min=0, help="The same seed sends the same requests.")] = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """Measures of the job at one moment; `lag` is the number of requests without an answer."""

    java_mib: float
    workers_mib: float
    driver_mib: float
    state_mib: float
    batch_ms: float
    batch_requests: float
    lag: float


NAMES = [field.name for field in fields(Sample)]
LAG = NAMES.index("lag")
NOT_JUDGED = (NAMES.index("state_mib"), NAMES.index("batch_requests"))
"""Windows fill until every entity has sent a request in each of them; with many entities that takes hours."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One measure over the run: the medians of the first and of the last third of its samples."""

    name: str
    first: float
    last: float
    flat: bool | None

    def __str__(self) -> str:
        """A row of the table."""
        ratio = f"{self.last / self.first:.2f}" if self.first else "-"
        verdict = {True: "flat", False: "NOT FLAT", None: ""}[self.flat]
        return f"{self.name:<15} {self.first:>12.1f} {self.last:>12.1f} {ratio:>7}  {verdict}"


def trends(samples: Sequence[Sample], rate_per_s: float) -> list[Trend]:
    """Each measure's trend, judged by its growth; a lag may also stay below the requests of 10 s."""
    third = max(1, len(samples) // 3)
    columns = list(zip(*map(astuple, samples), strict=True))
    found = []
    for number, (name, values) in enumerate(zip(NAMES, columns, strict=True)):
        first, last = statistics.median(values[:third]), statistics.median(values[-third:])
        flat: bool | None = last <= first * _FLAT_RATIO
        if number == LAG:
            flat = flat or last <= rate_per_s * _FLAT_LAG_S
        elif number in NOT_JUDGED:
            flat = None
        found.append(Trend(name, first, last, flat))
    return found


class Soak:
    """One run."""

    def __init__(self, rig: Rig, options: SoakOptions) -> None:
        self._rig = rig
        self._options = options
        self._entities = 1 if options.hot else options.entities
        self._generator = LoadGenerator(
            seed=options.seed,
            users=self._entities,
            clients=1 if options.hot else _CLIENTS,
            zipf_skew=0.0,
            bad_share=_BAD_SHARE,
            in_turn=True,
        )

    def run(self) -> bool:
        """Warm up, measure and print; true if everything is flat and balances."""
        self._rig.start()
        self._warm_up()
        samples = self._measure()
        found = trends(samples, self._options.rate)
        print(f"\n{len(samples)} samples{'':<8} {'first third':>12} {'last third':>12} {'ratio':>7}")
        print(*found, sep="\n", flush=True)
        self._rig.drain(_DRAIN_S)
        counted = reconcile_counts(self._rig.settings)
        print(counted)
        return counted.balanced and all(trend.flat is not False for trend in found)

    def _warm_up(self) -> None:
        """One request of each entity, as fast as possible."""
        print(f"warming up: one request of each of {self._entities} entities ...", flush=True)
        begun_s = time.monotonic()
        self._rig.load(self._generator, self._entities)
        requests = self._rig.requests()
        wait_until(lambda: answered(self._rig.settings) >= requests, _DRAIN_S)
        took_s = time.monotonic() - begun_s
        print(f"all answered after {took_s:.0f} s; now {self._options.rate:g} requests/s", flush=True)

    def _measure(self) -> list[Sample]:
        samples: list[Sample] = []
        print("     s", *(f"{name:>14}" for name in NAMES), flush=True)
        begun_s = time.monotonic()
        with self._rig.loading(self._generator, self._options.rate):
            while time.monotonic() - begun_s < self._options.seconds:
                time.sleep(max(0.0, begun_s + (len(samples) + 1) * _SAMPLE_S - time.monotonic()))
                samples.append(self._sample())
                values = (f"{value:14.1f}" for value in astuple(samples[-1]))
                print(f"{time.monotonic() - begun_s:6.0f}", *values, flush=True)
        return samples

    def _sample(self) -> Sample:
        pid = self._rig.running().pid
        batch = self._rig.status().get("enforce", {})
        state = Path(self._rig.settings.enforce.checkpoint) / "state"
        workers = [child for child, command in descendants(pid).items() if "pyspark.worker" in command]
        return Sample(
            java_mib=resident_mib(self._rig.java()),
            workers_mib=resident_mib(workers),
            driver_mib=resident_mib([pid]),
            state_mib=folder_bytes(state) / 2**20,
            batch_ms=batch.get("batch_ms", math.nan),
            batch_requests=batch.get("events", math.nan),
            lag=self._rig.requests() - answered(self._rig.settings),
        )


def run_soak(options: SoakOptions) -> int:
    """Run it; 0 if everything is flat and balances, 1 if not."""
    return run_scenario("soak", _SECTIONS, lambda rig, _: Soak(rig, options).run())


if __name__ == "__main__":
    sys.exit(run_command("soak", SoakOptions, run_soak))
