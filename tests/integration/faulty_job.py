"""The job with a broker of its own, for the tests that break either, and the books after each fault.

Requests = decisions + dead letters, each once in its topic and one row in Delta, each charge counted once in the
metrics, and each decision the one that `simulate` makes of the same events, so that no balance is lost either.
"""

import time
from pathlib import Path

import yaml

from sluice_demo.broker import Broker
from sluice_demo.counts import audited
from sluice_demo.job import Json, write_settings
from sluice_demo.load_generator import DEFAULT_MIX, LoadGenerator
from sluice_lab.testbed.reconciliation import Reconciliation, reconcile
from sluice_lab.testbed.rig import QUOTAS
from tests.commands import run_sluice
from tests.integration.job_process import JobProcess, wait_until

_RESTART = {"max_failures": 4, "backoff_ms": 200, "max_backoff_ms": 1000}
_EVENTS = LoadGenerator(seed=8, users=50, clients=10, zipf_skew=1.1, api_mix=DEFAULT_MIX, bad_share=0.01)


class Faulty:
    """A job with its own broker, and the load on it."""

    def __init__(self, folder: Path, **sections: Json) -> None:
        self.broker = Broker(folder / "broker")
        self.broker.start()
        self.job = JobProcess(folder / "faults", self.broker.bootstrap_servers, QUOTAS, restart=_RESTART, **sections)
        self.settings = self.job.settings
        self._start_ms = time.time_ns() // 1_000_000
        self._published = 0

    def event(self, number: int) -> bytes | None:
        """An event of the load by its number, with the time of the job's start."""
        return _EVENTS.event(number, self._start_ms)

    def publish(self, count: int) -> None:
        """Publish the next `count` events, a millisecond apart; one in a hundred is bad."""
        first, self._published = self._published, self._published + count
        self.job.publish(_EVENTS.event(number, self._start_ms + number) for number in range(first, self._published))

    def answers(self) -> Reconciliation:
        """Wait until every request is answered, and reconcile; Delta may be behind."""
        self.job.answered(self.job.count(self.settings.topics.requests), 180)
        return reconcile(self.settings)

    def balance(self) -> Reconciliation:
        """Wait until every answer is in Delta too, and reconcile."""
        requests = self.job.count(self.settings.topics.requests)
        wait_until(lambda: audited(self.settings) >= requests, 180)
        return self.answers()

    def query(self, name: str) -> Json:
        """State, restarts and reason of a query, as the status file has them."""
        state: Json = self.job.status().get("queries", {}).get(name, {})
        return state

    def run_to_the_end(self, **sections: Json) -> tuple[int, str]:
        """Start the job with other settings and wait for its end: exit code and last line."""
        other = self.job.folder / "other.yaml"
        write_settings(other, yaml.safe_load(self.job.settings_file.read_text()), sections)
        ended = run_sluice("run", "--config", other)
        lines = ended.error.splitlines()
        assert "Traceback" not in [line for line in lines if not line.startswith("{")]
        return ended.code, lines[-1]
