"""`./scripts/cluster`: the job on a real Spark cluster with three brokers, a load, and kills; ends by itself."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Annotated, NamedTuple

import typer

from scripts.command import EXIT_FAILED, run_command
from sluice_demo.answers import Answers
from sluice_demo.cluster import Cluster
from sluice_demo.counts import audited
from sluice_demo.job import TABLES, Json, Sections, wait_until
from sluice_demo.load import Sent, loading
from sluice_demo.load_generator import LoadGenerator
from sluice_demo.work_folder import work_folder
from sluice_lab.benchmarks.report import table
from sluice_lab.testbed.hdfs import Hdfs
from sluice_lab.testbed.object_store import ObjectStore
from sluice_lab.testbed.processes import kill
from sluice_lab.testbed.reconciliation import reconcile
from sluice_lab.testbed.rig import Rig
from sluice_lab.testbed.spark_cluster import SparkCluster
from sluice_proxy.processes import stop_on_signals

_WORKERS = 3
_BROKERS = 3
_DATA_NODES = 3
_WORKER_MEMORY = "2g"
_BEST_EFFORT = "dfs.client.block.write.replace-datanode-on-failure.best-effort"
"""With three data nodes there is no other one in the place of one that was killed."""

_RECOVERY_S = 300
_DRAIN_S = 600
_LINE_S = 5.0
_LEAST_PAUSE_S = 2.0
_AWAY_S = 60.0


class Victim(StrEnum):
    """A part of the cluster that can be killed."""

    EXECUTOR = "executor"
    WORKER = "worker"
    MASTER = "master"
    DRIVER = "driver"
    BROKER = "broker"
    DATANODE = "datanode"
    STORE = "store"
    """The object store, away for a minute."""
    PAUSE = "pause"
    """The driver, stopped for a minute and woken up."""


AIM = {Victim.EXECUTOR: "10 s", Victim.DRIVER: "30 s"}
"""Time after which decisions are to go on, where there is an aim."""


def planned(named: Sequence[Victim], count: int, possible: Sequence[Victim], chance: random.Random) -> list[Victim]:
    """The named victims in their order, then others up to `count` in all: each kind once before any comes again.

    >>> planned([Victim.DRIVER], 3, [Victim.MASTER], random.Random(1))
    [<Victim.DRIVER: 'driver'>, <Victim.MASTER: 'master'>, <Victim.MASTER: 'master'>]
    """
    victims = list(named)
    while len(victims) < count:
        victims += chance.sample(list(possible), min(len(possible), count - len(victims)))
    return victims


class Storage(StrEnum):
    """Storage of checkpoints and tables."""

    HDFS = "hdfs"
    S3 = "s3"
    FILES = "files"

    @property
    def victims(self) -> list[Victim]:
        """The kinds that can be killed with this storage, without the pause, which is no kill."""
        own = {Victim.DATANODE: Storage.HDFS, Victim.STORE: Storage.S3}
        return [victim for victim in Victim if own.get(victim, self) is self and victim is not Victim.PAUSE]


@dataclass(frozen=True)
class ClusterOptions:
    """Run the job on a Spark master and three workers, with three brokers and a standby driver, and kill with -9.

    Executors run the wheel, not the checkout. Checkpoints and tables are in an HDFS of one name node and three data
    nodes, with `--storage s3` in an object store, or with `--storage files` in a folder that all processes share. The
    standby driver is there if a driver is to be killed. In the end each request has one decision in the table, as
    `sluice simulate` gives it, or the exit code is 1.

    Killed may be `store` (the object store refuses connections for a minute) and `pause` (the driver is stopped for a
    minute, and wakes up when another one leads) too.
    """

    seconds: Annotated[float, typer.Option(min=1, help="How long to publish, at least.")] = 60.0
    requests: Annotated[int, typer.Option(min=1, help="How many requests to publish, at least.")] = 1
    rate: Annotated[float, typer.Option(min=1, help="Requests per second.")] = 200.0
    victims: Annotated[
        list[Victim] | None, typer.Option("--kill", help="Process to kill with -9; repeat the option for more.")
    ] = None
    kills: Annotated[int, typer.Option(min=0, help="How many kills in all, of all kinds in turn.")] = 0
    seed: Annotated[int, typer.Option(help="The same seed kills the same executors, workers, brokers and so on.")] = 1
    storage: Annotated[Storage, typer.Option(help="Where checkpoints and tables are.")] = Storage.HDFS
    delay_s: Annotated[
        float, typer.Option("--delay", min=0, help="Seconds by which the object store answers late.")
    ] = 0.0

    def __post_init__(self) -> None:
        """Raises BadParameter for a victim that isn't there with this storage."""
        for victim in self.victims or ():
            if victim not in (*self.storage.victims, Victim.PAUSE):
                wanted = Storage.HDFS if victim is Victim.DATANODE else Storage.S3
                raise typer.BadParameter(
                    f"--kill is {victim} with --storage {self.storage}; expected --storage {wanted} with it"
                )


def run_cluster(options: ClusterOptions) -> int:
    """Run it; 0 if everything balances, 1 if not."""
    stop = stop_on_signals()
    with work_folder("cluster", fresh=True) as folder, ExitStack() as stack:
        print(f"building the wheel, and starting Spark, brokers and storage (logs: {folder}) ...", flush=True)
        hdfs = stack.enter_context(Hdfs(folder / "hdfs", _DATA_NODES)) if options.storage is Storage.HDFS else None
        store = stack.enter_context(ObjectStore(folder / "store")) if options.storage is Storage.S3 else None
        brokers = stack.enter_context(Cluster(folder / "brokers", _BROKERS))
        spark = stack.enter_context(SparkCluster(folder / "spark", _WORKERS, _WORKER_MEMORY))
        if store is not None:
            store.misbehave(delay_s=options.delay_s)
        shared = hdfs or store
        sections = _sections(shared.url if shared is not None else (folder / "shared").as_uri(), spark)
        sections |= store.settings() if store is not None else {}
        run = _Run(options, folder, _Parts(spark, brokers, hdfs, store), sections, stop)
        stack.callback(run.close)
        return run.run()


class _Parts(NamedTuple):
    """Everything that can be killed but the drivers."""

    spark: SparkCluster
    brokers: Cluster
    hdfs: Hdfs | None
    store: ObjectStore | None


class _Run:
    def __init__(self, options: ClusterOptions, folder: Path, parts: _Parts, sections: Sections, stop: Event) -> None:
        self._options, self._parts, self._stop = options, parts, stop
        self._chance = random.Random(options.seed)
        self._victims = planned(options.victims or (), options.kills, options.storage.victims, self._chance)
        servers = parts.brokers.bootstrap_servers
        self._drivers = [Rig(folder / name, servers, sections) for name in ("one", "two")]
        self._settings = self._drivers[0].settings
        self._answers = Answers(self._settings)
        self._sent = Sent(stored=self._answers.sent)
        self._answers.start()

    def close(self) -> None:
        """End the drivers."""
        self._answers.close()
        for driver in reversed(self._drivers):
            driver.stop()

    def run(self) -> int:
        """Load, kill, and reconcile."""
        leader = self._drivers[0]
        print("starting the job ...", flush=True)
        leader.start(cancel=self._stop)
        load = LoadGenerator(seed=7, users=50, clients=5, bad_share=0.01)
        with loading(self._settings, load, self._options.rate, self._sent):
            ends_s = time.monotonic() + self._options.seconds
            self._until_decided(0)
            print(f"{len(self._parts.spark.executors())} executors decide", flush=True)
            kills = self._kill_all()
            while not self._stop.is_set() and (time.monotonic() < ends_s or self._sent.events < self._options.requests):
                self._watch(_LINE_S)
        print(f"published {self._sent.summary()}; waiting for the answers", flush=True)
        stored = self._sent.events - self._sent.failed
        self._wait_for(lambda: self._answers.answered >= stored, _DRAIN_S)
        self._wait_for(lambda: audited(self._settings) >= stored, _DRAIN_S)
        for driver in reversed(self._drivers):
            driver.stop()
        found = reconcile(self._settings)
        if kills:
            print(*table("kind", "killed", "decisions went on after", "aim", rows=kills), sep="\n", flush=True)
        copies = f"{found.duplicates} copies, {found.different_copies} of them different, {found.fenced} fenced"
        print(f"in the topics {copies}; without the copies:", flush=True)
        found = replace(found, duplicates=0)  # a repeated task may publish a copy of an answer
        print(found, flush=True)
        return 0 if found.balanced and found.simulated and not found.different_copies else EXIT_FAILED

    def _kill_all(self) -> list[Sequence[str]]:
        """Kill the planned victims, spread over the load. Returns a row of the table for each."""
        planned_s = max(self._options.seconds, self._options.requests / self._options.rate)
        pause_s = planned_s / (len(self._victims) + 1) if self._victims else 0.0
        kills = []
        next_s = time.monotonic()
        for victim in self._victims:
            next_s += pause_s * self._chance.uniform(0.5, 1.0)
            if victim in (Victim.DRIVER, Victim.PAUSE):
                self._make_standby_ready()
            self._watch(max(next_s - time.monotonic(), _LEAST_PAUSE_S))
            if self._stop.is_set():
                break
            kills.append(self._kill(victim))
        return kills

    def _watch(self, seconds: float) -> None:
        """Show the counts of decisions for this time."""
        ends_s = time.monotonic() + seconds
        while not self._stop.is_set() and (left_s := ends_s - time.monotonic()) > 0:
            self._stop.wait(min(left_s, _LINE_S))
            verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self._answers.verdicts.items()))
            print(f"{self._answers.answered} of {self._sent.events} answered: {verdicts}", flush=True)

    def _kill(self, victim: Victim) -> Sequence[str]:
        """Kill one, wait until a request published since is answered, and start another in its place."""
        begun_s = time.monotonic()
        what, replace = self._victim(victim)
        self._until_decided(self._sent.events)
        took_s = time.monotonic() - begun_s
        print(f"{victim} killed ({what}); requests published since are answered after {took_s:.1f} s", flush=True)
        replace()
        return victim, what, f"{took_s:.1f} s", AIM.get(victim, "-")

    def _victim(self, victim: Victim) -> tuple[str, Callable[[], object]]:
        """Kill one. Returns its description, and a function that starts another one, unless something else does."""
        spark, brokers, hdfs, store = self._parts
        number = self._chance.randrange(_WORKERS)  # of three workers, brokers or data nodes
        match victim:
            case Victim.EXECUTOR:
                pid = self._chance.choice(sorted(spark.executors()))
                kill(pid)
                return f"executor with process {pid}", lambda: None  # Spark starts another one
            case Victim.WORKER:
                kill(spark.workers[number].pid)
                return f"worker {number} and its executor", lambda: spark.restart_worker(number)
            case Victim.MASTER:
                kill(spark.master.pid)
                return "the master", spark.restart_master
            case Victim.BROKER:
                brokers.brokers[number].kill()
                return f"broker {number + 1}", brokers.brokers[number].start
            case Victim.DATANODE if hdfs is not None:
                kill(hdfs.data_nodes[number].pid)
                return f"datanode {number}", lambda: hdfs.restart(number)
            case Victim.STORE if store is not None:
                store.misbehave(away=True)
                self._watch(_AWAY_S)
                store.misbehave(delay_s=self._options.delay_s)
                return f"the object store, for {_AWAY_S:.0f} s", lambda: None
        leader = self._drivers[0]
        self._drivers.reverse()
        if victim is Victim.PAUSE:
            return f"the driver {leader.folder.name}, for {_AWAY_S:.0f} s or more", self._paused(leader)
        leader.kill()
        return f"the driver {leader.folder.name}", lambda: None

    def _paused(self, leader: Rig) -> Callable[[], object]:
        """Stop a driver with its Java. Returns a function that wakes it up, and waits until it has ended."""
        processes = [leader.running().pid, *leader.java()]
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        until_s = time.monotonic() + _AWAY_S

        def wake_up() -> None:
            self._watch(max(until_s - time.monotonic(), 0.0))
            for pid in processes:
                os.kill(pid, signal.SIGCONT)
            self._wait_for(lambda: not leader.alive, _RECOVERY_S)
            print(f"the driver {leader.folder.name} woke up: {leader.last_line()}", flush=True)

        return wake_up

    def _make_standby_ready(self) -> None:
        standby = self._drivers[1]
        standby.launch("--standby")
        self._wait_for(lambda: standby.status().get("waiting_for") == "leadership", _RECOVERY_S)

    def _until_decided(self, published: int) -> None:
        """Wait until all requests so far are answered, and one more."""
        self._wait_for(lambda: self._answers.answered > published, _RECOVERY_S)

    def _wait_for(self, done: Callable[[], bool], seconds: float) -> None:
        wait_until(lambda: self._stop.is_set() or done(), seconds)


def _sections(storage: str, spark: SparkCluster) -> dict[str, Json]:
    return {
        "enforce": {"checkpoint": f"{storage}/checkpoints/enforce", "shuffle_partitions": _WORKERS},
        "audit": {"checkpoint": f"{storage}/checkpoints/audit"},
        "delta": {name: f"{storage}/delta/{name}" for name in TABLES} | {"storage_options": {_BEST_EFFORT: "true"}},
        # with one partition the order of all requests is known, so they can be simulated
        "topics": {"partitions": 1, "replication_factor": _BROKERS},
        "health": {"port": 0},
        "spark": spark.settings(_WORKERS)
        | {
            "spark.driver.memory": "768m",
            "spark.executor.memory": "640m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            f"spark.hadoop.{_BEST_EFFORT}": "true",
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return run_command("cluster", ClusterOptions, run_cluster, arguments)


if __name__ == "__main__":
    sys.exit(main())
