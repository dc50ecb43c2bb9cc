"""Micro-batches of the audit query for tests: decisions, dead letters, hostile records, and tables to write."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.configs.settings import Settings, load_settings
from sluice.sinks.tables.decisions import parse_decisions
from sluice.sinks.tables.delta import Commit, RequestsTopic
from sluice.sinks.tables.unreadable import TimeBounds
from sluice.streaming.audit.writer import AuditWriter
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.leadership.epochs_seen import EpochsSeen

Json = dict[str, Any]
T0 = 1_700_000_040_000  # a full minute
DAY_MS = 86_400_000
BOUNDS = TimeBounds(past_ms=DAY_MS, future_ms=DAY_MS)
DEFAULTS = load_settings(environment={})
LAST = 2**63 - 2
REQUESTS = RequestsTopic("my-requests", ends=[LAST + 1] * 4)
"""As full as a topic can be."""


def decision(offset: int, at_ms: int = T0, throttle_ms: int = 0, rate: float | None = 5.0, **more: Any) -> Json:
    charge = {
        "quota": "producer_byte_rate",
        "entity": {"user": "a|b"},
        "matched": "user",
        "limit": 10.0,
        "value": 100.0,
        "rate": rate,
        "throttle_ms": throttle_ms,
        "violated": throttle_ms > 0,
    }
    return {
        "decision_id": f"my-requests-3-{offset}",
        "request_id": f"r{offset}",
        "timestamp_ms": at_ms,
        "user": "a|b",
        "client_id": None,
        "api": "Produce",
        "verdict": "THROTTLE" if throttle_ms else "ALLOW",
        "throttle_time_ms": throttle_ms,
        "mute_until_ms": None,
        "error_code": 0,
        "topic_results": [],
        "decided_by": "producer_byte_rate" if throttle_ms else None,
        "charges": [charge | more],
        "quota_version": 2,
        "decided_at_ms": at_ms + 5,
    }


Record = tuple[str, bytes | None]
"""Topic and value of a Kafka record."""

FEEDS = ("decisions", "dead_letters")


def letter(offset: int, value: str | None = "QQ==", **more: Any) -> Json:
    error = {"field": "user", "problem": "is of type int", "expected": "str"}
    event = {"topic": "my-requests", "partition": 0, "offset": offset}
    return {"source": event, "error": error, "value": value} | more


def records(spark: SparkSession, values: Sequence[Record], first: int = 0, at_ms: int = T0) -> DataFrame:
    """Kafka records of one partition from offset `first`, all of one time, read a minute later."""
    columns = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
    time = datetime.fromtimestamp(at_ms / 1000, UTC)
    rows = [(topic, 0, first + number, time, b"key", value) for number, (topic, value) in enumerate(values)]
    return (
        spark.createDataFrame(rows, columns)
        .withColumn("read_at", F.lit(datetime.fromtimestamp(T0 / 1000 + 60, UTC)))
        .withColumn("epoch", F.lit(None).cast("binary"))
    )


def judged(spark: SparkSession, decisions: list[Json]) -> DataFrame:
    """What the audit query makes of these decisions, with the records that they are from."""
    values = [(DEFAULTS.topics.decisions, json.dumps(value).encode()) for value in decisions]
    return parse_decisions(records(spark, values).withColumn("fenced", F.lit(False)), REQUESTS, BOUNDS)


def parsed(spark: SparkSession, decisions: list[Json]) -> DataFrame:
    """Rows of the decisions table."""
    return judged(spark, decisions).where("fault is null").drop("record", "fault")


def tables_in(folder: Path) -> Settings:
    paths: Json = {name: str(folder / name) for name in ("decisions", "quota_metrics", "dead_letters", "unreadable")}
    return replace(DEFAULTS, delta=replace(DEFAULTS.delta, **paths))


def write(
    settings: Settings, batch: DataFrame, batch_id: int, query: str = "query", requests: RequestsTopic = REQUESTS
) -> None:
    """A micro-batch of the audit query."""
    epochs = EpochsSeen(Checkpoint(f"{settings.delta.decisions}-audit"))
    AuditWriter(settings, epochs).write(batch, requests, Commit(query, batch_id))


def rows(path: str) -> list[Json]:
    found: list[Json] = DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist()
    return found


def offsets(path: str, column: str = "source_offset") -> list[int]:
    return sorted(row[column] for row in rows(path))


def as_records(answers: list[Json]) -> list[Record]:
    return [(DEFAULTS.topics.decisions, json.dumps(answer).encode()) for answer in answers]


ENTITY: Json = {"user": "a|b", "client_id": None, "topic": None, "partition": None}
IN_LINE: Json = {
    "instance": "g-1",
    "throttled_by": [{"quota": "producer_byte_rate", "entity": ENTITY, "ms": 5}],
    "amounts": {
        "bytes": 1,
        "request_time_ns": 2,
        "network_time_ns": 3,
        "topic_partitions": [{"topic": "t", "partition": 0, "bytes": 4}],
        "mutations": [{"topic": "t", "partitions": 5}],
        "mutations_charged": 6,
        "api_version": 7,
        "validate_only": True,
        "cluster_action": True,
        "authenticating": True,
        "purgatory_ms": 8,
        "withheld": True,
        "requests": 9,
    },
    "heartbeat": {
        "staleness_ms": 1,
        "counters": 2,
        "shares": [
            {
                "quota": "producer_byte_rate",
                "entity": ENTITY,
                "limit": 3.5,
                "share": 2.5,
                "charged": 1.5,
                "throttle_ms": 4,
            }
        ],
    },
}


def member(decided: Json, name: str, text: bytes) -> bytes:
    """The decision with this JSON text as the value of one of its fields."""
    return json.dumps(decided | {name: "@@"}).encode().replace(b'"@@"', text)


def charged(**more: Any) -> bytes:
    return json.dumps(decision(1, **more)).encode()


def source(**more: Any) -> bytes:
    return json.dumps(letter(1, source={"topic": "my-requests", "partition": 0, "offset": 1} | more)).encode()


DEEP = b"[" * 2000 + b"]" * 2000
VERY_DEEP = b"[" * 200_000 + b"]" * 200_000
IDS = [
    "junk",
    "",
    "-",
    "a-b",
    "a-b-c",
    "a-0-",
    "-0-1",
    "a-0-007",
    "a-0--1",
    "a-3000000000-1",
    "a-0-99999999999999999999",
]

HOSTILE_DECISIONS: dict[str, tuple[bytes | None, str]] = {
    "null": (None, "value"),
    "empty": (b"", "value"),
    "no JSON": (b"junk", "value"),
    "a list": (b"[" + json.dumps(decision(1)).encode() + b"]", "value"),
    "cut off": (json.dumps(decision(1)).encode()[:-9], "value"),
    "UTF-16": (json.dumps(decision(1)).encode("utf-16"), "value"),
    "not UTF-8": (json.dumps(decision(1)).encode().replace(b"a|b", b"a\xffb"), "value"),
    "no field of a decision": (b"{}", "decision_id"),
    "only an id": (b'{"decision_id": "a-0-1"}', "timestamp_ms"),
    "a dead letter": (json.dumps(letter(1)).encode(), "decision_id"),
    "deep unknown field": (member(decision(1), "unknown", DEEP), "value"),
    "very deep unknown field": (member(decision(1), "unknown", VERY_DEEP), "value"),
    "deep user": (member(decision(1), "user", DEEP), "value"),
    "number of 2000 digits": (member(decision(1), "timestamp_ms", b"9" * 2000), "value"),
    "text for a number": (member(decision(1), "timestamp_ms", b'"1"'), "value"),
    "fraction for an integer": (member(decision(1), "timestamp_ms", b"1e18"), "value"),
    "NaN for an integer": (member(decision(1), "timestamp_ms", b"NaN"), "value"),
    "object for charges": (member(decision(1), "charges", b"{}"), "value"),
    "text for an entity": (charged(entity="alice"), "value"),
    "partition overflow": (charged(entity={"topic": "t", "partition": 2**40}), "value"),
    "time overflow": (json.dumps(decision(1) | {"timestamp_ms": 9 * 10**17}).encode(), "timestamp_ms"),
    "year 12000": (json.dumps(decision(1) | {"timestamp_ms": 316_000_000_000_000}).encode(), "timestamp_ms"),
    "before year 1": (json.dumps(decision(1) | {"timestamp_ms": -63_000_000_000_000}).encode(), "timestamp_ms"),
    "negative window": (json.dumps(decision(1) | {"timestamp_ms": -1}).encode(), "timestamp_ms"),
    "a year ago": (json.dumps(decision(1, T0 - 365 * DAY_MS)).encode(), "timestamp_ms"),
    "in a week": (json.dumps(decision(1, T0 + 7 * DAY_MS)).encode(), "timestamp_ms"),
    "smallest time": (json.dumps(decision(1) | {"timestamp_ms": -(2**63)}).encode(), "timestamp_ms"),
    "no time": (json.dumps(decision(1) | {"timestamp_ms": None}).encode(), "timestamp_ms"),
    "decided in year 30000": (json.dumps(decision(1) | {"decided_at_ms": 9 * 10**14}).encode(), "decided_at_ms"),
    "decided overflow": (json.dumps(decision(1) | {"decided_at_ms": 2**63 - 1}).encode(), "decided_at_ms"),
    "never decided": (json.dumps(decision(1) | {"decided_at_ms": None}).encode(), "decided_at_ms"),
    "unknown verdict": (json.dumps(decision(1) | {"verdict": "MAYBE"}).encode(), "verdict"),
    "object for verdict": (json.dumps(decision(1) | {"verdict": {}}).encode(), "verdict"),
    "a charge that is null": (member(decision(1), "charges", b"[null]"), "charges.quota"),
    "a charge without quota": (member(decision(1), "charges", b"[{}]"), "charges.quota"),
    "an unknown quota": (charged(quota="unknown"), "charges.quota"),
    "a million charges": (member(decision(1), "charges", b"[" + b"{}," * 1_000_000 + b"{}]"), "charges"),
    "an unknown mode": (charged(mode="trial"), "charges.mode"),
    "NaN charged": (charged(value=float("nan")), "charges.value"),
    "infinity charged": (charged(value=float("-inf")), "charges.value"),
    "overflow charged": (charged(value="@@").replace(b'"@@"', b"1e999"), "charges.value"),
    "infinity as text": (charged(value="Infinity"), "charges.value"),
    "largest double charged": (charged(value=1.7e308), "charges.value"),
    "infinite rate": (charged(rate=float("inf")), "charges.rate"),
    "limit NaN": (charged(limit=float("nan")), "charges.limit"),
    "infinite tokens": (charged(tokens=float("-inf")), "charges.tokens"),
    "name of 7 MB": (charged(entity={"user": "x" * 7_000_000}), "charges.entity"),
    "object for the waits in line": (member(decision(1), "throttled_by", b"{}"), "value"),
    "a fraction of a wait in line": (
        member(decision(1), "throttled_by", b'[{"quota": "q", "entity": {}, "ms": 0.5}]'),
        "value",
    ),
    "65 waits in line": (member(decision(1), "throttled_by", b"[" + b"{}," * 64 + b"{}]"), "throttled_by"),
    "a list of amounts": (member(decision(1), "amounts", b"[]"), "value"),
    "requests overflow": (member(decision(1), "amounts", b'{"requests": 2147483648}'), "value"),
    "no request": (member(decision(1), "amounts", b'{"requests": 0}'), "amounts.requests"),
    "deep amounts": (member(decision(1), "amounts", b'{"bytes": ' + DEEP + b"}"), "value"),
    "text for withheld": (member(decision(1), "amounts", b'{"withheld": "yes"}'), "value"),
    "counters overflow": (member(decision(1), "heartbeat", b'{"counters": 2147483648}'), "value"),
    "an endless share": (member(decision(1), "heartbeat", b'{"shares": [{"share": 1e999}]}'), "heartbeat.shares.share"),
    "21 shares": (member(decision(1), "heartbeat", b'{"shares": [' + b"{}," * 20 + b"{}]}"), "heartbeat.shares"),
    **{f"id {bad!r}": (json.dumps(decision(1) | {"decision_id": bad}).encode(), "decision_id") for bad in IDS},
}

HOSTILE_LETTERS: dict[str, tuple[bytes | None, str]] = {
    "null": (None, "value"),
    "no JSON": (b"junk", "value"),
    "not UTF-8": (b'{"source": "\xff"}', "value"),
    "a decision": (json.dumps(decision(1)).encode(), "source"),
    "no base64": (json.dumps(letter(1, "A")).encode(), "value"),
    "base64 of another alphabet": (json.dumps(letter(1, "____")).encode(), "value"),
    "deep unknown field": (member(letter(1), "unknown", DEEP), "value"),
    "no offset": (source(offset=None), "source"),
    "negative offset": (source(offset=-1), "source"),
    "no partition": (source(partition=None), "source"),
    "partition overflow": (source(partition=2**31), "value"),
    "no topic": (source(topic=""), "source"),
    "no error": (json.dumps(letter(1, error=None)).encode(), "error"),
    "length overflow": (json.dumps(letter(1, value_bytes=2**63)).encode(), "value"),
}

HOSTILE: list[tuple[Record, str]] = [
    ((getattr(DEFAULTS.topics, feed), value), field)
    for feed, values in zip(FEEDS, (HOSTILE_DECISIONS, HOSTILE_LETTERS), strict=True)
    for value, field in values.values()
]
