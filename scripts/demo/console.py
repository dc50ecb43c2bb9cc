"""What every `./scripts/run` says: what it waits for, and commands to try."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread

from rich.console import Console

from scripts.testbed.job import SluiceJob
from sluice.configs.settings import HealthSettings

_WAITING_SECONDS = 3.0
_WAITING_FOR = {
    "broker": "for the broker to answer",
    "quotas": "for the cluster's quotas to be read",
    "session": "for the job's Spark session: Java starts",
    "queries": "for the job's queries to start",
}
"""What the job's status file says it waits for -> the words for it."""


@contextmanager
def waiting(console: Console, what: Callable[[], str]) -> Iterator[None]:
    """Say every few seconds what the run waits for, while this block runs."""
    done, begun = Event(), time.monotonic()

    def say() -> None:
        while True:
            console.print(f"{time.monotonic() - begun:>3.0f} s: waiting {what()}", highlight=False)
            if done.wait(_WAITING_SECONDS):
                return

    thread = Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def waiting_for_job(console: Console, job: SluiceJob) -> AbstractContextManager[None]:
    """Say what a job that starts waits for, while this block runs."""
    return waiting(console, lambda: _WAITING_FOR.get(job.status().get("waiting_for", ""), "for the job to start"))


def commands_to_try(
    settings_file: Path,
    health: HealthSettings,
    entity: str = "--user alice",
    client: str = "--user alice --client-id reporting",
) -> str:
    """Commands to try while it runs, which work in any folder: the limit of an entity, and a client of the load."""
    address = f"http://{health.address}:{health.port}"
    probes = (f"  curl {address}/readyz  # also /healthz and /metrics",) if health.port else ()
    sluice, config = shlex.quote(str(Path(sys.executable).with_name("sluice"))), shlex.quote(str(settings_file))
    return "\n".join(
        (
            "to try in another terminal:",
            f"  {sluice} quotas describe --config {config}",
            f"  {sluice} quotas alter {entity} --add-config producer_byte_rate=2000000 --config {config}",
            f"  {sluice} quotas resolve {client} --config {config}",
            f"  {sluice} quotas history --config {config}",
            f"  {sluice} top --config {config}",
            f"  {sluice} doctor --config {config}",
            *probes,
        )
    )
