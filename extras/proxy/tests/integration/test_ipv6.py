"""A proxy on an IPv6 address in front of a broker on one: it listens there alone, and clients get in."""

import socket
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest
from kafka import KafkaProducer

from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.kafka_io.topics import ensure_topics
from sluice_demo.broker import Broker
from sluice_proxy.gateway import KafkaGateway, parse_listener
from sluice_proxy.processes import free_ports

pytestmark = pytest.mark.kafka


def test_a_proxy_listens_on_the_ipv6_address_alone_and_tells_clients_one_that_they_can_use(tmp_path: Path) -> None:
    port, controller = free_ports(2)
    properties = {
        "listeners": f"CLIENT://[::1]:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"CLIENT://[::1]:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    settings = with_bootstrap_servers(load_settings(), f"[::1]:{port}")
    listener = parse_listener("[::1]:0")
    with Broker(tmp_path / "broker", properties):
        ensure_topics(settings.topics, settings.kafka)
        with KafkaGateway(tmp_path / "proxy", settings, listener) as proxy:
            ours = int(proxy.bootstrap_servers.removeprefix("[::1]:"))
            with closing(KafkaProducer(bootstrap_servers=proxy.bootstrap_servers)) as producer:
                assert producer.send(settings.topics.requests, b"x", partition=0).get(120).offset >= 0
            client = confluent_kafka.Producer({"bootstrap.servers": proxy.bootstrap_servers})
            client.produce(settings.topics.requests, b"y")
            assert client.flush(10) == 0
            for each in (ours, ours + 2):
                with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", each), 5):
                    pass
