"""`./scripts/chaos`: kill -9 of the job at random moments under load, as often as asked, then the balance.

Of the kills some hit only the job's Python workers or the broker: `--workers` and `--broker` give their shares.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import yaml
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from configs.settings import Settings, load_settings
from scripts.books import close_books, rows
from scripts.broker import Broker, Child
from scripts.load_generator import DEFAULT_MIX, PRODUCER_OPTIONS, LoadGenerator, Sent, publish
from scripts.processes import descendants, kill, python_workers
from sinks.topics import connect, ensure_topics
from state.errors import SluiceError

_FOLDER = Path(".work/chaos")
_QUOTAS = [
    {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 5, "request_percentage": 5}},
    {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": 1_000_000, "consumer_byte_rate": 1_000_000}},
]
_DRAIN_SECONDS = 900
_LOOK_SECONDS = 0.2


class ChaosError(SluiceError):
    """The run can't go on."""


class Chaos:
    """A broker, a job and a load, and what is done to them."""

    def __init__(self, options: argparse.Namespace) -> None:
        shutil.rmtree(_FOLDER, ignore_errors=True)
        _FOLDER.mkdir(parents=True)
        self._options = options
        self._random = random.Random(options.seed)  # repeatable on purpose
        self._broker = Broker(_FOLDER / "broker")
        self._broker.start()
        self.settings = _settings(self._broker.bootstrap_servers)
        self._job: Child | None = None
        self._starts = 0

    def run(self) -> bool:
        """Kill as often as asked, let the job catch up, and print the balance; whether it balances."""
        ensure_topics(self.settings)
        stop, sent = Event(), Sent()
        load = Thread(target=self._load, args=(stop, sent), daemon=True)
        load.start()
        self._start_job()
        for number in range(1, self._options.kills + 1):
            victim = self._fault()
            print(f"kill {number}: {victim} after {sent.events} requests", flush=True)
        stop.set()
        load.join()
        requests = self._count(self.settings.topics.requests)
        self._wait(lambda: self._answered() >= requests, _DRAIN_SECONDS)
        delta = self.settings.delta
        self._wait(lambda: rows(delta.decisions) + rows(delta.dead_letters) >= requests, _DRAIN_SECONDS)
        books = close_books(self.settings)
        print(f"{self._options.kills} kills, seed {self._options.seed}: {books}")
        return books.balanced

    def close(self) -> None:
        """End all processes."""
        if self._job is not None:
            self._job.end(signal.SIGTERM, 90)
        self._broker.stop()

    def _fault(self) -> str:
        """Do one thing at a random moment of the job's work, and mend it."""
        draw = self._random.random()
        time.sleep(self._random.uniform(0.0, self._options.pause))  # the random moment
        if draw < self._options.workers:
            for pid in python_workers(self._running().pid):
                kill(pid)
            return "Python workers"
        if draw < self._options.workers + self._options.broker:
            self._broker.kill()
            self._broker.start()
            return "broker"
        java = [pid for pid, command in descendants(self._running().pid).items() if "org.apache.spark" in command]
        self._running().end(signal.SIGKILL, 10)
        self._wait(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in java), 30)
        self._start_job()
        return "job"

    def _start_job(self) -> None:
        """Start the job and wait until it answers again, so that every kill finds it at work."""
        self._starts += 1
        command = [sys.executable, "-m", "streaming.cli", "run", "--config", str(_FOLDER / "settings.yaml")]
        self._job = Child(command, _FOLDER / f"job-{self._starts}.log")
        before = self._answered()
        requests = self._count(self.settings.topics.requests)
        self._wait(lambda: self._answered() > before or before == requests, 300)

    def _running(self) -> Child:
        if self._job is None or not self._job.alive:
            raise ChaosError(f"the job ended by itself; see {_FOLDER}/job-{self._starts}.log")
        return self._job

    def _load(self, stop: Event, sent: Sent) -> None:
        generator = LoadGenerator(
            seed=self._options.seed, users=100, clients=20, zipf_skew=1.1, api_mix=DEFAULT_MIX, bad_share=0.01
        )
        # An event that the broker took and whose acknowledgement was lost is sent again: it is a request of its own.
        with connect(KafkaProducer, self.settings.kafka, **PRODUCER_OPTIONS) as producer:
            publish(producer, self.settings.topics.requests, generator, stop, self._options.rate, sent=sent)

    def _answered(self) -> int:
        topics = self.settings.topics
        return self._count(topics.decisions) + self._count(topics.dead_letters)

    def _count(self, topic: str) -> int:
        consumer = connect(KafkaConsumer, self.settings.kafka)
        try:
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            return sum(consumer.end_offsets(partitions).values())
        finally:
            consumer.close()

    def _wait(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise ChaosError(f"not done after {seconds:g} s; see {_FOLDER}/job-{self._starts}.log")
            time.sleep(_LOOK_SECONDS)


def _settings(bootstrap_servers: str) -> Settings:
    """Everything in the run's folder; one partition, so that `simulate` can tell what each decision has to be."""
    folder = _FOLDER.absolute()
    (folder / "quotas.yaml").write_text(yaml.safe_dump(_QUOTAS))
    tables = ("quotas", "decisions", "quota_metrics", "dead_letters")
    content: dict[str, Any] = {
        "kafka": {"bootstrap.servers": bootstrap_servers},
        "topics": {"partitions": 1},
        "enforce": {"checkpoint": str(folder / "checkpoints/enforce"), "max_offsets_per_trigger": 5000},
        "audit": {"checkpoint": str(folder / "checkpoints/audit"), "trigger_s": 2},
        "delta": {name: str(folder / "delta" / name) for name in tables},
        "quotas": {"seed": str(folder / "quotas.yaml")},
        "restart": {"backoff_ms": 200, "max_backoff_ms": 2000},
    }
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(content))
    return load_settings(file)


def main() -> int:
    """Run it; 0 if the books balance, 1 if not or if it can't go on, 2 for bad usage."""
    options = _parser().parse_args()
    try:
        chaos = Chaos(options)
        try:
            return 0 if chaos.run() else 1
        finally:
            chaos.close()
    except SluiceError as error:
        print(f"chaos: error: {error}", file=sys.stderr)
        return 1


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
