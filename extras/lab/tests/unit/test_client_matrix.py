"""The matrix of clients: versions in logs, and differences between two ways."""

from collections import Counter
from dataclasses import replace

import pytest

from sluice_lab.scenarios.peers.client_table import CLIENTS, FEATURES
from sluice_lab.scenarios.peers.clients import Cell, Outcome, Way, differences, faults, is_expected, requests_in

LOGS = {
    "librdkafka": "%7|1|SEND|a#producer-1| [thrd:x]: x/1: Sent ProduceRequest (v10, 350 bytes @ 0, CorrId 3)",
    "kafka-python 2": "DEBUG:kafka.conn:<BrokerConnection> Request 3: ProduceRequest_v10(acks=1, timeout=30000)",
    "kafka-python 3": "DEBUG:kafka.net.connection:<KafkaConnection> Request 3: ProduceRequest(version=10, acks=1)",
    "java": "Sending PRODUCE request with header RequestHeader(apiKey=PRODUCE, apiVersion=10, clientId=a, corr=3)",
}
OUTCOME = Outcome(
    ["records=100"],
    {"produce": 12, "listoffsets": 11},
    ["fetch session"],
    ["one"],
    5,
    Counter({"Produce": 500, "Fetch": 500}),
    Counter({"Produce": 500, "Fetch": 500}),
)


@pytest.mark.parametrize("library", LOGS)
def test_the_version_of_each_request_is_read_in_the_log(library: str) -> None:
    log = f"{LOGS[library]}\n{LOGS[library].replace('10', '9')}\nsomething else\n"

    assert requests_in(log) == {"produce": [10, 9]}


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (replace(OUTCOME, said=["error=no"]), "said: records=100 -> error=no"),
        (replace(OUTCOME, features=[]), "features: fetch session -> -"),
        (replace(OUTCOME, batches=["one", "one"]), "batches: - -> -"),
        (replace(OUTCOME, versions={"produce": 11, "listoffsets": 11}), "produce 12 -> 11"),
        (replace(OUTCOME, charged=Counter({"Produce": 499, "Fetch": 500})), "Produce metered 500 bytes -> charged 499"),
        (replace(OUTCOME, charged=Counter({"Produce": 500, "Fetch": 1})), "Fetch metered 500 bytes -> charged 1"),
    ],
)
def test_whatever_a_client_has_otherwise_is_a_difference(changed: Outcome, difference: str) -> None:
    assert differences({Way.DIRECT: OUTCOME, Way.PROXY: OUTCOME}, Way.PROXY) == []
    assert differences({Way.DIRECT: OUTCOME, Way.PROXY: changed}, Way.PROXY) == [difference]
    assert not is_expected("zstd", Way.PROXY, difference)


def test_a_produce_that_was_sent_again_is_charged_again() -> None:
    again = replace(OUTCOME, produces=6, charged=Counter({"Produce": 600, "Fetch": 500}))

    assert differences({Way.DIRECT: OUTCOME, Way.PLUGIN: again}, Way.PLUGIN) == []
    assert differences({Way.DIRECT: OUTCOME, Way.PLUGIN: replace(again, produces=5)}, Way.PLUGIN) != []


@pytest.mark.parametrize("said", [[], ["records=99"], ["records=100", "error=no"]])
def test_a_client_that_fails_at_a_broker_alone_is_told(said: list[str]) -> None:
    cell = Cell("cell-000", CLIENTS[0], "zstd")

    assert faults(cell, OUTCOME) == []
    assert faults(cell, replace(OUTCOME, said=said)) == ["; ".join(said)]


def test_an_older_version_is_expected_where_the_proxy_has_no_newer_one() -> None:
    assert is_expected("zstd", Way.PROXY, "listoffsets 11 -> 10")
    assert not is_expected("zstd", Way.PROXY, "listoffsets 11 -> 9")
    assert not is_expected("zstd", Way.PLUGIN, "listoffsets 11 -> 10")
    assert is_expected("share group", Way.PROXY, "said: records=100 -> error=no")
    assert not is_expected("share group", Way.PLUGIN, "said: records=100 -> error=no")


def test_each_feature_has_a_client_and_each_client_features() -> None:
    assert all(any(client.has(feature) for client in CLIENTS) for feature in FEATURES.values())
    assert min(sum(map(client.has, FEATURES.values())) for client in CLIENTS) >= 10
