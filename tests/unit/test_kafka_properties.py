"""Section `kafka`: what each kind of client takes, and one line with the right name for everything else."""

from pathlib import Path

import pytest

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.gateways.client.client import Gateway
from sluice.kafka_io import client as kafka_client
from sluice.kafka_io.client import kafka_python_config
from sluice.kafka_io.errors import UnsupportedPropertyError
from sluice.kafka_io.properties import PROPERTIES, PROTOCOLS, Takes, check_properties, has_layer, java_properties
from tests.builders import file_of

DEFAULTS = load_settings(environment={})
SECRET = "hunter2"  # noqa: S105 # of no broker

REFUSED = {
    "sasl.mechanisms": "sasl.mechanisms isn't taken; expected sasl.mechanism",
    "sasl.username": 'expected sasl.jaas.config, such as: .*username="..."',
    "sasl.password": "expected sasl.jaas.config",
    "metadata.broker.list": "expected bootstrap.servers",
    "enable.ssl.certificate.verification": "expected ssl.truststore.location .* certificates are always verified",
    "sasl.oauthbearer.token.endpoint.url": "have no OAUTHBEARER",
    "config.providers.file.class": r"expected \$\{NAME\}, which is replaced from the environment",
    "key.deserializer": "is a property of single producers or consumers; remove it",
    "auto.offset.reset": "remove it",
    "enable.auto.commit": "remove it",
    "group.id": "remove it",
    "acks": "remove it",
    "securty.protocol": r"did you mean security\.protocol\?",
    "ssl.trustore.location": r"did you mean ssl\.truststore\.location\?",
    "xyz": "is no client property that Sluice takes; docs/security.md lists those that are taken",
}


@pytest.mark.parametrize(("name", "message"), REFUSED.items())
def test_what_no_client_takes_is_refused_in_settings_and_gateways_alike(
    tmp_path: Path, name: str, message: str
) -> None:
    file = file_of(tmp_path / "settings.yaml", f"kafka: {{{name}: {SECRET}}}\n")

    with pytest.raises(InvalidSettingsError, match=message) as of_settings:
        load_settings(file)
    with pytest.raises(UnsupportedPropertyError, match=message) as of_gateway:
        Gateway({"bootstrap.servers": "b:1", name: SECRET})

    for error, prefix in ((of_settings.value, "kafka."), (of_gateway.value, "")):
        assert f" {prefix}{name} " in f" {error}"
        assert SECRET not in str(error)
        assert "\n" not in str(error)


@pytest.mark.parametrize("protocol", [word for each in PROTOCOLS for word in (each, each.lower(), each.title())])
def test_the_protocol_is_read_in_any_case(tmp_path: Path, protocol: str) -> None:
    file = file_of(tmp_path / "settings.yaml", f"kafka: {{security.protocol: {protocol}, sasl.mechanism: GSSAPI}}\n")

    kafka = load_settings(file).kafka

    assert has_layer(kafka, "SSL") == protocol.upper().endswith("SSL")
    assert has_layer(kafka, "SASL") == protocol.upper().startswith("SASL")


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        ("security.protocol: TLS", "'TLS'; expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol: ssl, ssl.ca.location: /ca.pem", r"expected kafka\.ssl\.truststore\.location"),
        (
            "security.protocol: SASL_PLAINTEXT",
            r"kafka\.sasl\.mechanism and sasl\.jaas\.config are missing, .*_PLAINTEXT",
        ),
        ("security.protocol: sasl_ssl, sasl.mechanism: PLAIN", r"kafka\.sasl\.jaas\.config is missing, .* sasl_ssl"),
        ("security.protocol: SASL_SSL, sasl.jaas.config: x required;", r"kafka\.sasl\.mechanism is missing"),
    ],
    ids=[
        "unknown, so no plain text",
        "an authority that Java would not read",
        "no login",
        "no password",
        "no mechanism",
    ],
)
def test_a_protocol_that_not_all_clients_have_is_refused(tmp_path: Path, kafka: str, message: str) -> None:
    file = file_of(tmp_path / "settings.yaml", f"kafka: {{{kafka}}}\n")

    with pytest.raises(InvalidSettingsError, match=message):
        load_settings(file)


def test_the_table_has_what_python_clients_are_given() -> None:
    files = {"ssl.ca.location", "ssl.certificate.location", "ssl.key.location"}
    stores = {f"ssl.{store}.{part}" for store in ("truststore", "keystore") for part in ("location", "type")}
    given = {*kafka_client.ARGUMENTS, "sasl.jaas.config", *files, *stores}

    assert {name for name, takes in PROPERTIES.items() if Takes.PYTHON in takes} == given


def test_java_gets_no_files_that_python_alone_reads() -> None:
    kafka = {"bootstrap.servers": "b:1", "ssl.ca.location": "/ca.pem", "linger.ms": "5"}

    check_properties(kafka)
    assert java_properties(kafka) == {"bootstrap.servers": "b:1", "linger.ms": "5"}


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("kafka-1:9092", "kafka-1:9092"),
        ("PLAINTEXT://kafka_1.example:9092, SASL_SSL://b:9093,", "kafka_1.example:9092,b:9093"),
        ("[2001:db8::1]:9092,SSL://[::1]:1", "[2001:db8::1]:9092,[::1]:1"),
        ("b:9092,b:9092", "b:9092"),
    ],
)
def test_addresses_are_alike_for_every_client_and_the_proxy(written: str, taken: str) -> None:
    """Kafka's Java clients pass over what comes before ://, as Confluent's console prints it; the proxy doesn't."""
    assert with_bootstrap_servers(DEFAULTS, written).kafka["bootstrap.servers"] == taken
    assert kafka_python_config({"bootstrap.servers": written})["bootstrap_servers"] == taken.split(",")


@pytest.mark.parametrize(
    "written", ["kafka", "kafka:", ":9092", "kafka:0", "kafka:65536", "ka fka:9092", "b:9092,x", " , "]
)
def test_what_is_no_address_is_refused(written: str) -> None:
    with pytest.raises(UnsupportedPropertyError, match=r"^bootstrap\.servers .*; expected host:port"):
        kafka_python_config({"bootstrap.servers": written})
    with pytest.raises(InvalidSettingsError, match=r"^--bootstrap-servers: kafka\.bootstrap\.servers "):
        with_bootstrap_servers(DEFAULTS, written)
