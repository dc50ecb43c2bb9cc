"""`sluice quotas hold` and `release`: from the command to real clients, by the job and brokers or proxies."""

from pathlib import Path

import pytest

from sluice import Gateway, Request
from sluice.process.clock import now_ms
from sluice.state.contract.records import TopicPartition
from sluice_demo.cluster import make_topic
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_demo.gateways import gateway_options
from sluice_demo.job import wait_until
from sluice_lab.scenarios.closed_loop.brokers import TOPIC, fill, held_brokers
from sluice_lab.scenarios.closed_loop.situation import BrokersSituation
from sluice_reading.holds_table import HoldsTable
from tests.commands import run_sluice

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

LIMIT = 1_000_000.0
SILENT_MS = 12_000
BATCH = 100_000


@pytest.mark.parametrize("proxies", [0, 2])
def test_a_client_that_an_operator_stops_gets_nothing_within_seconds_and_is_back_after_the_release(
    tmp_path: Path, proxies: int
) -> None:
    """Times are those of the table's rows and of what the clients got. They are told, as a busy machine is slow."""
    quotas = [
        {"entity": {"client_id": name}, "quotas": {"producer_byte_rate": LIMIT, "consumer_byte_rate": LIMIT}}
        for name in ("app", "other")
    ]
    situation = BrokersSituation(limit=LIMIT, brokers=2, proxies=proxies)
    with held_brokers(tmp_path, situation, quotas) as (cluster, rig, [servers, *_]):
        assert rig is not None
        make_topic(cluster.bootstrap_servers, TOPIC, situation.leaders())
        fill(cluster.bootstrap_servers, TOPIC)
        options = {"batch.size": BATCH}
        producer = FullSpeedClient("app", Role.PRODUCE, servers, TOPIC, options=options)
        consumer = FullSpeedClient("app", Role.CONSUME, servers, TOPIC)
        other = FullSpeedClient("other", Role.PRODUCE, servers, TOPIC, options=options)
        holds = HoldsTable(rig.settings.delta.quotas)

        def told(*words: str) -> int:
            """Run the command, and return the time of its row."""
            done = run_sluice("quotas", *words, "--client-id", "app", "--timeout", 120, "--config", rig.settings_file)
            assert f"{1 + proxies} of {1 + proxies} other gateways" in done.output
            assert done.code == 0, done
            return holds.commands()[0].at_ms

        with Gateway(rig.settings.kafka, gateway_options(rig.settings)) as gateway:
            assert gateway.wait_until_ready(300)
            wait_until(lambda: all(each.samples for each in (producer, consumer, other)), 300)
            held_ms = told("hold", "--reason", "it floods")
            wait_until(lambda: _wait_ms(gateway) > 0, 120)
            known_ms = now_ms()
            wait_until(lambda: now_ms() - max(known_ms, consumer.samples[-1][0]) >= SILENT_MS, 300)
            silent_ms = max(known_ms, consumer.samples[-1][0])  # a consumer may have waited for its quota before
            sent = [amount for at_ms, amount in producer.samples if at_ms > silent_ms + 1_000]
            released_ms = told("release")
            wait_until(lambda: _wait_ms(gateway) == 0, 120)
            back_ms = {name: _first_after(released_ms, each) for name, each in (("in", producer), ("out", consumer))}
            for each in (producer, consumer, other):
                each.stop()

    back_s = {name: (at_ms - released_ms) / 1_000 for name, at_ms in back_ms.items()}
    stopped_s, known_s = (silent_ms - held_ms) / 1_000, (known_ms - held_ms) / 1_000
    print(f"stopped after {stopped_s} s, known to a Python gateway after {known_s} s; back after {back_s}")
    assert sum(sent) <= (0 if proxies else 2 * 3 * 2 * BATCH), "a broker lets one request in 10 s through a connection"
    assert sum(amount for at_ms, amount in other.samples if silent_ms < at_ms < released_ms) > 0


def _wait_ms(gateway: Gateway) -> int:
    """Wait that a Python gateway asks of a producer of a byte, in milliseconds."""
    written = [TopicPartition(TOPIC, 0, 1)]
    return gateway.admit(Request("Produce", client_id="app", topic_partitions=written)).throttle_ms


def _first_after(at_ms: int, client: FullSpeedClient) -> int:
    """The time of the first that a client got after a time."""

    def first() -> int | None:
        return next((time_ms for time_ms, _ in client.samples if time_ms > at_ms), None)

    wait_until(lambda: first() is not None, 300)
    found = first()
    assert found is not None
    return found
