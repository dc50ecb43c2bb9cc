"""`./scripts/cluster`: the job on a real Spark cluster with three brokers, a load, and kills; ends by itself."""

import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Event, Thread
from typing import Annotated

import typer
from kafka import KafkaProducer

from configs.kafka import connect
from scripts.command import EXIT_FAILED, run_command, stop_on_signals
from scripts.spark_cluster.balance import balance
from scripts.spark_cluster.environment import EnvironmentFolder
from scripts.spark_cluster.spark import SparkCluster
from scripts.testbed.cluster import Cluster
from scripts.testbed.job import TABLES, Sections, SluiceJob, quotas_in, wait_until
from scripts.testbed.job_under_test import QUOTAS
from scripts.testbed.live_counts import LiveCounts
from scripts.testbed.load_generator import DEFAULT_MIX, PRODUCER_OPTIONS, LoadGenerator, Sent, publish
from scripts.testbed.processes import kill
from scripts.testbed.reconciliation import audited
from scripts.testbed.work_folder import work_folder
from sinks.topics import ensure_topics

_WORKERS = 3
_BROKERS = 3
_EXECUTOR_MEMORY = "1g"
_RECOVERY_S = 300
_DRAIN_S = 300
_LINE_S = 5.0


class Victim(StrEnum):
    """What can be killed."""

    EXECUTOR = "executor"
    WORKER = "worker"
    MASTER = "master"
    DRIVER = "driver"
    BROKER = "broker"


@dataclass(frozen=True)
class ClusterOptions:
    """Run the job on a Spark master and three workers, with three brokers and a standby driver, and kill with -9.

    Executors run the wheel, not the checkout. Checkpoints and tables are in a folder that all processes share, by
    file:// addresses. In the end each request has one decision in the table, as `sluice simulate` gives it, or the exit
    code is 1.
    """

    seconds: Annotated[float, typer.Option(min=1, help="How long to publish, at least.")] = 60.0
    rate: Annotated[float, typer.Option(min=1, help="Requests per second.")] = 200.0
    victims: Annotated[
        list[Victim] | None,
        typer.Option("--kill", help="What to kill with -9; repeat the option for more."),
    ] = None
    seed: Annotated[int, typer.Option(help="The same seed kills the same executors, workers and brokers.")] = 1


def run_cluster(options: ClusterOptions) -> int:
    """The exit code: 0 if the books balance."""
    stop = stop_on_signals()
    with work_folder("cluster", fresh=True) as folder, ExitStack() as stack:
        print(f"building the wheel, and starting Spark and brokers (logs: {folder}) ...", flush=True)
        environment = EnvironmentFolder(_made(folder / "environment"))
        brokers = stack.enter_context(Cluster(folder / "brokers", _BROKERS))
        spark = stack.enter_context(SparkCluster(folder / "spark", _WORKERS, environment, _EXECUTOR_MEMORY))
        run = _Run(options, folder, spark, brokers, environment, stop)
        stack.callback(run.close)
        return run.run()


class _Run:
    def __init__(
        self,
        options: ClusterOptions,
        folder: Path,
        spark: SparkCluster,
        brokers: Cluster,
        environment: EnvironmentFolder,
        stop: Event,
    ) -> None:
        self._options, self._spark, self._brokers, self._stop = options, spark, brokers, stop
        self._chance = random.Random(options.seed)
        layers = _layers(folder, spark.url, brokers.bootstrap_servers, environment)
        self._drivers = [SluiceJob(_made(folder / name), quotas_in(folder, QUOTAS), *layers) for name in ("one", "two")]
        self._settings = self._drivers[0].settings
        self._published = Event()
        self._sent = Sent()
        ensure_topics(self._settings.topics, self._settings.kafka)
        self._counts = LiveCounts(self._settings)
        self._sent.stored = lambda stored: self._counts.sent(stored.partition, stored.offset)

    def close(self) -> None:
        """End the drivers."""
        self._counts.close()
        for driver in reversed(self._drivers):
            driver.stop()

    def run(self) -> int:
        """Load, kill, and look at the books."""
        leader = self._drivers[0]
        print("starting the job ...", flush=True)
        leader.start(cancel=self._stop)
        load = Thread(target=self._load, daemon=True)
        load.start()
        ends_s = time.monotonic() + self._options.seconds
        self._until_decided(0)
        print(f"{len(self._spark.executors())} executors decide", flush=True)
        for victim in self._options.victims or ():
            self._watch(self._chance.uniform(1, 5))
            if self._stop.is_set():
                break
            self._kill(victim)
        self._watch(ends_s - time.monotonic())
        self._published.set()
        load.join()
        print(f"published {self._sent.summary()}; waiting for the answers", flush=True)
        self._drain()
        for driver in reversed(self._drivers):
            driver.stop()
        found = balance(self._settings)
        print(found, flush=True)
        return 0 if found.balanced else EXIT_FAILED

    def _load(self) -> None:
        generator = LoadGenerator(seed=7, users=50, clients=5, zipf_skew=1.1, api_mix=DEFAULT_MIX, bad_share=0.01)
        with connect(KafkaProducer, self._settings.kafka, **PRODUCER_OPTIONS) as producer:
            topic = self._settings.topics.requests
            publish(producer, topic, generator, self._published, self._options.rate, sent=self._sent)

    def _watch(self, seconds: float) -> None:
        """Show what is decided, for so long."""
        ends_s = time.monotonic() + seconds
        while not self._stop.is_set() and (left_s := ends_s - time.monotonic()) > 0:
            self._stop.wait(min(left_s, _LINE_S))
            verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self._counts.verdicts.items()))
            print(f"{self._counts.answered} of {self._sent.events} answered: {verdicts}", flush=True)

    def _kill(self, victim: Victim) -> None:
        """Kill one, start another in its place, and say how long it took until newer requests were answered."""
        begun_s = time.monotonic()
        after = self._after(victim)
        published = self._sent.events
        after()
        self._until_decided(published)
        took_s = time.monotonic() - begun_s
        print(f"{victim} killed; requests published since are answered after {took_s:.1f} s", flush=True)

    def _after(self, victim: Victim) -> Callable[[], None]:
        """Kill it; what is returned puts another in its place."""
        match victim:
            case Victim.EXECUTOR:
                kill(self._chance.choice(sorted(self._spark.executors())))
                return lambda: None
            case Victim.WORKER:
                number = self._chance.randrange(_WORKERS)
                self._spark.workers[number].end(signal.SIGKILL, 10)
                return lambda: self._spark.restart_worker(number)
            case Victim.MASTER:
                self._spark.master.end(signal.SIGKILL, 10)
                return self._spark.restart_master
            case Victim.BROKER:
                broker = self._chance.choice(self._brokers.brokers)
                broker.kill()
                return broker.start
        return self._kill_driver()

    def _kill_driver(self) -> Callable[[], None]:
        leader, standby = self._drivers
        standby.launch("--standby")
        wait_until(lambda: standby.status().get("waiting_for") == "leadership", _RECOVERY_S)
        leader.kill()
        self._drivers.reverse()
        return lambda: None

    def _until_decided(self, published: int) -> None:
        """Wait until all requests so far are answered, and one more."""
        wait_until(lambda: self._stop.is_set() or self._counts.answered > published, _RECOVERY_S)

    def _drain(self) -> None:
        stored = self._sent.events - self._sent.failed
        wait_until(lambda: self._stop.is_set() or self._counts.answered >= stored, _DRAIN_S)
        wait_until(lambda: self._stop.is_set() or audited(self._settings) >= stored, _DRAIN_S)


def _layers(folder: Path, master: str, bootstrap_servers: str, environment: EnvironmentFolder) -> Sequence[Sections]:
    shared = folder / "shared"
    return [
        {
            "enforce": {"checkpoint": (shared / "checkpoints/enforce").as_uri(), "shuffle_partitions": _WORKERS},
            "audit": {"checkpoint": (shared / "checkpoints/audit").as_uri(), "trigger_s": 2},
            "delta": {table: (shared / "delta" / table).as_uri() for table in TABLES},
            "topics": {"partitions": 1},  # the order of all requests is known, so they can be simulated
            "kafka": {"bootstrap.servers": bootstrap_servers},
            "health": {"port": 0},
            "spark": {
                "spark.master": master,
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.memory": "768m",
                "spark.executor.memory": "640m",
                "spark.executor.cores": "1",
                "spark.executorEnv.PYTHONPATH": environment.pythonpath,
                "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
                "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
        }
    ]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return run_command("cluster", ClusterOptions, run_cluster, arguments)


if __name__ == "__main__":
    sys.exit(main())
