"""`./scripts/soak`: a steady load for a long time, under which the job's memory and speed have to stay the same."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event
from typing import Annotated, NamedTuple

import typer

from scripts.command import run_command
from sluice_demo.counts import drain, missing_answers
from sluice_demo.job import wait_until
from sluice_demo.load import load as publish_load
from sluice_demo.load import loading
from sluice_demo.load_generator import LoadGenerator
from sluice_lab.benchmarks.report import table
from sluice_lab.scenarios.months import run_months
from sluice_lab.testbed.processes import descendants, folder_bytes, resident_mib
from sluice_lab.testbed.reconciliation import reconcile_counts
from sluice_lab.testbed.rig import Rig, run_scenario

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

    With --months there is no load. Tables, their logs and the compacted topics are filled as so many months would, on
    a real broker, in some minutes: one commit stands for 1 440, and files become a day older with each maintenance.
    The state then, the time of a commit, and the start of gateways and job are printed; .work/soak has the tables.
    """

    seconds: Annotated[float, typer.Option(min=30, help="Length of the measurement in seconds.")] = 1800.0
    entities: Annotated[int, typer.Option(min=1, help="Number of users that send requests.")] = 1_000_000
    rate: Annotated[float, typer.Option(min=1, max=1e9, help="Requests/s.")] = 2000.0
    hot: Annotated[bool, typer.Option("--hot", help="One single user sends everything; --entities is ignored.")] = False
    seed: Annotated[int, typer.Option(min=0, help="The same seed sends the same requests.")] = 1
    months: Annotated[
        int, typer.Option(min=0, help="Months that tables and topics are to be old; the others are ignored then.")
    ] = 0


Sample = Mapping[str, float]
"""Measures of the job at one moment."""

NOT_JUDGED = ("state_mib", "batch_requests")


class Trend(NamedTuple):
    """One measure over the run: the medians of the first and of the last third of its samples."""

    name: str
    first: float
    last: float
    flat: bool | None

    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        ratio = f"{self.last / self.first:.2f}" if self.first else "-"
        return self.name, f"{self.first:.1f}", f"{self.last:.1f}", ratio, _VERDICTS[self.flat]


_VERDICTS = {True: "flat", False: "NOT FLAT", None: ""}


def trends(samples: Sequence[Sample], rate_per_s: float) -> list[Trend]:
    """Each measure's trend, judged by its growth; a lag may also stay below the requests of 10 s."""
    third = max(1, len(samples) // 3)
    found = []
    for name in samples[0]:
        first, last = (median(each[name] for each in part) for part in (samples[:third], samples[-third:]))
        is_small = name == "lag" and last <= rate_per_s * _FLAT_LAG_S
        flat = None if name in NOT_JUDGED else is_small or last <= first * _FLAT_RATIO
        found.append(Trend(name, first, last, flat))
    return found


def run_soak(options: SoakOptions) -> int:
    """Run it; 0 if everything is flat and balances, 1 if not."""
    if options.months:
        return run_scenario("soak", _SECTIONS, lambda rig, _: run_months(rig, options.months))
    return run_scenario("soak", _SECTIONS, lambda rig, _: _is_flat_and_balanced(rig, options))


def _is_flat_and_balanced(rig: Rig, options: SoakOptions) -> bool:
    """Warm up, measure and print."""
    entities, clients = (1, 1) if options.hot else (options.entities, _CLIENTS)
    load = LoadGenerator(options.seed, entities, clients, zipf_skew=0.0, bad_share=_BAD_SHARE, in_turn=True)
    rig.start()
    print(f"warming up: one request of each of {entities} entities ...", flush=True)
    begun_s = time.monotonic()
    publish_load(rig.settings, load, Event(), 0.0, count=entities)
    wait_until(lambda: missing_answers(rig.settings) <= 0, _DRAIN_S)
    print(f"all answered after {time.monotonic() - begun_s:.0f} s; now {options.rate:g} requests/s", flush=True)
    samples: list[Sample] = []
    begun_s = time.monotonic()
    with loading(rig.settings, load, options.rate):
        while (elapsed_s := time.monotonic() - begun_s) < options.seconds:
            time.sleep(max(0.0, (len(samples) + 1) * _SAMPLE_S - elapsed_s))
            samples.append(_sample(rig))
            if len(samples) == 1:
                print("     s", *(f"{name:>14}" for name in samples[0]))
            values = (f"{value:14.1f}" for value in samples[-1].values())
            print(f"{time.monotonic() - begun_s:6.0f}", *values, flush=True)
    found = trends(samples, options.rate)
    head = (f"{len(samples)} samples", "first third", "last third", "ratio", "")
    print("", *table(*head, rows=(trend.row() for trend in found)), sep="\n", flush=True)
    drain(rig.settings, _DRAIN_S)
    counted = reconcile_counts(rig.settings)
    print(counted)
    return counted.balanced and all(trend.flat is not False for trend in found)


def _sample(rig: Rig) -> Sample:
    pid, batch = rig.running().pid, rig.status().get("enforce", {})
    workers = [child for child, command in descendants(pid).items() if "pyspark.worker" in command]
    return {
        "java_mib": resident_mib(rig.java()),
        "workers_mib": resident_mib(workers),
        "driver_mib": resident_mib([pid]),
        "state_mib": folder_bytes(Path(rig.settings.enforce.checkpoint) / "state") / 2**20,
        "batch_ms": batch.get("batch_ms", math.nan),
        "batch_requests": batch.get("events", math.nan),
        "lag": missing_answers(rig.settings),
    }


if __name__ == "__main__":
    sys.exit(run_command("soak", SoakOptions, run_soak))
