"""`./scripts/soak --months`: what months leave in tables, their logs and topics, and what a start costs then."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from kafka import KafkaProducer

from sluice.kafka_io.client import connect
from sluice.kafka_io.topic_reader import TopicReader
from sluice.process.clock import now_ms
from sluice.sinks.tables.decisions import decisions_table
from sluice.sinks.tables.delta import AuditTable, Commit, create_table
from sluice.sinks.tables.delta_files import DayFiles, add_files
from sluice.sinks.tables.quota_metrics import merge_metrics, quota_metrics_table
from sluice.sinks.waits import ENDED_MS, remove_ended_waits
from sluice.state.contract.gateway_topics import Measured, Overrides, WaitRecord
from sluice.state.decisions.wait_records import wait_key, wait_value
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.limits import VERSION_KEY, overrides_key, overrides_value, version_end
from sluice_demo.job import wait_until
from sluice_lab.benchmarks.report import table
from sluice_lab.testbed.rig import Rig
from sluice_toolbox.maintenance import maintain

_DAYS_A_MONTH = 30
_DAY_S = 86_400
_DAY_COMMITS = 8_640
"""Commits of a table in a day: one every `audit.trigger_s`, 10 s."""

_STORED = overrides_key("stored_bytes")

_STANDS_FOR = 1_440
"""Commits of a day for which one stands here."""

_STATES = 4_320
"""Storage states in the limits topic: those of a day, as each replaces the one before."""

_TENANTS = 100
_NEW_CLIENTS = 200
"""Client-ids with a long wait that clients invent in a day."""

_COMPACTED_S = 300.0

_GATEWAY = """
import json, sys, time
import psutil
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.options import GatewayOptions
options, begun_s = json.loads(sys.argv[1]), time.monotonic()
gateway = Gateway({"bootstrap.servers": options.pop("servers")}, GatewayOptions(**options))
gateway.wait_until_ready(600)
print(time.monotonic() - begun_s, psutil.Process().memory_info().rss / 2**20)
gateway.close()
"""


def run_months(rig: Rig, months: int) -> bool:
    """Fill tables and topics as so many months would, and print what they are then; True."""
    days = months * _DAYS_A_MONTH
    print(f"{days} days; one commit of a table stands for {_STANDS_FOR} ...", flush=True)
    rows = [*_tables(rig, days)]
    _fill_topics(rig, days)
    rows += [*_topics(rig, "before compaction")]
    removed = remove_ended_waits(rig.settings.topics.waits, rig.settings.kafka, now_ms() - ENDED_MS)
    print(f"{removed} records of ended waits are removed; waiting for compaction ...", flush=True)
    _wait_for_compaction(rig)
    rows += [*_topics(rig, "compacted")]
    begun_s = time.monotonic()
    rig.start()
    rows.append(("job", "start, with all tables and topics", f"{time.monotonic() - begun_s:.0f} s"))
    print("", *table("", f"after {days} days", "", rows=rows), sep="\n", flush=True)
    return True


def _tables(rig: Rig, days: int) -> Iterator[tuple[str, str, str]]:
    """Commits of all days into the decisions and the metrics, with a maintenance a day."""
    delta = rig.settings.delta
    decisions, metrics = decisions_table(delta.decisions), quota_metrics_table(delta.quota_metrics)
    first_day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    for each in (decisions, metrics):
        create_table(each, {})
        # Files grow older here, but not the times in the log: it forgets removed files at once, not after a day.
        forgetful = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        DeltaTable(each.path).alter.set_table_properties(forgetful)
    firsts, removed = dict[str, float](), 0
    for day in range(days):
        commits = _DAY_COMMITS // _STANDS_FOR
        for number in range(day * commits, (day + 1) * commits):
            at = first_day + timedelta(days=day, seconds=(number % commits) * 10 * _STANDS_FOR)
            for path, took_s in _commit(decisions, metrics, at, number).items():
                firsts.setdefault(path, took_s)
        done = list(maintain(delta, retention_hours=0))
        removed += sum(each.files_removed for each in done)
        for each in (decisions, metrics):
            _age(each.path)
    for each in (decisions, metrics):
        name = Path(each.path).name
        log = Path(each.path) / "_delta_log"
        yield name, "files in use", str(len(DeltaTable(each.path).file_uris()))
        yield (
            name,
            "files on disk",
            str(sum(1 for _ in Path(each.path).rglob("*.parquet")) - len(list(log.glob("*.parquet")))),
        )
        yield name, "entries of the log", str(len(list(log.iterdir())))
        yield name, "first commit", f"{firsts[each.path] * 1000:.0f} ms"
    _lengthen(decisions.path, 2 * _DAY_COMMITS)
    yield "decisions", f"last commits, with {2 * _DAY_COMMITS} in the log: two days", _timed(decisions)
    yield "both", "files that maintenance has removed", str(removed)


def _commit(decisions: AuditTable, metrics: AuditTable, at: datetime, number: int) -> dict[str, float]:
    """One row into each table; how long each commit took."""
    commit, took_s = Commit("months", number), {}
    written, begun_s = _written(decisions, at, number), time.perf_counter()
    add_files(DeltaTable(decisions.path), written, commit)
    took_s[decisions.path], begun_s = time.perf_counter() - begun_s, time.perf_counter()
    window = {"window_start": at.replace(second=0, minute=0), "window_s": 60, "quota": "producer_byte_rate"}
    sums = {"count": 1, "value": 1.0, "violated_count": 0, "throttled_count": 0, "metered": True}
    merge_metrics(
        _row(metrics, date=at.date(), user="alice", last_timestamp_ms=number, **window, **sums),
        DeltaTable(metrics.path),
        commit,
    )
    return took_s | {metrics.path: time.perf_counter() - begun_s}


def _written(table: AuditTable, at: datetime, offset: int) -> Any:
    """Write a file with one row, for a commit."""
    files = DayFiles(table, {})
    files.write(_row(table, date=at.date(), source_topic="requests", source_partition=0, source_offset=offset))
    return files.close()


def _row(table: AuditTable, **values: object) -> pa.Table:
    return pa.Table.from_pylist([values], table.columns)


def _age(path: str) -> None:
    """Let all files of a table be a day older."""
    for file in Path(path).rglob("*"):
        if file.is_file():
            then = file.stat().st_mtime - _DAY_S
            os.utime(file, (then, then))


def _lengthen(path: str, commits: int) -> None:
    """Add commits without changes to a log, and a checkpoint; the whole log is of now then."""
    log, first, at_s = Path(path) / "_delta_log", DeltaTable(path).version() + 1, time.time()
    text = json.dumps({"commitInfo": {"timestamp": int(at_s * 1000), "operation": "WRITE"}}) + "\n"
    for number in range(first, first + commits):
        (log / f"{number:020}.json").write_text(text)
    DeltaTable(path).create_checkpoint()


def _timed(table: AuditTable) -> str:
    """The median of five commits, and of opening the table before each."""
    opened_s, took_s = [], []
    for number in range(5):
        written, begun_s = _written(table, datetime.now(UTC), number), time.perf_counter()
        opened = DeltaTable(table.path)
        opened_s.append(time.perf_counter() - begun_s)
        add_files(opened, written, Commit("timed", time.monotonic_ns()))
        took_s.append(time.perf_counter() - begun_s - opened_s[-1])
    return f"{median(took_s) * 1000:.0f} ms, and {median(opened_s) * 1000:.0f} ms to open it"


def _fill_topics(rig: Rig, days: int) -> None:
    """Overrides of a day into the limits topic, and ended waits of all days into the waits topic."""
    topics, begun_ms = rig.settings.topics, now_ms() - days * _DAY_S * 1000
    with closing(connect(KafkaProducer, rig.settings.kafka, linger_ms=50)) as producer:
        for number in range(_STATES):
            at_ms = begun_ms + number * 20_000
            stored = [Measured(f"team-{each:04d}", number, 2e11) for each in range(_TENANTS)]
            said = overrides_value(Overrides(number, at_ms, 60_000, measured=stored))
            producer.send(topics.limits, said, _STORED, partition=0, timestamp_ms=at_ms)
        producer.send(topics.limits, version_end(0, 0), VERSION_KEY, partition=0)  # a gateway is ready with a version
        for number in range(days * _NEW_CLIENTS):
            producer.send(topics.waits, *_wait(number, begun_ms + number * _DAY_S * 1000 // _NEW_CLIENTS))
        producer.flush()


def _wait(number: int, at_ms: int) -> tuple[bytes, bytes]:
    """Value and key of a wait of a client-id that was there once."""
    key = wait_key(("producer_byte_rate", Tags("alice", f"invented-{number:08d}")))
    return wait_value(WaitRecord(at_ms + 10_000, 10_000, 1024.0, 2048.5, at_ms, number)), key


def _topics(rig: Rig, when: str) -> Iterator[tuple[str, str, str]]:
    """The records that a gateway reads when it starts, the time that it takes, and its memory then."""
    topics, servers = rig.settings.topics, rig.settings.kafka["bootstrap.servers"]
    for name in (topics.limits, topics.waits):
        yield name, f"records, {when}", str(_count(rig, name))
    names = {f"{name}_topic": getattr(topics, name) for name in ("requests", "limits", "waits", "sums")}
    options = {"servers": servers, **names}
    command = [sys.executable, "-c", _GATEWAY, json.dumps(options)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    start_s, resident = map(float, said.split())
    yield "gateway", f"start, {when}", f"{start_s:.1f} s, and {resident:.0f} MiB of memory"


def _count(rig: Rig, topic: str) -> int:
    with TopicReader(rig.settings.kafka, topic) as reader:
        return sum(1 for _ in reader.read_to_end())


def _wait_for_compaction(rig: Rig) -> None:
    """Let brokers close the segments, which they do as records come, and compact them."""
    topics = rig.settings.topics

    def is_compacted() -> bool:
        with closing(connect(KafkaProducer, rig.settings.kafka)) as producer:
            producer.send(topics.limits, overrides_value(Overrides(0, now_ms(), 60_000)), _STORED, partition=0)
            for number in range(200):
                producer.send(topics.waits, *_wait(number % 20, now_ms()))
        time.sleep(5)
        return _count(rig, topics.limits) < 200 and _count(rig, topics.waits) < 3_000

    wait_until(is_compacted, _COMPACTED_S)
