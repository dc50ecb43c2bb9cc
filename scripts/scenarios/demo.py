"""`./scripts/run`: broker, job and a small load, shown live until Ctrl-C or for a number of seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from scripts.command import EXIT_FAILED, run_command, stop_on_signals
from scripts.scenarios.demo_brokers import run_with_brokers
from scripts.scenarios.demo_screen import WebConsole, commands_to_try, show_until, waiting, waiting_for_job
from scripts.testbed.answers import Answers
from scripts.testbed.broker import Broker, free_ports
from scripts.testbed.gateways import Connection, GreedyClient, gateway_options, sending
from scripts.testbed.job import TABLES, RunError, Sections, SluiceJob, storage_in, wait_until
from scripts.testbed.load_generator import (
    BadShare,
    BootstrapServers,
    Clients,
    Rate,
    Sent,
    TrafficOptions,
    Users,
    loading,
)
from scripts.testbed.reconciliation import audited, rows
from scripts.testbed.work_folder import work_folder
from sluice.cli.options import announced_run
from sluice.cli.top import View, name_of, row_lines, rows_of
from sluice.configs.settings import Settings, load_settings
from sluice.gateways.client.client import Gateway
from sluice.insight.format import amount, duration, printable
from sluice.insight.live import CounterRow
from sluice.kafka_io.clock import now_ms
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.kinds import QuotaKind

_EMBEDDED = Path("configs/embedded.yaml")
_DRAIN_S = 60
_LINE_CLIENTS = 2
_TABLE_CLIENTS = 10
_GREEDY = GreedyClient("greedy", QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0)
"""A client behind two gateways, which charge it inline. Its quota is in configs/quotas.yaml."""

_GREEDY_DEMAND = 20.0
_GATEWAYS = 2


@dataclass(frozen=True)
class RunOptions(TrafficOptions):
    """Run broker, job and a small load, and show what the job decides, until Ctrl-C; then print a summary.

    A second Ctrl-C ends all processes immediately. The embedded broker is not started when --bootstrap-servers or
    --config names a Kafka cluster. With --brokers the run has that many brokers with the broker plugin instead, and
    real clients at full speed, which the plugin throttles; only --seconds, --fresh and --no-console apply then.
    """

    bootstrap_servers: BootstrapServers = None
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings YAML to use instead of the embedded profile.")
    ] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the data of earlier runs.")] = False
    rate: Rate = 200.0
    users: Users = 20
    clients: Clients = 5
    bad_share: BadShare = 0.01
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
        answers = stack.enter_context(closing(Answers(settings)))
        answers.start()
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
        return Demo(job, answers, stop, console).run(options, broker, web)


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


class Demo:
    """The load on a running job, its picture and its summary."""

    def __init__(self, job: SluiceJob, answers: Answers, stop: Event, console: Console) -> None:
        self._job, self._answers, self._stop, self._console = job, answers, stop, console
        self._settings = job.settings
        self._begun_s = time.monotonic()
        self._audited_before = audited(self._settings)
        self.sent = Sent(stored=answers.sent)

    def run(self, load: TrafficOptions, broker: Broker | None, web: WebConsole | None) -> int:
        """Publish and show until it is to stop, let the job catch up, and print the summary."""

        def check() -> None:
            if broker is not None:
                broker.check()
            self._job.running()
            if web is not None and self._answers.answered:
                web.keep(self._console)

        with ExitStack() as stack:
            stack.enter_context(loading(self._settings, load, load.rate, self.sent))
            stack.enter_context(_greedy_client(self._settings))
            show_until(self._stop, load.seconds, self._console, self._lines, check)
            if self._stop.is_set():
                self._console.print("stopping: the job answers first what was sent; a second Ctrl-C kills everything")
        return self.finish()

    def finish(self) -> int:
        """Let the job catch up, stop it, and print the summary."""
        self._wait(self._unanswered, "for the decisions of {} requests")
        self._wait(self._not_in_delta, "for the audit query to write {} answers to Delta")
        with waiting(self._console, lambda: "for the job to stop"):
            self._job.stop()
        return self.summary()

    def _unanswered(self) -> int:
        return self.sent.events - self.sent.failed - self._answers.answered

    def _not_in_delta(self) -> int:
        """Answers that the audit query has still to write, those to requests of others included."""
        return self._answers.answered + self._answers.others - (audited(self._settings) - self._audited_before)

    def _wait(self, missing: Callable[[], int], words: str) -> None:
        """Wait until nothing is missing or the job has ended, at most a minute; `words` name the missing ones."""
        if missing() <= 0:
            return
        with waiting(self._console, lambda: words.format(missing())), suppress(RunError):
            wait_until(lambda: missing() <= 0 or not self._job.alive, _DRAIN_S)

    def _lines(self) -> list[str]:
        return list(self._picture())

    def _picture(self) -> Iterator[str]:
        """The counts, the clients as `sluice top` shows them, and the greedy client."""
        at_ms, model = now_ms(), self._answers.model
        yield self._counts()
        if self._console.is_terminal:
            yield from ("", *row_lines(rows_of(model, View(), at_ms, _TABLE_CLIENTS)), "")
        else:
            yield from map(_client_line, rows_of(model, View(), at_ms, _LINE_CLIENTS))
        for row in rows_of(model, View(text=_GREEDY.user), at_ms, 1):
            asked = amount(_GREEDY.quota, _GREEDY.limit * _GREEDY_DEMAND)
            got, limit = amount(row.key.kind, row.rate), amount(row.key.kind, row.limit)
            yield f"  {name_of(row)} asks two gateways for {asked} and gets {got} of {limit}"

    def _counts(self) -> str:
        """The main numbers in one line."""
        sent, answers = self.sent.events, self._answers
        rate = sent / (time.monotonic() - self._begun_s)
        if not answers.answered:
            return (
                f"{sent} requests ({rate:.0f}/s); waiting for the first micro-batch, the slowest: Java and the workers"
                " warm up"
            )
        batch = self._job.status().get("enforce", {})
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(answers.verdicts.items()))
        return (
            f"{sent} requests ({rate:.0f}/s) -> {answers.decisions} decisions ({verdicts or 'none yet'}),"
            f" {answers.dead_letters} dead letters; batch {batch.get('batch_ms', '-')} ms, lag {batch.get('lag', '-')}"
        )

    def summary(self) -> int:
        """Print the counts of the run; returns its exit code."""
        answers, delta, sent = self._answers, self._settings.delta, self.sent.events - self.sent.failed
        self._console.print(
            f"{sent} requests = {answers.decisions} decisions + {answers.dead_letters} dead letters"
            + (f" ({answers.duplicates} duplicates left out)" if answers.duplicates else ""),
            *(f"  {verdict:<8} {count}" for verdict, count in sorted(answers.verdicts.items())),
            *([f"besides, {answers.others} answers to the gateways and others"] if answers.others else []),
            f"median time from request to decision: {answers.median_delay_ms()} ms",
            f"in Delta, including earlier runs: {rows(delta.decisions)} decisions, "
            f"{rows(delta.dead_letters)} dead letters, {rows(delta.quota_metrics)} rows of metrics",
            sep="\n",
            soft_wrap=True,
        )
        if (behind := self._not_in_delta()) > 0:
            self._console.print(f"{behind} answers are not in Delta yet; the audit query continues with the next start")
        if self.sent.failed:
            self._console.print(f"{self.sent.failed} requests could not be published: {escape(self.sent.failure)}")
        if answers.answered != sent:
            self._console.print(f"{sent - answers.answered} requests were not answered in {_DRAIN_S} s")
        return EXIT_FAILED if self.sent.failed or answers.answered != sent else 0


def _client_line(row: CounterRow) -> str:
    """A client as one line."""
    used = f"{amount(row.key.kind, row.rate)} of {amount(row.key.kind, row.limit)} {row.key.kind}"
    return f"  {printable(name_of(row)):<22} {used}; {f'waits {duration(row.wait_ms)}' if row.wait_ms else 'no wait'}"


@contextmanager
def _greedy_client(settings: Settings) -> Iterator[None]:
    """Let the greedy client send, on a connection to each of two gateways, while this block runs."""
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                Gateway(settings.kafka, gateway_options(settings, name=f"run-{number}", expected_gateways=_GATEWAYS))
            )
            for number in range(1, _GATEWAYS + 1)
        ]
        demand = _GREEDY_DEMAND / _GATEWAYS
        stack.enter_context(sending([Connection(gateway, _GREEDY, demand) for gateway in gateways]))
        yield


if __name__ == "__main__":
    sys.exit(run_command("run", RunOptions, run_demo))
