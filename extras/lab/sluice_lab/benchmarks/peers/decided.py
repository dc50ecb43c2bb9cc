"""Decisions on each request, so that a peer can be compared with Sluice's decisions."""

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import msgspec
from confluent_kafka import Consumer, TopicPartition

from sluice.state.contract.projection import projects
from sluice.state.contract.records import ChargeResult, Decision
from sluice_lab.benchmarks.driver import BenchError

CHECKS = 1_000
"""Requests at the head of a backlog that use up their quotas, so that the decisions on them are not all the same."""

_USERS = 20
_MOST_PARTITIONS = 30
_MOST_TOPICS = 3
_ANSWER_S = 600.0
_POLL_S = 0.2


class ComparedDecision(NamedTuple):
    """The part of a decision that has to be the same, to the last bit."""

    verdict: str
    throttle_time_ms: int
    throttle_ms: int
    tokens: float


@projects(ChargeResult)
class _Charge(msgspec.Struct, gc=False):
    throttle_ms: int
    tokens: float


@projects(Decision)
class _Decision(msgspec.Struct, gc=False):
    request_id: str
    verdict: str
    throttle_time_ms: int
    charges: list[_Charge]


_decode = msgspec.json.Decoder(_Decision).decode


def check_requests(end_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of `CHECKS` CreateTopics requests in the order of their times, the last of which is `end_ms`.

    They are of a few users, with one to three topics of up to 30 partitions, so some are allowed, some refused in part
    and some refused.
    """
    draws = random.Random(1)
    times = [*sorted(end_ms - draws.randrange(100_000) for _ in range(CHECKS - 1)), end_ms]
    for number, time_ms in enumerate(times):
        user = f"check-{draws.randrange(_USERS)}"
        mutations = [
            {"topic": f"new-{number}-{topic}", "partitions": draws.randrange(_MOST_PARTITIONS + 1)}
            for topic in range(draws.randint(1, _MOST_TOPICS))
        ]
        request = {"request_id": f"check-{number}", "timestamp_ms": time_ms, "user": user, "client_id": "app"}
        request |= {"gateway": "gateway-0", "api": "CreateTopics", "api_version": 7, "mutations": mutations}
        yield f"{user}|app".encode(), msgspec.json.encode(request)


def decision(value: bytes | None) -> tuple[str, ComparedDecision]:
    """The request's id and the decision on it, out of a record of a decisions topic. Raises BenchError."""
    try:
        found = _decode(value or b"")
        (charge,) = found.charges
    except (msgspec.DecodeError, ValueError) as error:
        raise BenchError(f"this is no decision with one charge ({error}): {value!r:.200}") from error
    return found.request_id, ComparedDecision(found.verdict, found.throttle_time_ms, charge.throttle_ms, charge.tokens)


class Read(NamedTuple):
    """All decisions of a topic, and the times in ms at which the broker appended them, in ascending order."""

    decided: dict[str, ComparedDecision]
    appended_ms: list[int]


def read_decisions(servers: str, topic: str, count: int) -> Read:
    """The committed decisions of a topic, read once there are as many, so that reading them disturbs no run.

    Raises BenchError if a request has two of them, or if there are too few in the end.
    """
    decided: dict[str, ComparedDecision] = {}
    appended_ms: list[int] = []
    deadline_s = time.monotonic() + _ANSWER_S
    config = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False}
    with closing(Consumer(config)) as consumer:
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        partitions = [TopicPartition(topic, number, 0) for number in numbers]
        while sum(consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions) < count:
            _check_time(deadline_s, f"{topic} has less than {count} records")
            time.sleep(_POLL_S)
        consumer.assign(partitions)
        while len(decided) < count:
            _check_time(deadline_s, f"{topic} has {len(decided)} of {count} decisions")
            for record in consumer.consume(10_000, timeout=_POLL_S):
                request_id, found = decision(record.value() if record.error() is None else None)
                if decided.setdefault(request_id, found) is not found:
                    raise BenchError(f"{topic} has two decisions on the request {request_id}")
                appended_ms.append(record.timestamp()[1])
    return Read(decided, sorted(appended_ms))


def _check_time(deadline_s: float, problem: str) -> None:
    if time.monotonic() > deadline_s:
        raise BenchError(f"{problem} after {_ANSWER_S:.0f} s")


def check_same(name: str, found: Mapping[str, ComparedDecision], expected: Mapping[str, ComparedDecision]) -> None:
    """Raises BenchError naming the first request that `name` decided otherwise than Sluice, or not at all."""
    for request_id, wanted in expected.items():
        got = found.get(request_id)
        if got != wanted:
            raise BenchError(f"{name} is not measured: on the request {request_id} it decided {got}, Sluice {wanted}")
    if len(found) != len(expected):
        raise BenchError(f"{name} is not measured: it decided on {len(found)} requests, Sluice on {len(expected)}")


def steady_per_s(appended_ms: list[int], warm: int) -> float:
    """Decisions/s after the first `warm` ones, by the times at which the broker appended them, in ascending order.

    >>> steady_per_s([0, 500, 1000, 1500, 2000], warm=2)
    2.0
    """
    seconds = (appended_ms[-1] - appended_ms[warm - 1]) / 1000.0
    return (len(appended_ms) - warm) / seconds if seconds else float("inf")
