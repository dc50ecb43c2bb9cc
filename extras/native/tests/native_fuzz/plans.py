"""Random request events through step plan, natively and in Python: the page batches have to be the same bytes."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from ctypes import CDLL
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, TOPIC_KINDS, ElasticKey, Membership, QuotaKind, RequestPolicy
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce import pipeline
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Source, decode_page_batch
from sluice_native.plan import NativePlanner
from tests.bad_events import BAD
from tests.builders import DEFAULTS, quota

_DEFAULTS = PipelineSettings.of(DEFAULTS)
DECIDED_AT_MS = 1_800_000_000_000
_BAD = [value for value, *_ in BAD.values() if value is None or len(value) < 4_096]
_E, _K = QuotaEntity, QuotaKind
_USER, _CLIENT, _BOTH = _E(user=DEFAULT), _E(client_id=DEFAULT), _E(user=DEFAULT, client_id=DEFAULT)
_TOPIC = _E(topic=DEFAULT)

QUOTAS: Sequence[list[QuotaEntry]] = (
    [],
    [quota(_K.CONTROLLER_MUTATION_RATE, 5.0, _USER)],
    [quota(kind, 5.0, _BOTH) for kind in CLIENT_KINDS] + [quota(kind, 9.0, _TOPIC) for kind in TOPIC_KINDS],
    [
        *(quota(kind, 5.0, _CLIENT) for kind in CLIENT_KINDS[:3]),
        quota(_K.CONTROLLER_MUTATION_RATE, 7.0, _E(user="u-3")),
        quota(_K.REQUEST_PERCENTAGE, 9.0, _E(user="u-4", client_id="c-1")),
        quota(_K.PRODUCER_BYTE_RATE, 9.0, _E(client_id="ä")),
        quota(_K.TOPIC_PRODUCER_BYTE_RATE, 9.0, _E(topic="t-1")),
        quota(_K.TOPIC_PRODUCER_BYTE_RATE, 9.0, _E(topic="ü ü"), shadow=True),
        quota(_K.PRODUCER_BYTE_RATE, 3.0, _USER, shadow=True),
        quota(_K.REQUEST_PERCENTAGE, 3.0, _E(user='q"q'), shadow=True),
    ],
    [
        *(quota(kind, 5.0, _USER) for kind in CLIENT_KINDS),
        *(quota(kind, 50.0, _E(tenant=DEFAULT)) for kind in CLIENT_KINDS),
        quota(_K.CONTROLLER_MUTATION_RATE, 1.0, _E(tenant="{x}|"), shadow=True),
        QuotaEntry(_USER, ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 2.0),
        QuotaEntry(_E(tenant="shop", user="u-*"), Membership.MEMBER, 1.0),
        QuotaEntry(_E(tenant="{x}|", client_id="c-2"), Membership.MEMBER, 1.0),
    ],
)
"""No quotas, one of mutations, all kinds, names with quotas of their own, and tenants."""

_APIS = (
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "Metadata",
    "Foo",
    "Produce",
    "Fetch",
    "JoinGroup",
    "Connect",
)
_ODD_APIS = (*_APIS, "SaslHandshake", "Heartbeat", "LeaderAndIsr", "Refused", "GatewayHeartbeat", "", 'ä"')
_NAMES = (
    *(
        "",
        "a b",
        'q"q',
        "ä",
        "x" * 256,
        "x" * 257,
        "ü" * 128,
        "u.é",
        "\U0001f600",
        "a|b",
        "u_1",
        "\x7f",
        "A\nB",
        "\x00",
    ),
    *("\\", "~", "%", "<default>", "\u2028", "a>b", "\x1f\x08\t\x0b"),
)
_PIECES = (
    *(
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"null",
        b"true",
        b"1e999",
        b"-1",
        b"NaN",
        b"\xff",
        b"\xed\xa0\x80",
    ),
    *(
        b"\\ud800",
        b"\\ud83d\\ude00",
        b"\x00",
        b"9" * 30,
        b'"user":',
        b'"api":"Fetch"',
        b'"control":"unmute"',
        b"[" * 300,
    ),
    *(
        b"0.1",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"1.0",
        b"1e3",
        b"-0",
        b"007",
        b"\\u00e4",
        b"\\/",
        b" \t\r\n",
        b"false",
    ),
)


class _Drawn:
    """Fields of a request event; about a part `oddness` of them are as no gateway writes them."""

    def __init__(self, draw: random.Random, oddness: float) -> None:
        self._draw, self._oddness = draw, oddness
        self.fields: dict[str, Any] = {"api": draw.choice(_ODD_APIS if oddness else _APIS)}

    def odd(self) -> bool:
        return self._draw.random() < self._oddness

    def maybe(self, name: str, value: Any, often: float) -> None:
        if self._draw.random() < often:
            self.fields[name] = value

    def number(self, most: int) -> Any:
        if self.odd():
            return self._draw.choice([most, most + 1, -1, 1.5, 2.0, "x", True, None, 10**17, 10**25])
        small = [0, 1, 23, 127, 128, 255, 256, 65_535, 65_536]
        return self._draw.choice([*small, self._draw.randrange(most + 1)])

    def name(self, stem: str, count: int) -> Any:
        if self._draw.random() < 0.1:
            return self._draw.choice([5, [], {}, True] if self.odd() else [*_NAMES, None])
        return f"{stem}-{self._draw.randrange(count)}"

    def entity(self) -> Any:
        found = {"user": self.name("u", 9), "client_id": self.name("c", 4), "topic": self.name("t", 3)}
        found |= {"partition": self.number(2), "tenant": "shop"}
        chosen = self._draw.sample(list(found), self._draw.choice([0] if self.odd() else [1, 1, 2, 2, 5]))
        return {key: found[key] for key in chosen}

    def add_names(self, now_ms: int) -> None:
        distances = [10**6, -(10**6), -(10**10), 10**12, -now_ms] if self.odd() else [0, 5, -5]
        self.maybe("timestamp_ms", now_ms + self._draw.choice(distances), 0.9)
        self.maybe("request_id", self.name("r", 10**6), 0.9)
        self.maybe("user", self.name("u", 9), 0.9)
        self.maybe("client_id", self.name("c", 4), 0.9)
        self.maybe("gateway", self.name("g", 2), 0.5)
        self.maybe("instance", self.name("i", 3), 0.6)

    def add_amounts(self) -> None:
        draw, fields = self._draw, self.fields
        self.maybe("api_version", self.number(2**15 - 1) if self.odd() else draw.randrange(9), 0.5)
        self.maybe("request_time_ns", self.number(2**53), 0.5)
        self.maybe("network_time_ns", self.number(2**53), 0.3)
        for flag in ("validate_only", "cluster_action", "authenticating", "withheld"):
            self.maybe(flag, 1 if self.odd() else draw.random() < 0.5, 0.1)
        self.maybe("purgatory_ms", self.number(2**31 - 1), 0.1)
        self.maybe("requests", self.number(2**31 - 1) if self.odd() else 1 + draw.randrange(9), 0.2)
        if fields["api"] in ("Produce", "Fetch") or self.odd():
            self.maybe("bytes", draw.choice([0, self.number(2**53)]), 0.4)
        if draw.random() < 0.3:
            count = draw.choice([0, 1, 1, 2, 16, 51] if self.odd() else [1, 2, 3])
            fields["topic_partitions"] = [self._touched() for _ in range(count)]
            fields["bytes"] = 0 if draw.random() < 0.9 and fields.get("bytes") else fields.get("bytes")
        if draw.random() < (0.6 if "Topics" in fields["api"] else 0.1):
            count = draw.choice([0, 15, 16, 17, 60] if self.odd() else [1, 1, 2])
            topics = [self.name("t", 10**4) for _ in range(count)]
            fields["mutations"] = [{"topic": topic, "partitions": self.number(2**31 - 1)} for topic in topics]
        else:
            self.maybe("mutations_charged", self.number(2**31 - 1), 0.2)

    def add_waits(self) -> None:
        draw, quotas = self._draw, [*CLIENT_KINDS, "ä"]
        count = draw.choice([0, 0, 1, 2, 20])
        waits = [
            {"quota": draw.choice(quotas), "entity": self.entity(), "ms": self.number(4_000_000)} for _ in range(count)
        ]
        self.maybe("throttled_by", None if self.odd() else waits, 0.6)

    def _touched(self) -> Any:
        touched = {"topic": self.name("t", 3), "partition": self._draw.randrange(3), "bytes": self.number(2**53)}
        if self._draw.random() < 0.1:
            del touched["bytes"]
        return touched


def event(draw: random.Random, now_ms: int, oddness: float) -> bytes:
    """A request event; about this part of its fields are as no gateway writes them."""
    drawn = _Drawn(draw, oddness)
    drawn.add_names(now_ms)
    drawn.add_amounts()
    drawn.add_waits()
    if drawn.odd():
        drawn.fields[draw.choice(["other", "heartbeat", "control", "ap\u0131"])] = draw.choice([1, {"a": [2]}, None])
    items = list(drawn.fields.items())
    draw.shuffle(items)
    separators = draw.choice([(",", ":"), (", ", ": ")])
    text = json.dumps(dict(items), ensure_ascii=draw.random() < 0.3, separators=separators)
    return text.encode("utf-8", "surrogatepass")


def damaged(draw: random.Random, value: bytes) -> bytes:
    """The event truncated, with a byte or a piece of it replaced, doubled or left out."""
    start = draw.randrange(len(value))
    end = draw.choice([start, start + 1, start + draw.randrange(9)])
    return draw.choice(
        [
            value[:start],
            value[:start] + bytes([draw.randrange(256)]) + value[start + 1 :],
            value[:start] + draw.choice(_PIECES) + value[end:],
            value[:start] + value[start:end] * 2 + value[end:],
            value[:-1] + b',"api":"Fetch"}',
            b" \n" + value + b"\t ",
        ]
    )


def events(draw: random.Random, count: int, now_ms: int) -> Iterator[bytes | None]:
    """So many events: two of three as gateways send them, the others odd, damaged, or with a field that is wrong."""
    for _ in range(count):
        kind = draw.random()
        value = event(draw, now_ms, 0.0 if kind < 0.65 else 0.05)
        yield draw.choice(_BAD) if kind > 0.99 else damaged(draw, value) if kind > 0.85 else value


def overrides(draw: random.Random) -> Overrides | None:
    """Limits that give way, or not."""
    if draw.random() < 0.5:
        return None
    tight = [Override("tighten", 0.5, gateway=f"i-{number}", reason='b "1"') for number in range(draw.randrange(3))]
    return Overrides(7, DECIDED_AT_MS, 5_000, tight)


def batches_of(values: Sequence[bytes | None], sources: Sequence[Source], at_once: int) -> Iterable[Any]:
    """Arrow batches of these records."""
    for first in range(0, len(values), at_once):
        own = sources[first : first + at_once]
        columns = {
            "value": pa.array(values[first : first + at_once], pa.binary()),
            "partition": pa.array([source.partition for source in own], pa.int32()),
            "offset": pa.array([source.offset for source in own], pa.int64()),
            "timestamp_ms": pa.array([source.timestamp_ms for source in own], pa.int64()),
        }
        whole = pa.RecordBatch.from_pydict(columns)
        yield from (whole.slice(0, len(whole) // 3), whole.slice(len(whole) // 3))  # offsets that aren't 0


def compare(library: CDLL, count: int, seed: int) -> tuple[int, int]:
    """Plan so many events in both ways; the numbers planned natively and declined. Raises AssertionError."""
    draw, planned, declined = random.Random(seed), 0, 0
    while planned + declined < count:
        settings = _settings(draw)
        quotas = Quotas([*draw.choice(QUOTAS), *_members(draw)], version=3)
        native = NativePlanner(quotas, settings, library)
        for first in range(0, 10 * _AT_ONCE, _AT_ONCE):
            given = overrides(draw)
            now_ms = DECIDED_AT_MS + first
            values = list(events(draw, _AT_ONCE, now_ms))
            sources = [_source(draw, settings, first + number, now_ms) for number in range(len(values))]
            python = pipeline.plan(zip(values, sources, strict=True), quotas, settings, now_ms, given)
            expected = [dict(pages) for pages in python if pages]
            made = native.plan(batches_of(values, sources, 400), now_ms, given)
            found = [dict(zip(each.pages, each.payloads.to_pylist(), strict=True)) for each in made]
            if [list(pages.items()) for pages in found if pages] != [list(pages.items()) for pages in expected]:
                raise AssertionError(f"seed {seed}: {_difference(expected, found)}")
        planned, declined = planned + native.planned, declined + native.declined
    return planned, declined


_AT_ONCE = 1_000
_GLOB_PIECES = ("u-", "c-", "1", "3", "*", "*", "?", "ä", "u.é", "a", " b", "\\", "[", "\U0001f600", "x" * 256)


def _members(draw: random.Random) -> list[QuotaEntry]:
    """Members of tenants by any globs, or none."""
    globs = ["".join(draw.choices(_GLOB_PIECES, k=draw.choice([1, 2, 2, 3, 4]))) for _ in range(draw.choice([0, 1, 9]))]
    names = [draw.choice([{"user": glob}, {"client_id": glob}, {"user": glob, "client_id": "c-?"}]) for glob in globs]
    return [QuotaEntry(_E(tenant=draw.choice("abc"), **each), Membership.MEMBER, 1.0) for each in names]


def _settings(draw: random.Random) -> PipelineSettings:
    policy = draw.choice([RequestPolicy.KIP124, RequestPolicy.KIP124, RequestPolicy.KIP124_DRAFT])
    rule = replace(_DEFAULTS.quota, policy=policy, max_partitions_per_request=draw.choice([5, 10_000]))
    most = draw.choice([_DEFAULTS.max_record_bytes, 5_000])
    limits = _DEFAULTS.limits._replace(max_age_ms=draw.choice([100, 10**9]), max_ahead_ms=draw.choice([100, 10**9]))
    pages = draw.choice([1, 3, 64])
    return _DEFAULTS._replace(pages=pages, job_id="0123", quota=rule, limits=limits, max_record_bytes=most)


def _source(draw: random.Random, settings: PipelineSettings, offset: int, now_ms: int) -> Source:
    record_ms = (
        now_ms
        if draw.random() < 0.99
        else draw.choice([0, -1, now_ms - 2 * 10**9, now_ms + 2 * 10**9, -(2**62), 2**62])
    )
    return Source(settings.requests_topic, draw.choice([0, 0, 7, 200]), offset, record_ms)


def _difference(expected: list[dict[int, bytes]], found: list[dict[int, bytes]]) -> str:
    """The first row or record that differs."""
    for one, other in zip(expected, found, strict=False):
        for page, payload in one.items():
            if other.get(page) != payload:
                rows, others = (decode_page_batch(each or b"\x92\x90\x90") for each in (payload, other.get(page)))
                pairs: list[tuple[object, object]] = [*zip(rows.charge_rows, others.charge_rows, strict=False)]
                pairs += [*zip(rows.records, others.records, strict=False)]
                differing = [f"\n{row}\n{another}" for row, another in pairs if row != another]
                counts = [(len(each.charge_rows), len(each.records)) for each in (rows, others)]
                return f"page {page}, rows and records {counts}: {differing[:1]}"
    return f"{[list(each) for each in expected]} pages, found {[list(each) for each in found]}"
