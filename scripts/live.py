"""`./scripts/run`: broker, job and a small load, shown as they work, until Ctrl-C or for some seconds."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import yaml
from kafka import KafkaProducer
from rich.console import Console
from rich.live import Live

from configs.errors import InvalidSettingsError
from configs.settings import Settings, load_settings
from scripts.books import rows
from scripts.broker import Broker, Child
from scripts.free_folder import free_folder
from scripts.live_view import decision_line, line, overview
from scripts.load_generator import DEFAULT_MIX, PRODUCER_OPTIONS, Sent, api_mix, generator_of, publish
from scripts.tally import Tally
from sinks.topics import connect, ensure_topics
from state.errors import SluiceError

_EMBEDDED = Path("configs/embedded.yaml")
_START_SECONDS = 180
_DRAIN_SECONDS = 60
_JOB_STOP_SECONDS = 90
_LINE_SECONDS = 5.0
_LOOK_SECONDS = 0.5


class RunError(SluiceError):
    """The run can't go on."""


@dataclass(frozen=True)
class Place:
    """The folder of one run, and the files in it."""

    folder: Path

    @property
    def settings(self) -> Path:
        return self.folder / "settings.yaml"

    @property
    def status(self) -> Path:
        return self.folder / "status.json"

    @property
    def job_log(self) -> Path:
        return self.folder / "job.log"


def main() -> int:
    """Run it all; 0 if every request was answered, 1 if not, 2 for bad usage."""
    options = _parser().parse_args()
    stop = _stop_on_signals()
    console = Console()
    try:
        with ExitStack() as stack:
            place = Place(stack.enter_context(free_folder("run", options.fresh)))
            return _run(options, place, stack, stop, console)
    except InvalidSettingsError as error:
        print(f"run: error: {error}", file=sys.stderr)
        return 2
    except SluiceError as error:
        print(f"run: error: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, place: Place, stack: ExitStack, stop: Event, console: Console) -> int:
    bootstrap_servers = options.bootstrap_servers
    if not bootstrap_servers and not options.config:
        console.print("starting the embedded broker ...")
        bootstrap_servers = stack.enter_context(Broker(place.folder / "broker")).bootstrap_servers
    settings = _settings(options, place, bootstrap_servers)
    ensure_topics(settings)
    console.print(f"starting the job against {settings.kafka['bootstrap.servers']} (its log: {place.job_log}) ...")
    tally = Tally(settings)
    stack.callback(tally.close)
    job = _start_job(place, stop)
    stack.callback(lambda: job.end(signal.SIGTERM, _JOB_STOP_SECONDS))
    audited_before = _audited(settings)
    sent = Sent()
    load_stop = Event()
    load = Thread(target=_publish, args=(options, settings, load_stop, sent), daemon=True)
    load.start()
    _show(options, place, job, tally, sent, stop, console)
    load_stop.set()
    load.join()
    _wait(job, lambda: tally.answered >= sent.events)
    _wait(job, lambda: _audited(settings) - audited_before >= tally.answered)
    job.end(signal.SIGTERM, _JOB_STOP_SECONDS)
    return _summary(settings, tally, sent, console)


def _settings(options: argparse.Namespace, place: Place, bootstrap_servers: str | None) -> Settings:
    """The settings of the run, written down for the job; without a file of its own everything lies in its folder."""
    if options.config:
        load_settings(options.config)  # says what is wrong with it
        content = yaml.safe_load(options.config.read_text()) or {}
    else:
        content = yaml.safe_load(_EMBEDDED.read_text())
        content["enforce"]["checkpoint"] = str(place.folder / "checkpoints" / "enforce")
        content["audit"]["checkpoint"] = str(place.folder / "checkpoints" / "audit")
        content["delta"] = {name: str(place.folder / "delta" / name) for name in content["delta"]}
    if bootstrap_servers:
        content.setdefault("kafka", {})["bootstrap.servers"] = bootstrap_servers
    place.settings.write_text(yaml.safe_dump(content))
    return load_settings(place.settings)


def _start_job(place: Place, stop: Event) -> Child:
    """Start `sluice run` and wait until both of its queries run."""
    place.status.unlink(missing_ok=True)
    command = [sys.executable, "-m", "streaming.cli", "run"]
    job = Child([*command, "--config", str(place.settings), "--status-file", str(place.status)], place.job_log)
    deadline = time.monotonic() + _START_SECONDS
    while _status(place).get("state") != "running":
        if not job.alive:
            raise RunError(f"the job ended: {_last_line(place.job_log)}")
        if time.monotonic() > deadline or stop.is_set():
            job.end(signal.SIGTERM, _JOB_STOP_SECONDS)
            raise RunError(f"the job didn't start; see {place.job_log}")
        time.sleep(_LOOK_SECONDS)
    return job


def _publish(options: argparse.Namespace, settings: Settings, stop: Event, sent: Sent) -> None:
    with connect(KafkaProducer, settings.kafka, **PRODUCER_OPTIONS) as producer:
        publish(producer, settings.topics.requests, generator_of(options), stop, options.rate, sent=sent)


def _show(
    options: argparse.Namespace, place: Place, job: Child, tally: Tally, sent: Sent, stop: Event, console: Console
) -> None:
    """Show the run until it is to stop."""
    begun = time.monotonic()
    shown = 0.0
    with ExitStack() as stack:
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if console.is_terminal else None
        while not stop.wait(_LOOK_SECONDS) and time.monotonic() - begun < options.seconds:
            if not job.alive:
                raise RunError(f"the job ended: {_last_line(place.job_log)}")
            elapsed_s = time.monotonic() - begun
            numbers = (tally, _status(place), sent.events, sent.events / elapsed_s)
            if live is not None:
                live.update(overview(*numbers), refresh=True)
            elif elapsed_s - shown >= _LINE_SECONDS:
                shown = elapsed_s
                print(line(*numbers), *map(decision_line, tally.last()[-2:]), sep="\n  ", flush=True)


def _wait(job: Child, done: Callable[[], bool]) -> None:
    """Wait until what was published has come through, or the job is gone."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while not done() and job.alive and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _summary(settings: Settings, tally: Tally, sent: Sent, console: Console) -> int:
    console.print(
        f"{sent.events} requests = {tally.decisions} decisions + {tally.dead_letters} dead letters"
        + (f" ({tally.duplicates} duplicates left out)" if tally.duplicates else ""),
        *(f"  {verdict:<8} {count}" for verdict, count in sorted(tally.verdicts.items())),
        f"median time from request to decision: {tally.median_delay_ms()} ms",
        f"in Delta, with what earlier runs left: {rows(settings.delta.decisions)} decisions, "
        f"{rows(settings.delta.dead_letters)} dead letters, {rows(settings.delta.quota_metrics)} rows of metrics",
        sep="\n",
    )
    if tally.answered == sent.events:
        return 0
    console.print(f"{sent.events - tally.answered} requests were not answered in {_DRAIN_SECONDS} s")
    return 1


def _audited(settings: Settings) -> int:
    return rows(settings.delta.decisions) + rows(settings.delta.dead_letters)


def _status(place: Place) -> dict[str, Any]:
    if not place.status.exists():
        return {}
    status: dict[str, Any] = json.loads(place.status.read_text())
    return status


def _last_line(log: Path) -> str:
    lines = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
    return lines[-1] if lines else "it left no message"


def _stop_on_signals() -> Event:
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./scripts/run", description="Broker, job and a small load, and what they decide."
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end by itself (default: Ctrl-C)")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="a Kafka cluster instead of the embedded one")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings YAML instead of the embedded profile")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs left")
    parser.add_argument("--rate", type=float, default=200.0, help="requests/s to publish (200)")
    parser.add_argument("--users", type=int, default=20, help="number of users (20)")
    parser.add_argument("--clients", type=int, default=5, help="number of client-ids (5)")
    parser.add_argument("--topics", type=int, default=20, help="number of topics in the requests (20)")
    parser.add_argument("--skew", type=float, default=1.1, help="Zipf exponent of users and clients (1.1)")
    parser.add_argument("--mix", type=api_mix, default=DEFAULT_MIX, help="such as Produce=50,Fetch=30,CreateTopics=20")
    parser.add_argument("--bad", type=float, default=0.01, help="share of bad events (0.01)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same load (1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
