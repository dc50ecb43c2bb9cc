"""The table of client properties against those that Kafka's own clients have."""

from sluice.kafka_io.properties import INSTEAD, PREFIXES, PROPERTIES, Takes
from sluice_demo.jars import BROKER_JARS
from sluice_toolbox.machine import Jvm


def test_every_property_of_kafkas_clients_is_taken_or_refused_with_a_reason() -> None:
    with Jvm(BROKER_JARS.paths()) as jvm:
        clients = jvm.packages.org.apache.kafka.clients
        configs = (clients.producer.ProducerConfig, clients.consumer.ConsumerConfig, clients.admin.AdminClientConfig)
        known = {name for config in configs for name in config.configNames() if not name.startswith("internal.")}

    assert {name for name, takes in PROPERTIES.items() if Takes.JAVA in takes} <= known
    others = known - PROPERTIES.keys() - INSTEAD.keys()
    assert {name for name in others if not name.startswith(tuple(PREFIXES))} == set()
