"""What the runs that try the job hard have in common: a broker and a job in a folder of their own."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

import yaml
from kafka import KafkaProducer

from configs.settings import load_settings
from scripts.books import ends, rows
from scripts.broker import Broker, Child
from scripts.free_folder import free_folder
from scripts.load_generator import PRODUCER_OPTIONS, LoadGenerator, Sent, publish
from scripts.processes import descendants
from sinks.topics import connect, ensure_topics
from state.errors import SluiceError

Json = dict[str, Any]

_LOOK_SECONDS = 0.2
_STOP_SECONDS = 90
_QUOTAS = [
    {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 5, "request_percentage": 5}},
    {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": 1_000_000, "consumer_byte_rate": 1_000_000}},
]


def run_trial(name: str, sections: Mapping[str, Json], passes: Callable[["Trial"], bool]) -> int:
    """The exit code of a command that tries a job in .work/NAME: 0 if it passes, 1 if not or if it can't go on."""
    try:
        with free_folder(name, fresh=True) as folder, Trial(folder, **sections) as trial:
            return 0 if passes(trial) else 1
    except SluiceError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1


class TrialError(SluiceError):
    """The run can't go on."""


class Trial:
    """A broker, a job and a load; `sections` are the settings that differ from what all runs have."""

    def __init__(self, folder: Path, **sections: Json) -> None:
        self._folder = folder
        self.broker = Broker(folder / "broker")
        self.broker.start()
        self.status_file = folder / "status.json"
        self._settings_file = folder / "settings.yaml"
        self._settings_file.write_text(yaml.safe_dump(self._content(sections)))
        self.settings = load_settings(self._settings_file)
        self._job: Child | None = None
        self._starts = 0
        ensure_topics(self.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all processes."""
        if self._job is not None:
            self._job.end(signal.SIGTERM, _STOP_SECONDS)
        self.broker.stop()

    def start_job(self) -> None:
        """Start the job and wait until it answers what waits, if anything does."""
        self._starts += 1
        command = [sys.executable, "-m", "streaming.cli", "run", "--config", str(self._settings_file)]
        self._job = Child([*command, "--status-file", str(self.status_file)], self._log)
        before = self.answered()
        requests = self.requests()
        self.wait(lambda: self.answered() > before or before == requests, 300)

    def kill_job(self) -> None:
        """kill -9, and wait until its Java is gone too."""
        java = self.java()
        self.job().end(signal.SIGKILL, 10)
        self.wait(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in java), 30)

    def job(self) -> Child:
        """The running job. Raises TrialError when it ended by itself."""
        if self._job is None or not self._job.alive:
            raise TrialError(f"the job ended by itself; see {self._log}")
        return self._job

    def java(self) -> list[int]:
        """Process ids of the job's Java virtual machine."""
        return [pid for pid, command in descendants(self.job().pid).items() if "org.apache.spark" in command]

    def load(self, generator: LoadGenerator, stop: Event, rate_per_s: float, **limits: Any) -> Sent:
        """Publish a load, as `load_generator.publish` does.

        An event that the broker took and whose acknowledgement was lost is sent again: it is a request of its own.
        """
        with connect(KafkaProducer, self.settings.kafka, **PRODUCER_OPTIONS) as producer:
            return publish(producer, self.settings.topics.requests, generator, stop, rate_per_s, **limits)

    def requests(self) -> int:
        """How many requests there are."""
        return sum(ends(self.settings, self.settings.topics.requests).values())

    def answered(self) -> int:
        """How many decisions and dead letters there are."""
        topics = self.settings.topics
        return sum(sum(ends(self.settings, topic).values()) for topic in (topics.decisions, topics.dead_letters))

    def drain(self, seconds: float) -> None:
        """Wait until every request is answered, and every answer is in Delta."""
        requests, delta = self.requests(), self.settings.delta
        self.wait(lambda: self.answered() >= requests, seconds)
        self.wait(lambda: rows(delta.decisions) + rows(delta.dead_letters) >= requests, seconds)

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait until `done`. Raises TrialError when that takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise TrialError(f"not done after {seconds:g} s; see {self._log}")
            time.sleep(_LOOK_SECONDS)

    @property
    def _log(self) -> Path:
        return self._folder / f"job-{self._starts}.log"

    def _content(self, sections: dict[str, Json]) -> Json:
        """The settings: everything lies in the run's folder."""
        seed = self._folder / "quotas.yaml"
        seed.write_text(yaml.safe_dump(_QUOTAS))
        tables = ("quotas", "decisions", "quota_metrics", "dead_letters")
        content: Json = {
            "kafka": {"bootstrap.servers": self.broker.bootstrap_servers},
            "enforce": {"checkpoint": str(self._folder / "checkpoints/enforce")},
            "audit": {"checkpoint": str(self._folder / "checkpoints/audit")},
            "delta": {name: str(self._folder / "delta" / name) for name in tables},
            "quotas": {"seed": str(seed)},
        }
        for name, values in sections.items():
            content[name] = {**content.get(name, {}), **values}
        return content
