"""`./scripts/chaos`: kill -9 of the job at random moments under load, as often as asked, then the balance.

Of the kills some hit only the job's Python workers or the broker: `--workers` and `--broker` give their shares.
"""

import argparse
import random
import sys
import time
from threading import Event, Thread

from scripts.books import close_books
from scripts.load_generator import DEFAULT_MIX, LoadGenerator, Sent
from scripts.processes import kill, python_workers
from scripts.trial import Trial, run_trial

_DRAIN_SECONDS = 900
_SECTIONS = {
    "topics": {"partitions": 1},  # so that `simulate` can tell what each decision has to be
    "enforce": {"max_offsets_per_trigger": 5000},
    "audit": {"trigger_s": 2},
    "restart": {"backoff_ms": 200, "max_backoff_ms": 2000},
}


class Chaos:
    """What is done to a job under load."""

    def __init__(self, trial: Trial, options: argparse.Namespace) -> None:
        self._trial = trial
        self._options = options
        self._random = random.Random(options.seed)  # repeatable on purpose

    def run(self) -> bool:
        """Kill as often as asked, let the job catch up, and print the balance; whether it balances."""
        stop, sent = Event(), Sent()
        generator = LoadGenerator(
            seed=self._options.seed, users=100, clients=20, zipf_skew=1.1, api_mix=DEFAULT_MIX, bad_share=0.01
        )
        limits = {"sent": sent}
        load = Thread(target=self._trial.load, args=(generator, stop, self._options.rate), kwargs=limits, daemon=True)
        load.start()
        self._trial.start_job()
        for number in range(1, self._options.kills + 1):
            victim = self._fault()
            print(f"kill {number}: {victim} after {sent.events} requests", flush=True)
        stop.set()
        load.join()
        self._trial.drain(_DRAIN_SECONDS)
        books = close_books(self._trial.settings)
        print(f"{self._options.kills} kills, seed {self._options.seed}: {books}")
        return books.balanced

    def _fault(self) -> str:
        """Do one thing at a random moment of the job's work, and mend it."""
        draw = self._random.random()
        time.sleep(self._random.uniform(0.0, self._options.pause))  # the random moment
        if draw < self._options.workers:
            for pid in python_workers(self._trial.job().pid):
                kill(pid)
            return "Python workers"
        if draw < self._options.workers + self._options.broker:
            self._trial.broker.kill()
            self._trial.broker.start()
            return "broker"
        self._trial.kill_job()
        self._trial.start_job()
        return "job"


def main() -> int:
    """Run it; 0 if the books balance, 1 if not or if it can't go on, 2 for bad usage."""
    options = _parser().parse_args()
    return run_trial("chaos", _SECTIONS, lambda trial: Chaos(trial, options).run())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./scripts/chaos", description="Kill the job over and over, then balance.")
    parser.add_argument("--kills", type=int, default=50, help="how many (50)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed kills the same at the same moments (1)")
    parser.add_argument("--rate", type=float, default=300.0, help="requests/s meanwhile (300)")
    parser.add_argument("--pause", type=float, default=6.0, help="up to so many seconds of work before a kill (6)")
    parser.add_argument("--workers", type=float, default=0.1, help="share of kills of Python workers (0.1)")
    parser.add_argument("--broker", type=float, default=0.1, help="share of kills of the broker (0.1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
