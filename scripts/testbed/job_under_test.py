"""A broker, a job and a load in a folder of their own, for the chaos and the soak run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Self

import psutil
from kafka import KafkaProducer

from scripts.command import EXIT_FAILED
from scripts.testbed.broker import Broker
from scripts.testbed.job import Json, Sections, SluiceJob, quotas_in, storage_in, wait_until
from scripts.testbed.load_generator import PRODUCER_OPTIONS, LoadGenerator, Sent, publish
from scripts.testbed.processes import descendants
from scripts.testbed.reconciliation import answered, audited, ends
from scripts.testbed.work_folder import work_folder
from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics

QUOTAS = [
    {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 5, "request_percentage": 5}},
    {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": 1_000_000, "consumer_byte_rate": 1_000_000}},
]


def run_job_test(name: str, sections: Sections, passes: Callable[["JobUnderTest"], bool]) -> int:
    """The exit code of a command that tests a job in .work/NAME: 0 if it passes, else 1."""
    with work_folder(name, fresh=True) as folder, JobUnderTest(folder, sections) as job:
        return 0 if passes(job) else EXIT_FAILED


class JobOnBrokers(SluiceJob):
    """A job on brokers that run; `sections` are the settings that differ between tests, `quotas` the first quotas."""

    def __init__(self, folder: Path, bootstrap_servers: str, sections: Sections, quotas: Sequence[Json]) -> None:
        kafka = {"kafka": {"bootstrap.servers": bootstrap_servers}}
        super().__init__(folder, storage_in(folder), quotas_in(folder, quotas), kafka, sections)
        ensure_topics(self.settings.topics, self.settings.kafka)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        self.stop()

    def start(self, cancel: Event | None = None) -> None:
        """Start the job and wait until it answers waiting requests, if there are any."""
        before, requests = answered(self.settings), self.requests()
        super().start(cancel)
        wait_until(lambda: answered(self.settings) > before or before == requests, 300)

    def kill(self) -> None:
        """kill -9, and wait until the job's Java has ended too."""
        java = self.java()
        super().kill()
        wait_until(lambda: not any(map(psutil.pid_exists, java)), 30)

    def java(self) -> list[int]:
        """Process ids of the job's Java virtual machine."""
        return [pid for pid, command in descendants(self.running().pid).items() if "org.apache.spark" in command]

    def load(self, generator: LoadGenerator, stop: Event, rate_per_s: float, **limits: Any) -> Sent:
        """Publish a load, as `load_generator.publish` does.

        An event whose acknowledgement was lost is sent again, and is then a second request.
        """
        with connect(KafkaProducer, self.settings.kafka, **PRODUCER_OPTIONS) as producer:
            return publish(producer, self.settings.topics.requests, generator, stop, rate_per_s, **limits)

    def requests(self) -> int:
        """Number of requests in the topic."""
        return sum(ends(self.settings, self.settings.topics.requests).values())

    def drain(self, seconds: float) -> None:
        """Wait until every request is answered and every answer is in Delta."""
        requests = self.requests()
        wait_until(lambda: answered(self.settings) >= requests, seconds)
        wait_until(lambda: audited(self.settings) >= requests, seconds)


class JobUnderTest(JobOnBrokers):
    """A job with a broker of its own."""

    def __init__(self, folder: Path, sections: Sections, quotas: Sequence[Json] = QUOTAS) -> None:
        self.broker = Broker(folder / "broker")
        self.broker.start()
        super().__init__(folder, self.broker.bootstrap_servers, sections, quotas)

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        super().__exit__()
        self.broker.stop()
