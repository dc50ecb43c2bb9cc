"""`sluice quotas exposure` of a real cluster."""

import json
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import UserScramCredentialDeletion, UserScramCredentialUpsertion

from sluice.jvm.plugin import CALLBACK_CLASS
from sluice.kafka_io.client import connect
from sluice_demo.cluster import create_topic
from sluice_lab.testbed.quotas_without_job import AlteringAdmin, set_kafkas_quotas
from sluice_toolbox.cluster_facts import read_cluster
from sluice_toolbox.cluster_quotas import read_cluster_quotas
from tests.commands import invoke
from tests.integration.plugin_broker import PluginBroker
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.group("broker_quotas")]


def test_the_exposure_of_quotas_is_read_from_what_any_cluster_tells(kafka_broker: str) -> None:
    """One broker leads all; who consumes is known by the groups, and a cluster without an authorizer has no rights."""
    kafka, topic = {"bootstrap.servers": kafka_broker}, f"exposed-{uuid4()}"
    with connect(KafkaAdminClient, kafka) as admin:
        create_topic(admin, topic, [1])
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("import-alice", "SCRAM-SHA-256", "made-up")])
    options = {"group_id": topic, "client_id": "import-reader"}
    reader: tuple[dict[str, str | None], dict[str, float]] = ({"client-id": "import-reader"}, {"consumer_byte_rate": 5})
    try:
        set_kafkas_quotas(kafka_broker, *reader)
        eventually(lambda: any("import-reader" in each.entity.values() for each in read_cluster_quotas(kafka)))
        newer = {**kafka, "group.id": f"{topic}-newer", "group.protocol": "consumer"}
        with (
            closing(connect(KafkaConsumer, kafka, **options)) as consumer,
            closing(confluent_kafka.Consumer(newer)) as other,
        ):
            consumer.subscribe([topic])
            eventually(lambda: bool(consumer.poll(100)) or bool(consumer.assignment()))
            other.subscribe([topic])
            eventually(lambda: other.poll(0.1) is None and bool(other.assignment()))
            shown = json.loads(invoke("quotas", "exposure", "--bootstrap-servers", kafka_broker, "--json").output)
    finally:
        with connect(AlteringAdmin, kafka) as admin:
            admin.alter(*reader, remove=True)
            admin.alter_user_scram_credentials([UserScramCredentialDeletion("import-alice", "SCRAM-SHA-256")])

    quotas = {(str(each["entity"]), each["key"]): each for each in shown["quotas"]}
    read = quotas["{'client_id': 'import-reader'}", "consumer_byte_rate"]
    assert (read["set"], read["possible"], read["known_by"]) == (5, 5, "its consumer groups")
    assert any(note.startswith("not known: rights (") for note in shown["notes"])
    assert any("consumer groups of the newer protocol" in note for note in shown["notes"])
    assert (shown["brokers"], shown["leading"], shown["sharing"]) == (1, 1, 0)


def test_brokers_with_the_plugin_are_known_as_those_that_share_a_quota(tmp_path: Path, classes: list[Path]) -> None:
    plugin = PluginBroker(tmp_path, classes)
    with plugin.broker:
        _, facts = read_cluster({"bootstrap.servers": plugin.servers}, CALLBACK_CLASS)

    assert facts.sharing == facts.brokers
