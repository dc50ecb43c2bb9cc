"""Section `kafka`: what each kind of client takes, and one line with the right name for everything else."""

from pathlib import Path

import pytest

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import load_settings
from sluice.gateways.client.client import Gateway
from sluice.kafka_io import client as kafka_client
from sluice.kafka_io.errors import UnsupportedPropertyError
from sluice.kafka_io.properties import PROPERTIES, PROTOCOLS, Takes, check_properties, has_layer, java_properties

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
    file = tmp_path / "settings.yaml"
    file.write_text(f"kafka: {{{name}: {SECRET}}}\n")

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
    file = tmp_path / "settings.yaml"
    file.write_text(f"kafka: {{security.protocol: {protocol}}}\n")

    kafka = load_settings(file).kafka

    assert has_layer(kafka, "SSL") == protocol.upper().endswith("SSL")
    assert has_layer(kafka, "SASL") == protocol.upper().startswith("SASL")


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        ("security.protocol: TLS", "'TLS'; expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol: ssl, ssl.ca.location: /ca.pem", r"expected kafka\.ssl\.truststore\.location"),
    ],
    ids=["unknown, so no plain text", "an authority that Java would not read"],
)
def test_a_protocol_that_not_all_clients_have_is_refused(tmp_path: Path, kafka: str, message: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"kafka: {{{kafka}}}\n")

    with pytest.raises(InvalidSettingsError, match=message):
        load_settings(file)


def test_the_table_has_what_python_clients_are_given() -> None:
    files = {"ssl.ca.location", "ssl.certificate.location", "ssl.key.location"}
    stores = {f"ssl.{store}.{part}" for store in ("truststore", "keystore") for part in ("location", "type")}
    given = {*kafka_client._ARGUMENTS, "sasl.jaas.config", *files, *stores}

    assert {name for name, takes in PROPERTIES.items() if Takes.PYTHON in takes} == given


def test_java_gets_no_files_that_python_alone_reads() -> None:
    kafka = {"bootstrap.servers": "b:1", "ssl.ca.location": "/ca.pem", "linger.ms": "5"}

    check_properties(kafka)
    assert java_properties(kafka) == {"bootstrap.servers": "b:1", "linger.ms": "5"}
