"""Records of the decisions and dead-letter topics for tests of the audit query: good, odd and hostile ones."""

import json
from random import Random
from typing import Any

from sluice.sinks.tables.faults import RequestsTopic, TimeBounds
from sluice.state.quotas.kinds import QuotaKind
from tests.builders import DEFAULTS, Json

T0 = 1_700_000_040_000  # a full minute
DAY_MS = 86_400_000
READ_AT_MS = T0 + 60_000
BOUNDS = TimeBounds(past_ms=DAY_MS, future_ms=DAY_MS)
LAST = 2**63 - 2
REQUESTS = RequestsTopic("my-requests", ends=[LAST + 1] * 4)
"""As full as a topic can be."""

Record = tuple[str, bytes | None]
"""Topic and value of a Kafka record."""


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


def letter(offset: int, value: str | None = "QQ==", **more: Any) -> Json:
    error = {"field": "user", "problem": "is of type int", "expected": "str"}
    event = {"topic": "my-requests", "partition": 3, "offset": offset}
    return {"source": event, "error": error, "value": value} | more


def text(answer: Json) -> bytes:
    return json.dumps(answer).encode()


def as_records(answers: list[Json]) -> list[Record]:
    return [(DEFAULTS.topics.decisions, json.dumps(answer).encode()) for answer in answers]


def member(decided: Json, name: str, text: bytes) -> bytes:
    """The decision with this JSON text as the value of one of its fields."""
    return json.dumps(decided | {name: "@@"}).encode().replace(b'"@@"', text)


def charged(**more: Any) -> bytes:
    return json.dumps(decision(1, **more)).encode()


def source(**more: Any) -> bytes:
    return json.dumps(letter(1, source={"topic": "my-requests", "partition": 0, "offset": 1} | more)).encode()


ENTITY: Json = {"user": "a|b", "client_id": None, "topic": None, "partition": None, "tenant": None}
INLINE: Json = {
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


FULL = decision(7, throttle_ms=300, tokens=-1.5) | INLINE | {"job_id": "mine", "gateway": "g-1", "mute_until_ms": T0}
GOOD: dict[str, bytes] = {
    "plain": text(decision(1)),
    "full": text(FULL),
    "without charges": text(decision(2) | {"charges": []}),
    "other letters": text(decision(3, entity={"user": "Ünï\u2028 \U0001f600\t", "client_id": ""})),
    "escaped": text(decision(4) | {"user": 'a"\\/\b\f\n\r\t\u0000'}),
    "an unknown field": member(decision(5), "new", b'{"a": [1, {"b": null}]}'),
    "the last offset": text(decision(LAST)),
    "the least and the greatest numbers": text(
        decision(6, rate=5e-324, limit=1.7976931348623157e308, tokens=-0.0)
        | {"throttle_time_ms": 2**63 - 1, "mute_until_ms": -(2**63)}
    ),
    "whole numbers for fractions": text(decision(8, rate=7, limit=2**53)),
    "a shadow quota": text(decision(9, mode="shadow")),
    "spaces and line ends": b" \r\n\t" + json.dumps(decision(10), indent=2).encode() + b"\n\n",
    "a deep unknown field": member(decision(11), "unknown", b"[" * 900 + b"]" * 900),
    "an object for text": member(decision(12), "user", b'{"a": 1}'),
    "half a letter": member(decision(13), "user", b'"\\ud800\\u0000"'),
    "a list for text": member(decision(14), "user", b"[]"),
    "a number for text": member(decision(15), "user", b"1"),
    "an object in place of null": member(decision(16), "decided_by", b"{}"),
    "no charges": text(decision(17) | {"charges": None}),
    "a name of 1 MB": text(decision(18) | {"api": "x" * 1_000_000}),
    "the most requests": member(decision(19), "amounts", b'{"requests": 2147483647, "bytes": -1}'),
    "nothing that was waited for": member(decision(20), "throttled_by", b"[null, {}]"),
    "nothing shared": member(decision(21), "heartbeat", b'{"shares": [null, {"limit": 1.7e308}]}'),
    "the same field twice": text(decision(22)).replace(b'"user": "a|b"', b'"user": "mallory", "user": "a|b"'),
    "the same field of a charge twice": text(decision(23)).replace(b'"value": 100.0', b'"value": 1.0, "value": 2.0'),
    "the same id twice": text(decision(24)).replace(b'{"decision_id"', b'{"decision_id": "-", "decision_id"'),
    "an end of 2048 bits": member(decision(25), "new", b"1" * 700),
    "upper case": text(decision(26)).replace(b'"user"', b'"USER"'),
    "as old as can be": text(decision(27, READ_AT_MS - BOUNDS.past_ms)),
    "a name as long as can be": text(decision(28, entity={"user": "x" * 32_767})),
    "the most that can be charged": text(decision(29, value=1e30)),
}
"""Decisions that nothing is wrong with, or nothing that keeps them from being rows."""

DEEP = b"[" * 20_000 + b"]" * 20_000  # Python 3.11 refuses 1 000, 3.12 and 3.13 10 000
VERY_DEEP = b"[" * 200_000 + b"]" * 200_000
IDS = [
    "my-requests-3-\u0661",
    "my-requests-3-1\n",
    "my-\nrequests-3-1",
    "my-requests-4-1",
    f"my-requests-3-{LAST + 1}",
    "your-requests-3-1",
    "my-requests-4294967299-1",
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
    "two objects": (text(decision(1)) + text(decision(2)), "value"),
    "two lines": (text(decision(1)) + b"\n" + text(decision(2)), "value"),
    "no object between two lines": (b"\n", "value"),
    "ends in a comma": (text(decision(1)) + b",", "value"),
    "no UTF-8 in an unknown field": (member(decision(1), "new", b'"\xff"'), "value"),
    "a surrogate in UTF-8": (member(decision(1), "new", b'"\xed\xa0\x80"'), "value"),
    "1.0 for an integer": (member(decision(1), "timestamp_ms", f"{T0}.0".encode()), "value"),
    "1e3 for an integer": (member(decision(1), "throttle_time_ms", b"1e3"), "value"),
    "an integer of 64 bits and one": (member(decision(1), "throttle_time_ms", str(2**63).encode()), "value"),
    "a true number": (member(decision(1), "throttle_time_ms", b"true"), "value"),
    "a comment": (b"/* */" + text(decision(1)), "value"),
    "a byte order mark": (b"\xef\xbb\xbf" + text(decision(1)), "value"),
    "a fraction in words": (charged(rate="5.0"), "value"),
    "an integer beyond all fractions": (charged(rate="@@").replace(b'"@@"', b"1" + b"0" * 400), "value"),
    "NaN in quotes": (charged(rate="NaN"), "charges.rate"),
    "a mode in words": (charged(mode=""), "charges.mode"),
    "a name that is one longer": (charged(entity={"user": "x" * 32_768}), "charges.entity"),
    "more than can be charged": (charged(value=1.1e30), "charges.value"),
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
    for feed, values in (("decisions", HOSTILE_DECISIONS), ("dead_letters", HOSTILE_LETTERS))
    for value, field in values.values()
]
"""Records that are no rows, and the field that is wrong."""


def scrambled(seed: int) -> bytes:
    """A decision with some bytes changed, left out or doubled: most are no JSON, and some are."""
    random, value = Random(seed), bytearray(GOOD["full" if seed % 2 else "plain"])
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(value))
        change = random.choice(["replace", "remove", "double", "digit"])
        if change == "remove":
            del value[place : place + random.randint(1, 4)]
        elif change == "double":
            value[place:place] = value[place : place + random.randint(1, 30)]
        else:
            value[place] = random.choice(b"0123456789" if change == "digit" else b'{}[]",:-.eE \\nul\xc3\x00')
    return bytes(value)


def some_decisions(count: int, seed: int) -> list[Json]:
    """Decisions of many clients, quotas and windows; some shadowed, withheld, sums, uncharged, at the same time."""
    random = Random(seed)
    quotas = [*(kind.value for kind in QuotaKind), "exempt-request-time"]
    made = []
    for offset in range(count):
        at_ms, quota = T0 + random.choice([0, 1, 59_999, 60_000, 61_000]), random.choice(quotas)
        wait_ms = random.choice([0, 0, 7, 300])
        rate = None if quota == "exempt-request-time" else random.random() * 100
        entity = {"user": random.choice(["a|b", None, "c"]), "client_id": random.choice(["", "x", None])}
        more: Json = {"tokens": random.choice([None, 1.5]), "mode": random.choice([None, None, "shadow"])}
        decided = decision(offset, at_ms, wait_ms, rate, value=random.random(), entity=entity, quota=quota, **more)
        decided["decided_by"] = random.choice([None, quota])
        decided["charges"] *= random.choice([0, 1, 1, 2])
        amounts = {"withheld": random.choice([True, False, None]), "requests": random.choice([None, 1, 5])}
        made.append(decided | {"amounts": random.choice([None, amounts])})
    return made
