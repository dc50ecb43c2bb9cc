"""The gateway client where no broker answers: what it imports, refuses, keeps and drops."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sinks.errors import GatewayClosedError, UnsupportedPropertyError
from sinks.event_sender import WhenFull
from sinks.gateway import Gateway, GatewayOptions, StalePolicy
from sinks.gateway_metrics import GatewayCollector
from sinks.mute_table import Mute
from state.decision import ChargeResult, Decision, TopicResult
from state.errors import InvalidRequestError
from state.request import Mutation, Request, TopicPartition

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
"""An address where no broker answers."""

DOCS = Path(__file__).parents[2] / "docs"

NOW_MS = 1_760_000_000_000


class Clock:
    """A time in epoch milliseconds that a test moves."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gateway(clock: Clock) -> Iterator[Gateway]:
    """A gateway that keeps two events and drops the others."""
    options = GatewayOptions(max_unsent=2, when_full=WhenFull.DROP, close_timeout_s=0)
    with Gateway(NOBODY, options, clock_ms=clock) as gateway:
        yield gateway


def test_the_client_needs_no_spark_pandas_or_pyarrow() -> None:
    heavy = "{'pyspark', 'pandas', 'pyarrow', 'deltalake', 'numpy'}"
    script = f"import sys, sinks.gateway, sinks.middleware, sinks.gateway_metrics; print({heavy} & set(sys.modules))"

    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "set()"


def test_a_client_is_allowed_until_a_decision_mutes_it(gateway: Gateway, clock: Clock) -> None:
    assert gateway.check("alice", "app") == 0

    gateway.mutes.mute("alice", "app", Mute(clock.ms + 700))

    assert gateway.check("alice", "app") == 700
    assert gateway.check("alice", "other") == 0


def test_events_beyond_the_limit_are_dropped_and_counted_by_choice(gateway: Gateway) -> None:
    accepted = [gateway.publish(Request("Produce")) is not None for _ in range(5)]

    assert accepted == [True, True, False, False, False]
    assert (gateway.stats().unsent, gateway.stats().dropped) == (2, 3)


def test_a_dropped_event_is_not_waited_for(gateway: Gateway) -> None:
    for _ in range(2):
        gateway.publish(Request("Produce"))

    assert gateway.decide(Request("CreateTopics"), timeout_s=60) is None


def test_a_full_gateway_blocks_by_default_and_close_lets_go() -> None:
    gateway = Gateway(NOBODY, GatewayOptions(max_unsent=1, close_timeout_s=0))
    gateway.publish(Request("Produce"))
    outcomes: list[str] = []
    started = threading.Event()

    def publish() -> None:
        started.set()
        try:
            gateway.publish(Request("Produce"))
            outcomes.append("published")
        except GatewayClosedError:
            outcomes.append("closed")

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    assert outcomes == []

    gateway.close()
    for thread in threads:
        thread.join(30)

    assert outcomes == ["closed"] * 3
    assert gateway.stats().failed == 1


@pytest.mark.parametrize(
    "event",
    [
        {"api": ""},
        {"user": "alice"},
        {"api": "Produce", "user": 7},
        {"api": "Produce", "topic_partitions": [{"topic": "t", "partition": 0, "bytes": -1}]},
        Request("Produce", request_time_ns=-1),
    ],
)
def test_an_event_that_breaks_the_contract_is_refused_at_once(gateway: Gateway, event: Request) -> None:
    with pytest.raises(InvalidRequestError):
        gateway.publish(event)

    assert gateway.stats().unsent == 0


def test_fail_closed_refuses_when_the_first_unanswered_event_is_too_old(clock: Clock) -> None:
    options = GatewayOptions(policy=StalePolicy.FAIL_CLOSED, stale_after_s=30, close_timeout_s=0)
    with Gateway(NOBODY, options, clock_ms=clock) as gateway:
        gateway.publish(Request("Produce"))
        clock.ms += 30_000
        assert gateway.check("alice", "app") == 0
        clock.ms += 1
        assert gateway.check("alice", "app") == 1_000

        gateway.mutes.mute("alice", "app", Mute(clock.ms + 5_000))
        assert gateway.check("alice", "app") == 5_000


def test_a_late_decision_leaves_the_later_events_unanswered(gateway: Gateway, clock: Clock) -> None:
    """Published at 0 s and 10 s, the first decided at 40 s: the oldest unanswered one is at most 40 s old."""
    gateway.publish(Request("Produce"))
    clock.ms += 10_000
    gateway.publish(Request("Produce"))
    clock.ms += 30_000

    gateway._take(b'{"request_id": "first", "timestamp_ms": %d}' % (NOW_MS + 5_000))
    assert gateway.stats().stale_s == 35
    gateway._take(b'{"request_id": "second", "timestamp_ms": %d}' % (NOW_MS + 10_000))
    assert gateway.stats().stale_s == 0
    assert gateway.stats().decision_age_p99_ms == 35_000


def test_a_login_that_the_client_cant_use_is_told_at_once() -> None:
    kafka = NOBODY | {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}

    with pytest.raises(UnsupportedPropertyError, match="OAUTHBEARER"):
        Gateway(kafka)


def test_prometheus_sees_every_number(gateway: Gateway, clock: Clock) -> None:
    gateway.mutes.mute("alice", "app", Mute(clock.ms + 700))
    for _ in range(3):
        gateway.publish(Request("Produce"))
    clock.ms += 2_500
    registry = CollectorRegistry()
    registry.register(GatewayCollector(gateway))

    text = generate_latest(registry).decode()

    for line in (
        'sluice_gateway_muted_clients{gateway="gateway"} 1.0',
        'sluice_gateway_unsent_events{gateway="gateway"} 2.0',
        'sluice_gateway_dropped_events_total{gateway="gateway"} 1.0',
        'sluice_gateway_stale_seconds{gateway="gateway"} 2.5',
        'sluice_gateway_decision_age_seconds{gateway="gateway",quantile="0.5"} 0.0',
    ):
        assert line in text


def test_the_schemas_for_other_languages_have_the_fields_of_the_contracts() -> None:
    """Names and required fields, compared with the types that the job writes and reads."""
    event = json.loads((DOCS / "request.schema.json").read_text())
    decision = json.loads((DOCS / "decision.schema.json").read_text())

    assert set(event["properties"]) == set(Request.__struct_fields__)
    assert set(event["properties"]["topic_partitions"]["items"]["properties"]) == set(TopicPartition.__struct_fields__)
    assert set(event["properties"]["mutations"]["items"]["properties"]) == set(Mutation.__struct_fields__)
    assert set(decision["required"]) == set(decision["properties"]) == set(Decision.__struct_fields__)
    charge = decision["properties"]["charges"]["items"]
    assert set(charge["properties"]) == set(ChargeResult.__struct_fields__)
    assert set(decision["properties"]["topic_results"]["items"]["required"]) == set(TopicResult.__struct_fields__)
