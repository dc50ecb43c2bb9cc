"""What `./scripts/bench --only h` tries."""

from scripts.benchmarks.beside_kafka import held_clients
from scripts.testbed.full_speed_client import Library
from sluice.state.quotas.kinds import QuotaKind


def test_each_client_is_tried_on_one_and_three_brokers_with_the_plugin_and_with_own_quotas() -> None:
    (producer, *_) = held_clients(runs=3, every=False)
    assert producer.title == "librdkafka producer, 1 MB/s"
    rows = {name: (tried.brokers, tried.own_quotas, tried.seconds) for name, tried in producer.situations(120)}
    assert rows == {
        "1 broker, plugin": (1, False, 120),
        "1 broker, own quotas": (1, True, 120),
        "3 brokers, plugin": (3, False, 120),
        "3 brokers, own quotas": (3, True, 120),
    }


def test_all_adds_other_libraries_and_a_larger_quota_once_each() -> None:
    usual, every = held_clients(3, every=False), held_clients(3, every=True)
    assert [client.runs for client in usual] == [3, 3, 3]
    added = every[len(usual) :]
    assert {client.runs for client in added} == {1}
    assert {(client.library, client.limit) for client in added} == {
        (Library.JAVA, 1e6),
        (Library.KAFKA_PYTHON, 1e6),
        (Library.LIBRDKAFKA, 3e6),
    }
    assert {client.quota for client in added} == {QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE}
