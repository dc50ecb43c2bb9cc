"""Rig of the scenarios: a job on brokers, with a load; start, load, break, drain and reconcile it in a folder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event

import psutil

from scripts.command import EXIT_FAILED
from sluice.kafka_io.topics import ensure_topics
from sluice_demo.broker import Broker
from sluice_demo.counts import answered, missing_answers
from sluice_demo.job import Json, Sections, SluiceJob, quotas_in, storage_in, wait_until
from sluice_demo.work_folder import work_folder
from sluice_lab.testbed.processes import descendants, kill, python_workers

QUOTAS = [
    {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 5, "request_percentage": 5}},
    {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": 1_000_000, "consumer_byte_rate": 1_000_000}},
]

_START_S = 300.0
_END_S = 30.0


class Rig(SluiceJob, AbstractContextManager["Rig"]):
    """A job on brokers that run; `sections` are settings on top of those for the folder, `quotas` the first quotas."""

    def __init__(
        self, folder: Path, bootstrap_servers: str, sections: Sections, quotas: Sequence[Json] = QUOTAS
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        kafka = {"kafka": {"bootstrap.servers": bootstrap_servers}}
        super().__init__(folder, storage_in(folder), quotas_in(folder, quotas), kafka, sections)
        ensure_topics(self.settings.topics, self.settings.kafka)

    def __exit__(self, *_: object) -> None:
        """End the job."""
        self.stop()

    def start(self, cancel: Event | None = None) -> None:
        """Start the job and wait until it answers waiting requests, if there are any."""
        before, waiting = answered(self.settings), missing_answers(self.settings)
        super().start(cancel)
        wait_until(lambda: answered(self.settings) > before or waiting <= 0, _START_S)

    def kill(self) -> None:
        """kill -9, and wait until the job's Java has ended too."""
        java = self.java()
        super().kill()
        wait_until(lambda: not any(map(psutil.pid_exists, java)), _END_S)

    def kill_workers(self) -> None:
        """kill -9 of the Python workers."""
        for pid in python_workers(self.running().pid):
            kill(pid)

    def java(self) -> list[int]:
        """Process ids of the job's Java virtual machine."""
        return [pid for pid, command in descendants(self.running().pid).items() if "org.apache.spark" in command]


@contextmanager
def rig_with_broker(folder: Path, sections: Sections, quotas: Sequence[Json] = QUOTAS) -> Iterator[tuple[Rig, Broker]]:
    """A rig with a broker of its own."""
    with Broker(folder / "broker") as broker, Rig(folder, broker.bootstrap_servers, sections, quotas) as rig:
        yield rig, broker


def run_scenario(name: str, sections: Sections, passes: Callable[[Rig, Broker], bool]) -> int:
    """The exit code of a scenario in .work/NAME with a broker of its own: 0 if it passes, else 1."""
    with work_folder(name, fresh=True) as folder, rig_with_broker(folder, sections) as (rig, broker):
        return 0 if passes(rig, broker) else EXIT_FAILED
