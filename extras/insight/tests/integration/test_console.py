"""`sluice console` as a process, on a real broker and real Delta tables."""

import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from kafka import KafkaAdminClient, KafkaProducer

from recorded import DECISIONS
from sluice.kafka_io.client import TopicSettings
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.quotas.limits import VERSION_KEY, limit_key, limit_value, version_end
from sluice_demo.job import wait_until
from sluice_insight.console.pages import Facts
from sluice_insight.console.server import ConsoleOptions, Sources, console_facts, running
from sluice_insight.console.tables import WeekMinutes
from sluice_insight.live import CounterId
from sluice_insight.reports.explained import decisions_by_id
from sluice_reading.query import Tables
from tests.builders import decision, quota
from tests.commands import SLUICE, run_sluice
from tests.deciding_side import own_topics

ALICE = CounterId(QuotaKind.PRODUCER_BYTE_RATE, False, "alice", "", None, -1)
QUOTA = quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user="alice")


def row(at: datetime, offset: int, **fields: Any) -> dict[str, Any]:
    found = decision(int(at.timestamp() * 1000), decision_id=f"requests-0-{offset}", **fields)
    return found | {"source_topic": "requests", "source_partition": 0, "source_offset": offset, "date": at.date()}


def write(path: Path, *rows: dict[str, Any]) -> str:
    write_deltalake(str(path), pa.Table.from_pylist(list(rows), schema=DECISIONS), mode="append", partition_by=["date"])
    return str(path)


def minutes(path: str, today: datetime) -> dict[CounterId, int]:
    week = WeekMinutes(Tables(path, path, {}))
    week.renew(today)
    return dict(week.minutes)


def test_minutes_of_a_week_are_those_touched_by_the_union_of_the_waits(tmp_path: Path) -> None:
    today = datetime(2026, 5, 20, 12, 0, 30, tzinfo=UTC)
    applied = [{"quota": "producer_byte_rate", "entity": {"user": "alice"}, "ms": 10_000}]
    path = write(
        tmp_path / "decisions",
        row(today, 1, wait_ms=60_000),  # minute 0: the next request ends it
        row(today + timedelta(seconds=20), 2, wait_ms=5_000),  # within minute 0
        row(today + timedelta(minutes=5), 3, throttled_by=applied, wait_ms=600_000),  # in line: minute 5 alone
        row(today - timedelta(days=1), 4, wait_ms=1_000),  # a minute of yesterday
        row(today - timedelta(days=6), 5, wait_ms=1_000),  # the seventh day
        row(today - timedelta(days=7), 6, wait_ms=1_000),  # longer ago
        row(today, 7, wait_ms=1_000, charge={"mode": "shadow"}),
        row(today, 8, throttled_by=[], wait_ms=600_000),  # its gateway charges in line and held nobody
    )
    assert minutes(path, today + timedelta(minutes=10)) == {ALICE: 4}


def test_a_day_is_read_until_decisions_are_those_of_an_hour_after_it(tmp_path: Path) -> None:
    """A job that was down at midnight decides the requests of yesterday late, and in the order in which they came."""
    midnight = datetime(2026, 5, 20, tzinfo=UTC)
    yesterday = [midnight - timedelta(hours=hours) for hours in (5, 4, 3, 2)]
    path = write(tmp_path / "decisions", row(yesterday[0], 0, wait_ms=1_000))
    week = WeekMinutes(Tables(path, path, {}))

    seen = []
    for offset, newest in enumerate((59, 60, 61), 1):
        week.renew(midnight + timedelta(hours=9))
        seen.append(dict(week.minutes))
        write(tmp_path / "decisions", row(yesterday[offset], offset, wait_ms=1_000))
        write(tmp_path / "decisions", row(midnight + timedelta(minutes=newest), 10 + offset))
    week.renew(midnight + timedelta(hours=9))

    assert [*seen, dict(week.minutes)] == [{ALICE: 1}, {ALICE: 2}, {ALICE: 3}, {ALICE: 3}]


def test_a_decision_is_found_in_the_table_by_its_id_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "decisions", row(datetime.now(UTC), 1, wait_ms=1_000))
    tables = Tables(path, path, {})
    (found,) = decisions_by_id(tables, "requests-0-1")
    assert found["charges"][0]["limit"] == 1000.0
    for forged in (
        "x' OR '1'='1-0-1",
        "requests-0-2",
        "",
        "1",
        "requests-0-1; DROP",
        "requests--1",
        "requests-²-1",
        "requests-0-" + "9" * 40,
    ):
        assert decisions_by_id(tables, forged) == [], forged


@contextmanager
def console(settings: Path, *options: str) -> Iterator[tuple[Callable[[str], str], "subprocess.Popen[str]"]]:
    command = [*SLUICE, "console", "--config", str(settings), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = line.removeprefix("Sluice console: http://").strip().rstrip("/")
        assert address.startswith("127.0.0.1:"), line + (process.stderr.read() if process.stderr else "")

        def get(path: str) -> str:
            with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
                connection.request("GET", path)
                return connection.getresponse().read().decode()

        yield get, process
    finally:
        process.kill()
        process.wait()


def eventually(get: Callable[[str], str], path: str, *shown: str) -> None:
    deadline_s = time.monotonic() + 120
    while not all(each in (page := get(path)) for each in shown):
        assert time.monotonic() < deadline_s, page
        time.sleep(0.1)


@pytest.fixture
def topics() -> TopicSettings:
    return own_topics(partitions=2)


@pytest.mark.kafka
def test_the_process_shows_what_topics_and_tables_say_and_ends_by_sigterm(
    topics: TopicSettings, kafka_broker: str, tmp_path: Path
) -> None:
    kafka, now = {"bootstrap.servers": kafka_broker}, datetime.now(UTC)
    ensure_topics(topics, kafka)
    quotas = QuotasTable(str(tmp_path / "quotas"))
    quotas.create([QUOTA], "the-author", now)
    days = [row(now.replace(second=0) - timedelta(days=day), 41 + day, wait_ms=1_000) for day in range(5)]
    write(tmp_path / "decisions", *days)  # more minutes than the wait of this hour has
    settings = tmp_path / "settings.yaml"
    names = ("requests", "decisions", "dead_letters", "limits", "waits", "sums")
    content = {
        "kafka": kafka,
        "topics": {name: getattr(topics, name) for name in names},
        "delta": {name: str(tmp_path / name) for name in ("quotas", "decisions")},
    }
    settings.write_text(yaml.safe_dump(content))
    with closing(KafkaProducer(bootstrap_servers=kafka_broker)) as producer, console(settings) as (get, process):

        def send(topic: str, value: dict[str, Any] | bytes, key: bytes | None = None, partition: int = 0) -> None:
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            producer.send(topic, content, key, partition=partition).get(120)

        at_ms = int(now.timestamp() * 1000)
        send(topics.limits, limit_value(QUOTA, 0), limit_key(QUOTA))
        send(topics.limits, version_end(0, 1), VERSION_KEY)
        send(topics.decisions, decision(at_ms - 65_000, wait_ms=120_000, decision_id=f"{topics.requests}-0-9"))
        send(topics.decisions, b"garbage", partition=1)
        send(topics.decisions, decision(at_ms, user="bob"), partition=1)
        send(topics.dead_letters, {"error": {"field": "api", "problem": "is missing"}})
        eventually(get, "/", "<bdi>alice</bdi>", "<bdi>bob</bdi>", "80 %", "1 min")
        eventually(get, "/client?user=alice", "the-author", "5 in 7 days", "by the decision")
        eventually(get, "/quotas", "1 quotas of version 0", "user-principal &#39;alice")
        eventually(get, "/overview", "is missing", "1 records of the decisions topic hold no decision.")
        eventually(get, "/check?user=alice&size=60000", "Yes: it would be throttled.")
        eventually(get, f"/request?id={topics.requests}-0-9", "Throttled for 2 min")
        eventually(get, "/request?id=requests-0-41", "Throttled for 1.0 s")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_what_keeps_the_console_from_starting_is_one_line(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("kafka: {bootstrap.servers: '127.0.0.1:1'}")
    open_to_all = run_sluice("console", "--config", settings, "--address", "0.0.0.0")  # noqa: S104 # refused
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = run_sluice("console", "--config", settings, "--port", port)

    assert (open_to_all.code, open_to_all.output, in_use.code, in_use.output) == (2, "", 1, "")
    refusal = "sluice: error: the console at 0.0.0.0 would be open to everybody; give --token"
    assert open_to_all.error_line.startswith(refusal)
    reason = f"can't listen on 127.0.0.1:{port} (Address already in use); --port 0 takes a free one"
    assert in_use.error_line == f"sluice: error: {reason}"


@pytest.mark.kafka
def test_a_topic_that_was_made_again_is_read_from_its_beginning(topics: TopicSettings, kafka_broker: str) -> None:
    """Though the new one has more records, so that what was read last is an offset of it too."""
    kafka = {"bootstrap.servers": kafka_broker}
    others = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1.0, user=name) for name in ("bob", "carol")]

    def send(version: int, entries: Sequence[QuotaEntry], users: Sequence[str]) -> None:
        ensure_topics(topics, kafka)
        with closing(KafkaProducer(bootstrap_servers=kafka_broker)) as producer:
            for entry in entries:
                producer.send(topics.limits, limit_value(entry, version), limit_key(entry), partition=0)
            producer.send(topics.limits, version_end(version, len(entries)), VERSION_KEY, partition=0)
            for user in users:
                value = json.dumps(decision(now_ms(), user=user)).encode()
                producer.send(topics.decisions, value, partition=0)

    def shown(facts: Facts) -> tuple[int | None, list[str]]:
        version = facts.limits.in_force.version if facts.limits.in_force else None
        return version, sorted(counter.key.user for counter in facts.model.counters())

    sources = Sources(kafka, topics, QuotaSettings(), Tables("/none", "/none", {}), None, "/none")
    send(0, [QUOTA], ["alice"])
    facts, readers = console_facts(sources, ConsoleOptions())
    with running(readers):
        wait_until(lambda: shown(facts) == (0, ["alice"]), 120)
        with closing(KafkaAdminClient(bootstrap_servers=kafka_broker)) as admin:
            admin.delete_topics([topics.limits, topics.decisions])
            wait_until(lambda: not {topics.limits, topics.decisions} & {*admin.list_topics()}, 120)
        send(1, others, ["bob", "carol"])

        wait_until(lambda: shown(facts) == (1, ["bob", "carol"]), 120)
