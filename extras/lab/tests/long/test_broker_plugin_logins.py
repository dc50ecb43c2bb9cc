"""Brokers with the plugin whose clients log in: Sluice's own are exempt by their principal, and may lack rights."""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from sluice.cli.errors import CheckWarningError
from sluice.configs.settings import Properties, load_settings
from sluice.state.quotas.kinds import QuotaKind
from sluice_toolbox import checks
from tests.broker_plugin import SECRET
from tests.builders import quota
from tests.integration.plugin_broker import Login, PluginBroker, check_throttled, produce, published
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

QUOTA = 100_000.0
USERS = ("admin", "sluice", "app")
LIMITS = [
    quota(QuotaKind.PRODUCER_BYTE_RATE, 1.0, user="sluice"),
    quota(QuotaKind.PRODUCER_BYTE_RATE, QUOTA, user="app"),
]


def login(user: str) -> Login:
    """With which a kafka-python client logs in as this user; its password is its name."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": user,
    }


def login_properties() -> Mapping[str, str]:
    """Server properties: clients log in by SASL/PLAIN, the plugin as `sluice`, which has no rights."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    known = " ".join(f'user_{user}="{user}"' for user in USERS)
    return {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": f'{module} username="admin" password="admin" {known};',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:app;User:ANONYMOUS",
        "sluice.client.security.protocol": "SASL_PLAINTEXT",
        "sluice.client.sasl.mechanism": "PLAIN",
        "sluice.client.sasl.jaas.config": f'{module} username="sluice" password="sluice";',
        "sluice.exempt.principals": "User:sluice",
    }


@pytest.fixture
def plugin(tmp_path: Path, classes: list[Path]) -> Iterator[PluginBroker]:
    """A broker whose plugin has no rights yet."""
    plugin = PluginBroker(tmp_path, classes, properties=login_properties(), login=login("admin"))
    with plugin.broker:
        plugin.create_topics("quota-requests", "quota-sums", "quota-limits", "orders")
        yield plugin


def let_in(plugin: PluginBroker) -> None:
    """Give `sluice` every right on every topic."""
    acl = ACL("User:sluice", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, "*"))
    with closing(KafkaAdminClient(bootstrap_servers=plugin.servers, **login("admin"))) as admin:
        admin.create_acls([acl])


def test_sluice_is_exempt_by_principal_alone_and_a_plugin_without_rights_leaves_kafkas_quotas(
    plugin: PluginBroker,
) -> None:
    plugin.alter_kafka_quota("cautious", "producer_byte_rate", QUOTA)
    # on a busy machine the node isn't ready in time at first, which is another line
    unreadable = "Sluice can't read topic quota-limits (org.apache.kafka.common.errors.TopicAuthorizationException"
    eventually(lambda: unreadable in plugin.log.read_text())
    check_throttled(plugin.servers, "cautious", QUOTA, **login("app"))
    assert plugin.log.read_text().count(unreadable) == 1
    assert not plugin.metric("LimitsRead")

    let_in(plugin)
    plugin.publish_limits(LIMITS)
    eventually(lambda: "Sluice knows the limits" in plugin.log.read_text())

    assert plugin.metric("LimitsRead")
    assert produce(plugin.servers, "anything", 120, most=4_000_000, **login("sluice")) == 4_000_000
    check_throttled(plugin.servers, "sluice-job", QUOTA, **login("app"))
    # By their principal clients of Sluice aren't charged at all, and so not published.
    events = published(plugin.servers, **login("admin"))
    assert sum(event.get("bytes", 0) for event in events) < 20 * QUOTA
    assert {event["user"] for event in events if "bytes" in event} == {"app"}


MISSPELT = "User:Sluice;user:sluice;User: sluice;Group:sluice;User:sluice,User:x;User:sluice@EXAMPLE.ORG;User:CN=sluice"
"""Names that aren't the login's, letter by letter; a comma separates none."""


def test_a_misspelt_exemption_is_named_everywhere_with_the_login_as_the_broker_sees_it(
    tmp_path: Path, classes: list[Path]
) -> None:
    properties = {**login_properties(), "sluice.exempt.principals": MISSPELT}
    plugin = PluginBroker(tmp_path, classes, properties=properties, login=login("admin"))
    with plugin.broker:
        plugin.create_topics("quota-requests", "quota-sums", "quota-limits", "orders")
        let_in(plugin)

        def named() -> bool:
            beats = [each["heartbeat"] for each in published(plugin.servers, **login("admin")) if "heartbeat" in each]
            held = [client["principal"] for beat in beats for client in beat.get("not_exempt", [])]
            return "User:sluice" in held

        eventually(named)
        line = (
            f"of User:sluice isn't exempt .* name exactly User:sluice in sluice.exempt.principals, which has {MISSPELT}"
        )
        eventually(lambda: re.search(line, plugin.log.read_text()) is not None)
        warnings = [text for text in plugin.log.read_text().splitlines() if "isn't exempt" in text]
        assert not any(SECRET in text for text in warnings)  # nobody may learn it from a log
        sluice, admin = (java_login(plugin.servers, user) for user in ("sluice", "admin"))
        beats = checks.read_heartbeats(replace(load_settings(), kafka=sluice)).by_instance
        with pytest.raises(CheckWarningError, match=r"brokers don't exempt .*User:sluice \(client-id .*name exactly"):
            checks.own_login_verdict(sluice, [], [], checks.broker_configs(admin), beats)


def java_login(servers: str, user: str) -> Properties:
    """Section `kafka` of settings with this login."""
    jaas = login_properties()["sluice.client.sasl.jaas.config"].replace('"sluice"', f'"{user}"')
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    return Properties({"bootstrap.servers": servers} | sasl)
