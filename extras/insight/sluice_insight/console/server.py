"""The console as a process: its readers, and the application on a port."""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.topic_follower import Reading, TopicFollower
from sluice.process.addresses import is_loopback
from sluice.process.background import BackgroundService
from sluice.process.clock import now_ms
from sluice.process.http_server import HttpServer, host_of
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.quotas.limits import LimitsView
from sluice.state.shares.load import NO_LIMITS, BrokerLimits
from sluice_insight.console.app import create_app
from sluice_insight.console.pages import DeadLetters, Facts
from sluice_insight.console.security import LOOPBACK_HOSTS
from sluice_insight.console.slow import SlowPage
from sluice_insight.console.tables import REFRESH_S, WeekMinutes
from sluice_insight.errors import ConsoleError
from sluice_insight.live import Bounds, LiveModel
from sluice_insight.slow.sources import TELEMETRY_TOPIC, Recorded
from sluice_insight.troubles_now import TroublesNow
from sluice_insight.waits import raised_limits
from sluice_reading.job_probe import JobProbe
from sluice_reading.limits_topic import reading_of_limits
from sluice_reading.query import Tables

LOOKBACK_MS = 600_000
"""The part of the decisions topic that is read at the start: the time of a sparkline."""

DEAD_LETTERS_MS = 24 * 3_600_000
MIN_TOKEN = 16
STOP_S = 1.0

MAX_CONNECTIONS = 200
"""Open connections. One more closes the one that has been idle for longest; a live page is never idle."""


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The console's address, its token, and the bounds of its model."""

    address: str = "127.0.0.1"
    port: int = 8089
    token: str | None = None
    max_clients: int = 200_000
    lookback_ms: int = LOOKBACK_MS


@dataclass(frozen=True, slots=True)
class Sources:
    """The inputs of the console: topics, tables, the address of the job's health port."""

    kafka: dict[str, str]
    topics: TopicSettings
    quota: QuotaSettings
    tables: Tables
    health: str | None
    overrides: str
    """The path of the table of overrides."""
    limits: BrokerLimits = NO_LIMITS
    gives_way: bool = True
    is_locked: Callable[[], bool | None] = lambda: None
    """True while a process has the lock of the job's checkpoint; None where nobody can tell."""


def token_of(token: str | None, file: Path | None) -> str | None:
    """The token given, or the first line of the file. Raises ConsoleError if it protects nothing."""
    if token is not None and file is not None:
        raise ConsoleError("--token and --token-file are both given; expected one of them")
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConsoleError(
                f"the token file {file} can't be read: {reason}; expected a file with the token"
            ) from None
    if token is not None and len(token) < MIN_TOKEN:
        raise ConsoleError(
            f"the token has {len(token)} characters; expected at least {MIN_TOKEN}, such as {secrets.token_urlsafe(24)}"
        )
    return token


def check_address(options: ConsoleOptions) -> None:
    """Raise ConsoleError if other machines could see the console without a token."""
    if options.token is None and not is_loopback(options.address):
        raise ConsoleError(
            f"the console at {options.address} would be open to everybody; give --token or --token-file, or listen on"
            " 127.0.0.1"
        )


def console_facts(sources: Sources, options: ConsoleOptions) -> tuple[Facts, list[BackgroundService]]:
    """The facts of the console, and the services that keep them up to date while they are `running`."""
    model = LiveModel(sources.quota, Bounds(counters=options.max_clients), sources.limits)
    limits, dead_letters = LimitsView(), DeadLetters()
    week = WeekMinutes(sources.tables, lambda changes: model.end_waits(raised_limits(changes)))
    topics, slow = sources.topics, SlowPage(Recorded(sources.tables, sources.overrides))
    now = TroublesNow(
        sources.kafka, topics, JobProbe(sources.health), sources.is_locked, limits, lambda: week.unreadable
    )

    def on_decision(_: bytes | None, value: bytes | None) -> None:
        model.on_record(value, now_ms())

    def on_dead_letter(_: bytes | None, value: bytes | None) -> None:
        dead_letters.take(value)

    decisions_since_ms, dead_letters_since_ms = now_ms() - options.lookback_ms, now_ms() - DEAD_LETTERS_MS
    followers = [
        TopicFollower(sources.kafka, each)
        for each in (
            Reading(topics.decisions, on_decision, decisions_since_ms, fenced=True, on_restart=model.forget),
            reading_of_limits(topics.limits, limits),
            Reading(topics.dead_letters, on_dead_letter, dead_letters_since_ms, fenced=True),
            Reading(TELEMETRY_TOPIC, slow.heard.take, decisions_since_ms),
        )
    ]
    services: list[BackgroundService] = [
        *followers,
        BackgroundService("console-tables", week.renewals, REFRESH_S, stop_timeout_s=STOP_S),
        now.service(now_ms),
    ]
    facts = Facts(
        model, limits, dead_letters, week, sources.tables, now, sources.quota, followers, sources.gives_way, slow=slow
    )
    return facts, services


@contextmanager
def running(services: Iterable[BackgroundService]) -> Iterator[None]:
    """Runs services in the background while the block runs."""
    with ExitStack() as entered:
        for service in services:
            entered.enter_context(service)
        yield


def console_server(facts: Facts, options: ConsoleOptions) -> HttpServer:
    """The console on the port of the options. Raises ConsoleError and ListenError."""
    check_address(options)
    closing = Event()
    app = create_app(facts, options.token, closing, (*LOOPBACK_HOSTS, host_of(options.address)))
    cure = "--port 0 takes a free one"
    return HttpServer(app, options.address, options.port, max_connections=MAX_CONNECTIONS, cure=cure, closing=closing)
