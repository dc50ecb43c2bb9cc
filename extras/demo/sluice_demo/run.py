"""`sluice demo`: broker, job and a small load, shown live until Ctrl-C or for a number of seconds."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import typer
import yaml
from kafka.errors import KafkaError
from rich.console import Console
from rich.markup import escape

from sluice.cli.errors import UsageError
from sluice.cli.options import Command
from sluice.configs.settings import Settings, load_settings
from sluice.gateways.client.client import Gateway
from sluice.jvm.jars import SPARK_JARS, JarSet, jars_home
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.process.format import error_line
from sluice.process.processes import leaving_at_once
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.answers import Answers
from sluice_demo.broker import Broker
from sluice_demo.brokers import run_with_brokers
from sluice_demo.counts import Surplus, drain, missing_answers, rows
from sluice_demo.gateways import Connection, GreedyClient, gateway_options, sending
from sluice_demo.in_force import InForce
from sluice_demo.jars import BROKER_JARS
from sluice_demo.job import TABLES, Json, RunError, Sections, SluiceJob, embedded_profile, storage_in
from sluice_demo.load import Sent, loading
from sluice_demo.options import DemoOptions
from sluice_demo.screen import WebConsole, running_job, show_until, waiting
from sluice_demo.work_folder import work_folder
from sluice_insight.commands.top import View, row_lines, rows_of
from sluice_insight.live import CounterRow, LiveModel
from sluice_insight.row_marks import RowMarks
from sluice_insight.texts import counter_name
from sluice_proxy.processes import free_ports, stop_on_signals
from sluice_reading.format import amount
from sluice_reading.times import duration

_EXIT_FAILED = 1
_LEAVE_S = 2.2
_DRAIN_S = 60
_LINE_CLIENTS = 2
_TABLE_CLIENTS = 10
_WARM_BATCHES = 40
"""Micro-batches after the first until the load begins: in those Java compiles most of what runs in each."""

_WARMING_PER_S = 20.0
_FIRST_DECISION_S = 180.0
_LONGEST_WARMING_S = 60.0
_POLL_S = 0.1
_GREEDY = GreedyClient("greedy", QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0)
"""A client behind two gateways, which charge it inline. Its quota is in configs/quotas.yaml."""

_GREEDY_DEMAND = 20.0
_GATEWAYS = 2


def main(arguments: Sequence[str]) -> int:
    """Run the demo with these options; returns its exit code. Raises TyperException and as `run_demo` does."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(cls=Command)(DemoOptions)
    options = app(args=[*arguments], prog_name="sluice demo", standalone_mode=False)
    return run_demo(options) if isinstance(options, DemoOptions) else 0  # the code after --help


def run_demo(options: DemoOptions) -> int:
    """Run it all; 0 if every request was answered, or it was stopped before there was one, 1 if not.

    Raises UsageError, RunError and as the parts of the run do.
    """
    console, begun_s = Console(), time.monotonic()
    if not options.seconds:
        raise UsageError("--seconds is 0; expected more than 0, or none for a run until Ctrl-C")
    if options.has_brokers:
        meant = {
            name: getattr(options, name) for name in ("seconds", "fresh", "console", "brokers", "proxies", "elastic")
        }
        if options != DemoOptions(**meant):
            raise UsageError(
                f"{'--brokers' if options.proxies is None else '--proxies'} starts brokers and clients of its own;"
                " expected no other options than --seconds, --fresh, --no-console, --brokers and --proxies"
            )
    if options.elastic and options.brokers is None:
        raise UsageError("--elastic needs brokers with the plugin, which measure their load; give --brokers 3")
    with leaving_at_once():
        download_jars()
    stop = stop_on_signals()
    Thread(target=_end_after, args=(stop,), daemon=True).start()
    try:
        if options.has_brokers:
            return run_with_brokers(options, stop, console)
        return _Demo(options, stop, console, begun_s).run()
    except KafkaError as error:
        raise RunError(error_line(error)) from error


def _end_after(stop: Event) -> None:
    """End the process _LEAVE_S after `stop`, whatever it waits for, and by that all that it has started."""
    stop.wait()
    time.sleep(_LEAVE_S)
    os._exit(130)


def download_jars() -> None:
    """Download the jars of Spark and broker that are missing. Raises JarError and JavaError."""
    missing = [jars for jars in (SPARK_JARS, BROKER_JARS) if not jars.complete]
    if missing:
        print(f"fetching jars into {jars_home()} (first start only)", flush=True)
        with ThreadPoolExecutor() as pool:  # the registry's answers take the time, not bytes
            list(pool.map(JarSet.paths, missing))


def _layers(config: Path | None, folder: Path, bootstrap_servers: str | None) -> list[Sections]:
    """The settings of the run. Without a settings file of the user's, everything is stored in the run's folder."""
    if config is None:
        layers = [embedded_profile(), storage_in(folder), {"health": {"port": free_ports(1)[0]}}]
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


@dataclass(frozen=True)
class _Demo:
    """A run with a small load, and gateways in Python."""

    options: DemoOptions
    stop: Event
    console: Console
    begun_s: float

    def run(self) -> int:
        """Start all, and run the load: the exit code."""
        options = self.options
        with ExitStack() as stack:
            folder = stack.enter_context(work_folder("run", options.fresh))
            broker, servers = None, options.bootstrap_servers
            if not servers and not options.config:
                broker = Broker(folder / "broker")
                servers = broker.choose_address()
            job = SluiceJob(folder, *_layers(options.config, folder, servers))
            if broker is not None:
                job = self._start_broker(broker, job, stack)
            if self.stop.is_set():
                self.console.print("stopped while the broker was starting; nothing was published")
                return 0
            settings = job.settings
            ensure_topics(settings.topics, settings.kafka)
            servers = settings.kafka["bootstrap.servers"]
            self.console.print(f"starting the job against {servers} (its logs: {folder}) ...")
            try:
                web = stack.enter_context(running_job(self.console, job, self.stop, web_console=options.console))
            except RunError:
                if not self.stop.is_set():
                    raise
                self.console.print("stopped while the job was starting; nothing was published")
                return 0
            return self._run_load(job, broker, web)

    def _start_broker(self, broker: Broker, job: SluiceJob, stack: ExitStack) -> SluiceJob:
        """Start the broker, and beside it the job, whose Java and Spark need none; the job that waits for the broker.

        It is another one if the broker has another address than the job knows.
        """
        stack.callback(job.kill)  # until it has a broker there is nothing to end first
        job.launch()
        with waiting(self.console, lambda: "for the embedded broker to start"):
            stack.enter_context(broker)
        servers = broker.bootstrap_servers
        if servers == job.settings.kafka["bootstrap.servers"]:
            return job
        job.kill()
        return SluiceJob(job.folder, *_layers(self.options.config, job.folder, servers))

    def _run_load(self, job: SluiceJob, broker: Broker | None, web: WebConsole | None) -> int:
        """Publish and show until it is to stop, let the job catch up, and print the summary."""
        settings, console = job.settings, self.console
        before = Surplus.of(settings)
        with closing(Answers(settings)) as answers, closing(InForce.following(settings)) as in_force:
            answers.start()
            warming, sent = Sent(stored=answers.sent), Sent(stored=answers.sent)

            def check() -> None:
                if broker is not None:
                    broker.check()
                job.running()
                if web is not None and answers.answered:
                    web.keep(console)

            def lines(load: Sent, begun_s: float) -> list[str]:
                at_ms, rate = now_ms(), load.events / (time.monotonic() - begun_s)
                counts = line_of_counts(answers, warming.events + sent.events, rate, job.status().get("enforce", {}))
                width = console.width if console.is_terminal else None  # a window may be made smaller
                marks = in_force.marks(answers.model.gateways.heard(at_ms), at_ms)
                return [counts, *in_force.lines(at_ms), *lines_of_clients(answers.model, at_ms, width, marks)]

            with ExitStack() as clients:
                with loading(settings, self.options, min(self.options.rate, _WARMING_PER_S), warming):
                    warming_s = time.monotonic()
                    self._await_first_decision(answers, check)
                    clients.enter_context(_greedy_client(settings))
                    self._warm_up(job, check, lambda: lines(warming, warming_s))
                answers.forget_delays()
                with loading(settings, self.options, self.options.rate, sent):
                    loaded_s = time.monotonic()
                    show_until(self.stop, self.options.seconds, console, lambda: lines(sent, loaded_s), check)
                    if self.stop.is_set():
                        unanswered = warming.events + sent.events - warming.failed - sent.failed - answers.answered
                        console.print(f"stopped; the next start answers the {max(unanswered, 0)} requests that wait")
                        return 0
            missing = lambda: f"for {missing_answers(settings, before)} answers, and for Delta to have all of them"  # noqa: E731
            with waiting(console, missing), suppress(RunError):
                drain(settings, _DRAIN_S, before)
            with waiting(console, lambda: "for the job to stop"):
                job.stop()
            return summary(console, settings, answers, warming.and_then(sent))

    def _await_first_decision(self, answers: Answers, check: Callable[[], None]) -> None:
        """Wait for the first decision, which is told."""
        deadline_s = time.monotonic() + _FIRST_DECISION_S
        with waiting(self.console, lambda: "for the first decision: Java loads classes, and compiles"):
            while not self.stop.wait(_POLL_S) and not answers.answered and time.monotonic() < deadline_s:
                check()
        if answers.answered:
            took_s = time.monotonic() - self.begun_s
            self.console.print(f"first decision {took_s:.1f} s after the start", highlight=False)

    def _warm_up(self, job: SluiceJob, check: Callable[[], None], lines: Callable[[], list[str]]) -> None:
        """Show a small load until the job is warm: the load measures no compiler of Java."""

        def batches() -> int:
            return int(job.status().get("enforce", {}).get("batch_id", 0))

        def marked() -> list[str]:
            return [f"warming up before the whole load: {last - batches()} more micro-batches", *lines()]

        last = batches() + _WARM_BATCHES
        show_until(self.stop, _LONGEST_WARMING_S, self.console, marked, check, lambda: batches() >= last)


def line_of_counts(answers: Answers, sent: int, rate: float, batch: Json) -> str:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(answers.verdicts.items()))
    return (
        f"{sent} requests ({rate:.0f}/s) -> {answers.decisions} decisions ({verdicts or 'none yet'}),"
        f" {answers.dead_letters} dead letters, {answers.waiting} wait; batch {batch.get('batch_ms', '-')} ms"
    )


def lines_of_clients(model: LiveModel, at_ms: int, width: int | None, marks: RowMarks) -> Iterator[str]:
    """The greedy client, which waits, and the clients nearest to their limits, which don't: those of the load.

    On a terminal, which has a width, these are shown as `sluice top` shows them.
    """
    rows = [row for row in rows_of(model, View(), at_ms, _TABLE_CLIENTS + 1) if not row.key.shadow]
    throttling = [row for row in rows if row.key.user != _GREEDY.user][:_TABLE_CLIENTS]
    for row in rows_of(model, View(text=_GREEDY.user), at_ms, 1):
        asked = amount(_GREEDY.quota, _GREEDY.limit * _GREEDY_DEMAND)
        gets = f"{_use(row, marks)} from two gateways"
        yield f"  {counter_name(row.key):<28} gets {gets}; it asks for {asked} and waits as told"
    for row in () if width else throttling[:_LINE_CLIENTS]:
        wait = f"told to wait {duration(row.wait_ms)}, ignores it" if row.wait_ms else "no wait"
        yield f"  {counter_name(row.key):<28} sends {_use(row, marks)} {row.key.kind}; {wait}"
    if width:
        yield from ("", "clients of the load, which ignore their waits:", *row_lines(throttling, width, marks), "")


def _use(row: CounterRow, marks: RowMarks) -> str:
    """The mean of the last minute, a fresh counter's first ten seconds left out; until it is known the sampled rate."""
    rate, span = (row.rate, "now") if row.mean is None else (row.mean, "in a minute's mean")
    limit = amount(row.key.kind, row.limit) + marks.of(row.key, row.limit).words
    return f"{amount(row.key.kind, rate)} of {limit} {span}"


def summary(console: Console, settings: Settings, answers: Answers, load: Sent) -> int:
    """Print the counts of a run; returns its exit code."""
    delta, sent = settings.delta, load.events - load.failed
    console.print(
        f"{sent} requests = {answers.decisions} decisions + {answers.dead_letters} dead letters"
        + (f" ({answers.duplicates} duplicates left out)" if answers.duplicates else ""),
        *(f"  {verdict:<8} {count}" for verdict, count in sorted(answers.verdicts.items())),
        *(
            [f"besides, {answers.others} decisions on events of the gateways, such as greedy's requests, and of others"]
            if answers.others
            else []
        ),
        f"median time from request to decision: {answers.median_delay_ms()} ms",
        f"in Delta, including earlier runs: {rows(delta.decisions)} decisions, "
        f"{rows(delta.dead_letters)} dead letters, {rows(delta.quota_metrics)} rows of metrics",
        sep="\n",
        soft_wrap=True,
    )
    if load.failed:
        console.print(f"{load.failed} requests could not be published: {escape(load.failure)}")
    if answers.answered != sent:
        console.print(f"{sent - answers.answered} requests were not answered in {_DRAIN_S} s")
    return _EXIT_FAILED if load.failed or answers.answered != sent else 0


@contextmanager
def _greedy_client(settings: Settings) -> Iterator[None]:
    """Let the greedy client send, on a connection to each of two gateways, while this block runs.

    The gateways' logs are not shown: a broker that ends is one line of the run.
    """
    logging.getLogger("sluice.gateways").addHandler(logging.NullHandler())
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
