"""`./scripts/run`: broker, job and a small load, shown live until Ctrl-C or for a number of seconds."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Annotated

import typer
import yaml
from kafka import KafkaProducer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape

from scripts.command import EXIT_FAILED, run_command, stop_on_signals
from scripts.demo.brokers import run_with_brokers
from scripts.demo.console import commands_to_try, waiting, waiting_for_job
from scripts.demo.held_client import HeldClient
from scripts.demo.view import client_line, line, overview
from scripts.demo.web_console import WebConsole
from scripts.testbed.broker import Broker, free_ports
from scripts.testbed.job import TABLES, RunError, Sections, SluiceJob, storage_in, wait_until
from scripts.testbed.live_counts import LiveCounts
from scripts.testbed.load_generator import (
    PRODUCER_OPTIONS,
    BadShare,
    BootstrapServers,
    Clients,
    Rate,
    Sent,
    TrafficOptions,
    Users,
    publish,
)
from scripts.testbed.reconciliation import audited, rows
from scripts.testbed.work_folder import work_folder
from sluice.cli.job_settings import announced_run
from sluice.configs.settings import Settings, load_settings
from sluice.kafka_io.client import connect
from sluice.kafka_io.clock import now_ms
from sluice.kafka_io.topics import ensure_topics

_EMBEDDED = Path("configs/embedded.yaml")
_DRAIN_SECONDS = 60
_LINE_SECONDS = 5.0
_LINE_CLIENTS = 2
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RunOptions(TrafficOptions):
    """Run broker, job and a small load, and show what the job decides, until Ctrl-C; then print a summary.

    A second Ctrl-C ends all processes immediately. The embedded broker is not started when --bootstrap-servers or
    --config names a Kafka cluster. With --brokers there are so many of them with the broker plugin, which holds real
    clients that go as fast as they are let; of the other options --seconds, --fresh and --no-console count.
    """

    bootstrap_servers: BootstrapServers = None
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings YAML to use instead of the embedded profile.")
    ] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what earlier runs left.")] = False
    rate: Rate = 200.0
    users: Users = 20
    clients: Clients = 5
    bad: BadShare = 0.01
    brokers: Annotated[
        int | None, typer.Option(min=1, max=9, metavar="N", help="Brokers with the plugin, and clients at full speed.")
    ] = None
    console: Annotated[
        bool, typer.Option("--console/--no-console", help="A web page of the clients, from the first decision on.")
    ] = True


def run_demo(options: RunOptions) -> int:
    """Run it all; 0 if every request was answered, or it was stopped before there was one, 1 if not."""
    stop, console = stop_on_signals(), Console()
    if options.brokers is not None:
        if options.bootstrap_servers or options.config:
            raise typer.BadParameter("--brokers starts brokers of its own; expected no --bootstrap-servers or --config")
        return run_with_brokers(
            options.brokers, options.seconds, stop, console, fresh=options.fresh, web_console=options.console
        )
    with ExitStack() as stack:
        folder = stack.enter_context(work_folder("run", options.fresh))
        bootstrap_servers, broker = options.bootstrap_servers, None
        if not bootstrap_servers and not options.config:
            with waiting(console, lambda: "for the embedded broker to start"):
                broker = stack.enter_context(Broker(folder / "broker"))
            bootstrap_servers = broker.bootstrap_servers
        job = SluiceJob(folder, *_layers(options.config, folder, bootstrap_servers))
        settings = job.settings
        ensure_topics(settings.topics, settings.kafka)
        counts = LiveCounts(settings)
        stack.callback(counts.close)
        stack.callback(job.stop)
        console.print(f"starting the job against {settings.kafka['bootstrap.servers']} (its logs: {folder}) ...")
        stack.enter_context(announced_run(folder.name, job.settings_file))
        try:
            with waiting_for_job(console, job):
                job.start(cancel=stop)
        except RunError:
            if not stop.is_set():
                raise
            console.print("stopped while the job was starting; nothing was published")
            return 0
        print(commands_to_try(job.settings_file, settings.health), flush=True)
        web = WebConsole(folder, job.settings_file) if options.console else None
        if web is not None:
            stack.callback(web.stop)
        return _Demo(options, broker, job, counts, stop, console, web).run()


def _layers(config: Path | None, folder: Path, bootstrap_servers: str | None) -> list[Sections]:
    """The settings of the run. Without a settings file of the user's, everything is stored in the run's folder."""
    if config is None:
        layers = [yaml.safe_load(_EMBEDDED.read_text()), storage_in(folder), {"health": {"port": free_ports(1)[0]}}]
    else:
        settings = load_settings(config)  # raises InvalidSettingsError, which names this file
        layers = [yaml.safe_load(config.read_text()) or {}, absolute_paths(settings)]
    if bootstrap_servers:
        layers.append({"kafka": {"bootstrap.servers": bootstrap_servers}})
    return layers


def absolute_paths(settings: Settings) -> Sections:
    """The paths of the settings as absolute ones, so that commands in any folder find the same files."""
    paths = {
        "enforce": {"checkpoint": settings.enforce.checkpoint},
        "audit": {"checkpoint": settings.audit.checkpoint},
        "delta": {table: getattr(settings.delta, table) for table in TABLES},
    }
    return {
        section: {name: value if "://" in value else str(Path(value).absolute()) for name, value in values.items()}
        for section, values in paths.items()
    }


class _Demo:
    """The load on a running job, its display and its summary."""

    def __init__(
        self,
        options: RunOptions,
        broker: Broker | None,
        job: SluiceJob,
        counts: LiveCounts,
        stop: Event,
        console: Console,
        web: WebConsole | None = None,
    ) -> None:
        self._options = options
        self._web = web
        self._broker = broker
        self._job = job
        self._settings = job.settings
        self._counts = counts
        self._stop = stop
        self._console = console
        self._audited_before = 0
        self._sent = Sent(stored=lambda stored: counts.sent(stored.partition, stored.offset))

    def run(self) -> int:
        """Publish and show until it is to stop, let the job catch up, and print the summary."""
        self._audited_before = audited(self._settings)
        load_stop = Event()
        load = Thread(target=self._publish, args=(load_stop,), daemon=True)
        load.start()
        held = HeldClient(self._settings)
        try:
            self._show(held)
            if self._stop.is_set():
                self._console.print("stopping: the job answers first what was sent; a second Ctrl-C kills everything")
        finally:  # without a broker a producer that is left open ends with a traceback
            load_stop.set()
            held.stop()
            load.join()
        self._wait(self._unanswered, "for the decisions of {} requests")
        self._wait(self._not_in_delta, "for the audit query to write {} answers to Delta")
        with waiting(self._console, lambda: "for the job to stop"):
            self._job.stop()
        return self._summary()

    def _unanswered(self) -> int:
        return self._sent.events - self._sent.failed - self._counts.answered

    def _not_in_delta(self) -> int:
        """Answers that the audit query has still to write, those to requests of others included."""
        return self._counts.answered + self._counts.others - (audited(self._settings) - self._audited_before)

    def _publish(self, stop: Event) -> None:
        generator, topic = self._options.generator(), self._settings.topics.requests
        with connect(KafkaProducer, self._settings.kafka, **PRODUCER_OPTIONS) as producer:
            publish(producer, topic, generator, stop, self._options.rate, sent=self._sent)

    def _show(self, held: HeldClient) -> None:
        """Show the numbers, and the client that gateways hold, until Ctrl-C or the end of the time.

        Raises RunError when the job ends by itself, BrokerError when the embedded broker does.
        """
        begun = time.monotonic()
        shown = 0.0
        with ExitStack() as stack:
            terminal = self._console.is_terminal
            live = stack.enter_context(Live(console=self._console, auto_refresh=False)) if terminal else None
            while not self._stop.wait(_POLL_SECONDS) and time.monotonic() - begun < self._options.seconds:
                if self._broker is not None:
                    self._broker.check()
                self._job.running()
                if self._web is not None and self._counts.answered:
                    self._web.keep(self._console)
                elapsed_s = time.monotonic() - begun
                numbers = (self._counts, self._job.status(), self._sent.events, self._sent.events / elapsed_s)
                if live is not None:
                    live.update(Group(overview(*numbers, now_ms()), held.line()), refresh=True)
                elif elapsed_s - shown >= _LINE_SECONDS:
                    shown = elapsed_s
                    busiest = self._counts.busiest(_LINE_CLIENTS, now_ms())
                    clients = (*(client_line(*client) for client in busiest), held.line())
                    print(line(*numbers), *clients, sep="\n  ", flush=True)

    def _wait(self, missing: Callable[[], int], words: str) -> None:
        """Wait until nothing is missing or the job has ended, at most a minute; `words` say what it waits for."""
        if missing() <= 0:
            return
        with waiting(self._console, lambda: words.format(missing())), suppress(RunError):
            wait_until(lambda: missing() <= 0 or not self._job.alive, _DRAIN_SECONDS)

    def _summary(self) -> int:
        counts, delta, sent = self._counts, self._settings.delta, self._sent.events - self._sent.failed
        self._console.print(
            f"{sent} requests = {counts.decisions} decisions + {counts.dead_letters} dead letters"
            + (f" ({counts.duplicates} duplicates left out)" if counts.duplicates else ""),
            *(f"  {verdict:<8} {count}" for verdict, count in sorted(counts.verdicts.items())),
            *([f"besides, {counts.others} answers to the gateways and others"] if counts.others else []),
            f"median time from request to decision: {counts.median_delay_ms()} ms",
            f"in Delta, including earlier runs: {rows(delta.decisions)} decisions, "
            f"{rows(delta.dead_letters)} dead letters, {rows(delta.quota_metrics)} rows of metrics",
            sep="\n",
            soft_wrap=True,
        )
        if (behind := self._not_in_delta()) > 0:
            self._console.print(f"{behind} answers are not in Delta yet; the audit query continues with the next start")
        if self._sent.failed:
            self._console.print(f"{self._sent.failed} requests could not be published: {escape(self._sent.failure)}")
        if counts.answered != sent:
            self._console.print(f"{sent - counts.answered} requests were not answered in {_DRAIN_SECONDS} s")
        return EXIT_FAILED if self._sent.failed or counts.answered != sent else 0


if __name__ == "__main__":
    sys.exit(run_command("run", RunOptions, run_demo))
