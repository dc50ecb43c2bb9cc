"""The search for a broker ends in a bounded time, however many brokers a cluster names that can't be reached."""

import socket
from threading import Event
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.manager import KafkaConnectionManager

from sluice.kafka_io import broker_search
from sluice.kafka_io.broker_search import CONNECTION_S, Failure, SearchingManager, UnreachableBrokerError, fault_of


def test_a_search_among_a_thousand_brokers_out_of_reach_ends_after_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    brokers = [SimpleNamespace(node_id=number, host="127.0.0.1", port=1) for number in range(1_000)]

    async def bootstrapped(_self: object, _deadline: float | None) -> bool:
        return True

    async def out_of_reach(*_: object, **__: object) -> None:
        nonlocal now_s
        now_s += CONNECTION_S
        raise KafkaConnectionError

    monkeypatch.setattr(KafkaConnectionManager, "_do_bootstrap", bootstrapped)
    monkeypatch.setattr(broker_search, "time", SimpleNamespace(monotonic=lambda: now_s))
    manager = object.__new__(SearchingManager)
    manager.is_searching, manager._unreachable = True, None
    manager.cluster = SimpleNamespace(brokers=lambda: brokers)
    monkeypatch.setattr(manager, "get_connection", out_of_reach, raising=False)

    with pytest.raises(UnreachableBrokerError, match="can't be reached there"):
        manager._do_bootstrap(None).send(None)

    assert now_s <= 10 + CONNECTION_S


def test_no_search_waits_for_a_dns_that_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to connect nor to name the fault: a resolver may be set to wait for minutes."""
    answers, failure = Event(), Failure(KafkaConnectionError("unable to connect"), False, False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers.wait())
    monkeypatch.setattr(broker_search, "CONNECTION_S", 0.01)
    manager = object.__new__(SearchingManager)
    manager.is_searching, manager.cluster = True, SimpleNamespace(is_bootstrap=lambda _: False)
    node = SimpleNamespace(node_id=7, host="kafka-7", port=9092)
    try:
        with pytest.raises(UnreachableBrokerError, match="broker 7 says it is kafka-7:9092, which isn't known here"):
            manager._build_transport(node, float("inf")).send(None)
        _, fault = fault_of("kafka", 9092, failure, "PLAINTEXT")
    finally:
        answers.set()

    assert fault.startswith("no address is known for kafka:9092 (DNS gives no answer within 0.01 s); check the name")
