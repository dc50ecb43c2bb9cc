"""Brokers that are away, by their addresses and by the replicas that they have."""

import socket
from unittest.mock import Mock

from sluice.state.troubles import BrokersSeen
from sluice_reading.brokers_seen import read_broker_configs, read_replicas, silent_servers


def test_an_address_where_nobody_listens_is_silent_however_it_is_spelt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        servers = [f"127.0.0.1:{each.getsockname()[1]}" for each in (there, unused)]

        assert silent_servers({"bootstrap.servers": f"PLAINTEXT://{', '.join(servers)}"}) == servers[1:]


def test_a_broker_that_has_replicas_and_is_in_no_answer_is_away() -> None:
    """A fenced one is away too; a topic that isn't there yet is no trouble. A broker that wakes up knows of none."""
    brokers = [{"broker_id": 1}, {"broker_id": 2}, {"broker_id": 4, "is_fenced": True}]
    partitions = [{"partition_index": 0, "leader_id": 1, "replica_nodes": [1, 2, 3]}]
    partitions += [{"partition_index": 1, "leader_id": -1, "replica_nodes": [4]}]
    answers = [{"brokers": each} for each in (brokers, [], brokers[2:])]
    admin = Mock(describe_cluster=Mock(side_effect=answers), list_topics=lambda: ["t"])
    admin.describe_topics = lambda names: [{"name": name, "partitions": partitions} for name in names]

    assert read_replicas(admin, ["t", "later"]) == BrokersSeen((), {3: "t", 4: "t"}, ["t-1"])
    assert read_replicas(admin, ["t"]).away == {}
    assert read_replicas(admin, ["t"]).away.keys() == {1, 2, 3, 4}, "all are fenced"


def test_a_broker_that_wakes_up_knows_of_none_and_tells_no_configuration() -> None:
    admin = Mock(describe_cluster=lambda: {"brokers": []}, **{"describe_configs.return_value": {}})
    assert read_broker_configs(admin) == {}
