"""What the bench asks of the systems that it compares: the same decisions, and how fast they came."""

import json
from collections.abc import Iterable

import numpy as np
import pytest

from scripts.benchmarks.events import ONE_CHARGE
from scripts.benchmarks.peers.measure import Decided, check_decisions, decisions_of, steady_per_s
from scripts.benchmarks.rig import BenchError
from state.quotas.kinds import QuotaSettings

NOW_MS = 1_800_000_000_000
ONE_USER = np.zeros(60, np.int64)


def events() -> Iterable[tuple[bytes, bytes]]:
    """60 requests of one user within 3 ms."""
    return ONE_CHARGE.backlog(ONE_USER, NOW_MS)


def decision(request_id: str, decided: Decided) -> bytes:
    charges = [{"quota": "controller_mutation_rate", "tokens": decided.tokens}]
    return json.dumps({"request_id": request_id, "throttle_time_ms": decided.throttle_ms, "charges": charges}).encode()


def test_the_wanted_decisions_spend_the_burst_and_then_throttle() -> None:
    wanted = decisions_of(events(), QuotaSettings())

    assert wanted["0"] == Decided(0, 54.0)  # the burst is 11 samples of 1 s with 5 partitions/s
    assert [request for request, decided in wanted.items() if decided.throttle_ms] == ["56", "57", "58", "59"]
    assert wanted["56"].throttle_ms == 198  # 0.99 tokens are missing: 2 ms have given 0.01 back


def test_decisions_may_come_twice_and_in_any_order() -> None:
    wanted = decisions_of(events(), QuotaSettings())
    found = [decision(request_id, decided) for request_id, decided in wanted.items()]

    check_decisions("a peer", [*reversed(found), found[0]], wanted)


def test_a_system_that_decides_something_else_is_not_measured() -> None:
    wanted = decisions_of(events(), QuotaSettings())
    found = [decision(request_id, decided) for request_id, decided in wanted.items()]
    found[56] = decision("56", Decided(197, wanted["56"].tokens))

    with pytest.raises(BenchError, match=r"a peer decides .*197.* on request 56, which is .*198"):
        check_decisions("a peer", found, wanted)


def test_a_system_that_loses_a_request_is_not_measured() -> None:
    wanted = decisions_of(events(), QuotaSettings())
    found = [decision(request_id, decided) for request_id, decided in wanted.items() if request_id != "7"]

    with pytest.raises(BenchError, match="a peer has no decision on 1 requests, such as 7"):
        check_decisions("a peer", found, wanted)


def test_a_system_that_decides_what_nobody_asked_is_not_measured() -> None:
    with pytest.raises(BenchError, match="on request 60, which is None"):
        check_decisions("a peer", [decision("60", Decided(0, 1.0))], {})


def test_throughput_is_of_the_decisions_after_the_warm_ones_whatever_their_order() -> None:
    assert steady_per_s([3_000, 0, 1_000, 2_000], warm=2) == 1.0
