"""`./scripts/chaos`: kill -9 of the job at random moments under load, then the reconciliation.

Some of the kills hit only the job's Python workers or the broker: `--workers` and `--broker` give their shares.
"""

import random
import sys
import time
from dataclasses import dataclass
from threading import Event, Thread
from typing import Annotated

import typer

from scripts.command import run_command
from scripts.testbed.job_under_test import JobUnderTest, run_job_test
from scripts.testbed.load_generator import DEFAULT_MIX, LoadGenerator, Rate, Sent
from scripts.testbed.processes import kill, python_workers
from scripts.testbed.reconciliation import reconcile

_DRAIN_SECONDS = 900
_SECTIONS = {
    "topics": {"partitions": 1},  # with one partition `simulate` knows the order, and so every decision
    "enforce": {"max_offsets_per_trigger": 5000},
    "audit": {"trigger_s": 2},
    "restart": {"backoff_ms": 200, "max_backoff_ms": 2000},
}


@dataclass(frozen=True)
class ChaosOptions:
    """Kill the job repeatedly under load, then reconcile requests, decisions and tables."""

    kills: Annotated[int, typer.Option(min=0, help="Number of kills.")] = 50
    seed: Annotated[int, typer.Option(help="The same seed kills the same processes at the same moments.")] = 1
    rate: Rate = 300.0
    pause: Annotated[float, typer.Option(min=0, max=1e6, help="Longest time in seconds before a kill.")] = 6.0
    workers: Annotated[float, typer.Option(min=0, max=1, help="Share of kills of the Python workers.")] = 0.1
    broker: Annotated[float, typer.Option(min=0, max=1, help="Share of kills of the broker.")] = 0.1


class Chaos:
    """The faults of one run, and the check after them."""

    def __init__(self, job: JobUnderTest, options: ChaosOptions) -> None:
        self._job = job
        self._options = options
        self._random = random.Random(options.seed)  # repeatable on purpose

    def run(self) -> bool:
        """Kill, let the job catch up, and print the reconciliation; whether it balances."""
        stop, sent = Event(), Sent()
        generator = LoadGenerator(
            seed=self._options.seed, users=100, clients=20, zipf_skew=1.1, api_mix=DEFAULT_MIX, bad_share=0.01
        )
        limits = {"sent": sent}
        load = Thread(target=self._job.load, args=(generator, stop, self._options.rate), kwargs=limits, daemon=True)
        load.start()
        self._job.start()
        for number in range(1, self._options.kills + 1):
            victim = self._fault()
            print(f"kill {number}: {victim} after {sent.events} requests", flush=True)
        stop.set()
        load.join()
        self._job.drain(_DRAIN_SECONDS)
        found = reconcile(self._job.settings)
        print(f"{self._options.kills} kills, seed {self._options.seed}: {found}")
        return found.balanced

    def _fault(self) -> str:
        """Kill something at a random moment, and start it again; returns what was killed."""
        draw = self._random.random()
        time.sleep(self._random.uniform(0.0, self._options.pause))  # the random moment
        if draw < self._options.workers:
            for pid in python_workers(self._job.running().pid):
                kill(pid)
            return "Python workers"
        if draw < self._options.workers + self._options.broker:
            self._job.broker.kill()
            self._job.broker.start()
            return "broker"
        self._job.kill()
        self._job.start()
        return "job"


def run_chaos(options: ChaosOptions) -> int:
    """Run it; 0 if everything balances, 1 if not."""
    return run_job_test("chaos", _SECTIONS, lambda job: Chaos(job, options).run())


if __name__ == "__main__":
    sys.exit(run_command("chaos", ChaosOptions, run_chaos))
