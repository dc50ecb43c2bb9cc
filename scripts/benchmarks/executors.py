"""Throughput of a small Spark cluster on the same cores as local mode."""

from contextlib import ExitStack
from pathlib import Path

from scripts.benchmarks.events import ONE_CHARGE, spread
from scripts.benchmarks.report import Findings, at_least
from scripts.benchmarks.rig import BenchmarkRig, Scale, Setup
from scripts.spark_cluster.environment import EnvironmentFolder
from scripts.spark_cluster.spark import SparkCluster
from scripts.testbed.job import Json, storage_in
from sluice.kafka_io.clock import now_ms

_EXECUTORS = 3
_WORKER_MEMORY = "2g"
_BAR = 0.7
_UNIT = "requests/s"
_LOCAL, _CLUSTER = "local", "cluster"


def measure_executors(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """(o) enforce over a backlog in local mode and on a master and three workers, in turns."""
    speeds: dict[str, list[float]] = {_LOCAL: [], _CLUSTER: []}
    with ExitStack() as stack:
        # The cluster's environment is for what starts after it.
        local = stack.enter_context(rig.driver())
        folder = rig.folder / "environment"
        folder.mkdir()
        spark = SparkCluster(rig.folder / "spark", _EXECUTORS, EnvironmentFolder(folder), _WORKER_MEMORY)
        stack.enter_context(spark)
        drivers = {_LOCAL: local, _CLUSTER: stack.enter_context(rig.driver())}
        for run in range(scale.warm_runs + scale.runs):
            for mode, driver in drivers.items():
                setup = _setup(rig, scale, mode, run, spark)
                if run == 0:
                    topic = setup.settings.topics.requests
                    rig.publish(topic, ONE_CHARGE.backlog(spread(scale.events, scale.users), now_ms()))
                    driver.session(setup)
                driver.start("enforce", setup)
                speed = scale.steady_events_per_s(driver.drain(scale.events)["batches"])
                if run >= scale.warm_runs:
                    speeds[mode].append(speed)
    section = "Throughput of a cluster, 1 charge a request"
    alone = findings.add(section, "local mode", _UNIT, speeds[_LOCAL])
    spread_out = findings.add(section, f"{_EXECUTORS} executors of one core", _UNIT, speeds[_CLUSTER])
    findings.compare(f"{_EXECUTORS} executors / local mode, throughput", spread_out, alone, at_least(_BAR))


def _setup(rig: BenchmarkRig, scale: Scale, mode: str, run: int, spark: SparkCluster) -> Setup:
    """Each mode is sized for its cores; the cluster's checkpoint is in a folder that all its processes share."""
    name = f"executors-{mode}-{run}"
    enforce: Json = {"max_offsets_per_trigger": scale.batch_events}
    sections: Json = {"enforce": enforce} if mode == _LOCAL else _on_cluster(rig.folder / name, spark, enforce)
    return rig.setup(name, f"executors-{mode}-requests", ONE_CHARGE.quotas, **sections)


def _on_cluster(folder: Path, spark: SparkCluster, enforce: Json) -> Json:
    sections: Json = {
        section: {name: Path(path).as_uri() for name, path in paths.items()}
        for section, paths in storage_in(folder).items()
        if paths is not None
    }
    sections["enforce"] |= enforce | {"shuffle_partitions": _EXECUTORS}
    return sections | {"topics": {"partitions": _EXECUTORS}, "spark": spark.settings(_EXECUTORS)}
