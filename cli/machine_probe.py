"""A probe of a process of the cluster, the driver or an executor: packages, broker, storage and clock.

Executors import this module, so it imports little of Sluice.
"""

import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError
from pyspark.sql import SparkSession

from sluice.kafka_io.client import connect, error_line
from sluice.state.errors import SluiceError
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.java_bridge import executors

PACKAGES = ("sluice-kafka", "pyspark", "pyarrow", "pandas", "numpy", "msgspec", "kafka-python", "hdfs-native")
"""Distributions that the driver and the executors have to have alike."""

_SENT = 5
_SEND_TIMEOUT_S = 30.0
_ATTEMPTS = 3
_SETTLED_S = 3.0
_POLL_S = 0.5


class Clock(NamedTuple):
    """Lead of a process' clock over the broker's, and the error of that figure, in milliseconds."""

    ahead_ms: float
    within_ms: float


class Probe(NamedTuple):
    """Findings of one process. `broker` and the values of `storage`, by location, are errors, None without one."""

    where: str
    python: str
    packages: Mapping[str, str | None]
    broker: str | None
    storage: Mapping[str, str | None]
    clock: Clock | None


class Probing(NamedTuple):
    """Places to probe. Records of `topic` get the broker's time."""

    kafka: Mapping[str, str]
    topic: str
    locations: Sequence[str]

    def __call__(self) -> Probe:
        """Probe from this process."""
        clock, broker_error = self._clock()
        return Probe(
            f"{socket.gethostname()}, process {os.getppid()}",  # that of the executor's daemon: one for all its workers
            platform.python_version(),
            {name: _version(name) for name in PACKAGES},
            broker_error,
            {location: _storage_error(location) for location in self.locations},
            clock,
        )

    def _clock(self) -> tuple[Clock | None, str | None]:
        """Compare clocks by several records; the one stored soonest is the most exact."""
        try:
            with connect(KafkaProducer, self.kafka, acks="all") as producer:
                return min((_clock(producer, self.topic) for _ in range(_SENT)), key=lambda each: each.within_ms), None
        except (SluiceError, KafkaError, OSError) as error:
            return None, error_line(error)


def probe_executors(spark: SparkSession, probing: Probing, seconds: float) -> list[Probe]:
    """Probe from each executor; none if no executor comes within so many seconds."""
    expected = _settled_executors(spark, seconds)
    found: dict[str, Probe] = {}
    context = spark.sparkContext
    for _ in range(_ATTEMPTS if expected else 0):
        tasks = max(context.defaultParallelism, expected)
        probes: list[Probe] = context.parallelize(range(tasks), tasks).map(lambda _: probing()).collect()
        found |= {probe.where: probe for probe in probes}
        if len(found) >= expected:
            break
    return [found[where] for where in sorted(found)]


def _settled_executors(spark: SparkSession, seconds: float) -> int:
    """Number of executors when no more come."""
    deadline_s, count, since_s = time.monotonic() + seconds, 0, time.monotonic()
    while time.monotonic() < deadline_s and (not count or time.monotonic() - since_s < _SETTLED_S):
        now = executors(spark)
        if now != count:
            count, since_s = now, time.monotonic()
        time.sleep(_POLL_S)
    return count


def _clock(producer: Any, topic: str) -> Clock:
    begun_s = time.time()
    stored_ms = producer.send(topic, b"").get(_SEND_TIMEOUT_S).timestamp
    ended_s = time.time()
    return Clock((begun_s + ended_s) * 500 - stored_ms, (ended_s - begun_s) * 500)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _storage_error(location: str) -> str | None:
    try:
        Checkpoint(location).sluice.names(".")
    except (SluiceError, OSError) as error:
        return error_line(error)
    return None
