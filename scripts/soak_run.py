"""`./scripts/soak`: the job under a steady load for a long time: does it stay as small and as fast as it was?

First every entity sends one request, so that all state is there when the measuring begins. Then the load goes on at a
steady rate, and every 10 s a sample is taken. At the end the medians of the first and the last third of the samples
are compared, and the books are closed.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from threading import Event, Thread

from scripts.books import count_books
from scripts.load_generator import DEFAULT_MIX, LoadGenerator, number_from, whole_from
from scripts.processes import descendants, resident_mib
from scripts.trial import Trial, run_trial

_SAMPLE_SECONDS = 10.0
_FLAT_RATIO = 1.2
_FLAT_LAG_SECONDS = 10.0
_DRAIN_SECONDS = 1800
_BAD_SHARE = 0.001
_CLIENTS = 10
_SECTIONS = {
    "topics": {"partitions": 2},
    # Spark's 100 versions would fill up for many minutes, and look like a state that grows.
    "spark": {"spark.sql.streaming.minBatchesToRetain": 10},
}


@dataclass(frozen=True, slots=True)
class Sample:
    """How the job is at one moment; `lag` is in requests without an answer."""

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
"""Windows fill until every entity has sent a request in each of them, which takes hours where entities are many."""


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
    """Each measure's trend, judged by its growth; a lag may also stay below what comes in 10 s."""
    third = max(1, len(samples) // 3)
    columns = list(zip(*map(astuple, samples), strict=True))
    found = []
    for number, (name, values) in enumerate(zip(NAMES, columns, strict=True)):
        first, last = statistics.median(values[:third]), statistics.median(values[-third:])
        flat: bool | None = last <= first * _FLAT_RATIO
        if number == LAG:
            flat = flat or last <= rate_per_s * _FLAT_LAG_SECONDS
        elif number in NOT_JUDGED:
            flat = None
        found.append(Trend(name, first, last, flat))
    return found


class Soak:
    """One run."""

    def __init__(self, trial: Trial, options: argparse.Namespace) -> None:
        self._trial = trial
        self._options = options
        entities = 1 if options.hot else options.entities
        self._entities = entities
        self._generator = LoadGenerator(
            seed=options.seed,
            users=entities,
            clients=1 if options.hot else _CLIENTS,
            zipf_skew=0.0,
            api_mix=DEFAULT_MIX,
            bad_share=_BAD_SHARE,
            in_turn=True,
        )

    def run(self) -> bool:
        """Warm up, measure, print; whether all is flat and balances."""
        self._trial.start_job()
        self._warm_up()
        samples = self._measure()
        found = trends(samples, self._options.rate)
        print(f"\n{len(samples)} samples{'':<8} {'first third':>12} {'last third':>12} {'ratio':>7}")
        print(*found, sep="\n", flush=True)
        self._trial.drain(_DRAIN_SECONDS)
        books = count_books(self._trial.settings)
        print(books)
        return books.balanced and all(trend.flat is not False for trend in found)

    def _warm_up(self) -> None:
        """One request of each entity, as fast as it goes."""
        print(f"warming up: one request of each of {self._entities} entities ...", flush=True)
        begun = time.monotonic()
        self._trial.load(self._generator, Event(), 0.0, count=self._entities)
        requests = self._trial.requests()
        self._trial.wait(lambda: self._trial.answered() >= requests, _DRAIN_SECONDS)
        print(f"all answered after {time.monotonic() - begun:.0f} s; now {self._options.rate:g} requests/s", flush=True)

    def _measure(self) -> list[Sample]:
        stop, seconds = Event(), self._options.seconds
        limits = {"seconds": seconds}
        load = Thread(
            target=self._trial.load, args=(self._generator, stop, self._options.rate), kwargs=limits, daemon=True
        )
        load.start()
        samples: list[Sample] = []
        print("     s", *(f"{name:>14}" for name in NAMES), flush=True)
        begun = time.monotonic()
        while not stop.wait(begun + (len(samples) + 1) * _SAMPLE_SECONDS - time.monotonic()) and load.is_alive():
            samples.append(self._sample())
            print(f"{time.monotonic() - begun:6.0f}", *(f"{value:14.1f}" for value in astuple(samples[-1])), flush=True)
            if time.monotonic() - begun >= seconds:
                break
        load.join()
        return samples

    def _sample(self) -> Sample:
        pid = self._trial.job().pid
        batch = json.loads(self._trial.status_file.read_text()).get("enforce", {})
        state = Path(self._trial.settings.enforce.checkpoint) / "state"
        workers = [child for child, command in descendants(pid).items() if "pyspark.daemon" in command]
        return Sample(
            java_mib=resident_mib(self._trial.java()),
            workers_mib=resident_mib(workers),
            driver_mib=resident_mib([pid]),
            state_mib=_folder_mib(state),
            batch_ms=batch.get("batch_ms", math.nan),
            batch_requests=batch.get("events", math.nan),
            lag=self._trial.requests() - self._trial.answered(),
        )


def _folder_mib(folder: Path) -> float:
    """Size of all files; Spark removes old ones meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total / 2**20


def main() -> int:
    """Run it; 0 if all is flat and the books balance, 1 if not or if it can't go on, 2 for bad usage."""
    options = _parser().parse_args()
    return run_trial("soak", _SECTIONS, lambda trial: Soak(trial, options).run())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_EPILOG
    )
    parser.add_argument("--seconds", type=number_from(30), default=1800.0, help="how long to measure (1800)")
    parser.add_argument("--entities", type=whole_from(1), default=1_000_000, help="users that send requests (1000000)")
    parser.add_argument("--rate", type=number_from(1), default=2000.0, help="requests/s (2000)")
    parser.add_argument("--hot", action="store_true", help="one single user sends everything; no --entities then")
    parser.add_argument("--seed", type=whole_from(0), default=1, help="the same seed makes the same requests (1)")
    return parser


_EPILOG = """\
measures, each as the median of the first and of the last third of the samples:
  java_mib        memory of Spark's Java virtual machine, resident
  workers_mib     memory of all Python workers of the job, resident; pages that they share count for each
  driver_mib      memory of the job's own Python process, resident
  state_mib       files of the state store in the checkpoint, with the 10 older versions that Spark keeps here
                  (not judged: an entity's windows fill until it has sent a request in each of them)
  batch_ms        duration of the last micro-batch
  batch_requests  requests in it (not judged)
  lag             requests without an answer
All is flat when no median grows by more than 20 %; a lag may grow while it is below what comes in 10 s.

The books compare counts: requests = decisions + dead letters, one row in Delta for each request, by its offset, and
each charge counted once in quota_metrics. What was decided is not simulated: ./scripts/chaos does that.

Everything lies in .work/soak, which the next run empties: about 2 KiB for each request.
Ends with 0 when all is flat and balances, else with 1.

  ./scripts/soak                                     30 minutes over a million entities
  ./scripts/soak --hot --seconds 600                 one entity with a million requests and more
  ./scripts/soak --seconds 60 --entities 20000       a try
"""


if __name__ == "__main__":
    sys.exit(main())
