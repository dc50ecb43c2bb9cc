"""Kafka: topic settings, and the Python client's arguments for Kafka's own property names. Imports no YAML."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, TypeVar

from msgspec import Meta

from sluice.kafka_io.errors import KafkaUnavailableError, UnsupportedPropertyError
from sluice.kafka_io.jaas import login_of
from sluice.kafka_io.properties import check_properties, has_layer, servers_of
from sluice.process.format import error_line
from sluice.process.surroundings import lost_assertions

ClientT = TypeVar("ClientT")

CONNECT_TIMEOUT_MS = 10_000
"""Longest search for a broker."""

_MOST_ALONE = 3
"""Most servers that are tried alone, so that each has 2.5 s: a login far away takes more than a second."""

OF_COMMANDS: Final = MappingProxyType({"request.timeout.ms": "3000"})
"""Properties of a command's clients: somebody waits, and one that meets a broker which hangs asks another one soon."""

OF_PERSONS: Final = MappingProxyType({"client.id": "kafka-quotas"})
"""The name of who asks any cluster with any login: under one of Sluice's, brokers would report a missing exemption."""

RetentionMillis = Annotated[int, Meta(ge=-1, le=9_007_199_254_740_991)]
TopicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Section `topics`: names, and how a missing topic is created."""

    requests: TopicName
    decisions: TopicName
    dead_letters: TopicName
    limits: TopicName
    waits: TopicName
    sums: TopicName
    claims: TopicName
    partitions: Annotated[int, Meta(ge=1, le=100_000)]
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)] | None  # None: nobody has chosen
    requests_retention_ms: RetentionMillis
    decisions_retention_ms: RetentionMillis
    dead_letters_retention_ms: RetentionMillis
    max_message_bytes: Annotated[int, Meta(ge=1, le=2_147_483_647)]

    @property
    def replicas(self) -> int:
        """The replicas that a topic is made with."""
        return self.replication_factor or 1


def connect(client: Callable[..., ClientT], kafka: Mapping[str, str], **options: object) -> ClientT:
    """A kafka-python client, such as KafkaProducer, that has reached a broker; `options` are its further arguments.

    Raises KafkaUnavailableError, naming the address, if no broker answers, or its login, TLS, name or protocol is not
    right, or its packets are dropped: then within some 3 s. kafka-python chooses one of the servers and waits for it as
    long as it may, so some are also tried alone: another one may answer.
    """
    from kafka.errors import (  # Kafka's client is slow to import; commands that read settings don't need it
        KafkaError,
        KafkaTimeoutError,
    )

    from sluice.kafka_io.broker_search import BrokerSearch

    searches = list[BrokerSearch]()

    def search(**configs: object) -> BrokerSearch:
        searches.append(BrokerSearch(**configs))
        return searches[-1]

    # brokers with the plugin know Sluice's own clients by this name, and say if they don't exempt one
    config = {"client_id": "sluice"} | kafka_python_config(kafka) | {"kafka_client": search}
    _check(config)
    deadline_s = time.monotonic() + CONNECT_TIMEOUT_MS / 1000
    servers = servers_of(kafka["bootstrap.servers"])
    alone = random.sample(servers, min(len(servers), _MOST_ALONE)) if servers[1:] else []
    attempts = [servers, *([server] for server in alone)]
    while True:
        timeout_ms = max(0.0, deadline_s - time.monotonic()) * 1000 / len(attempts)
        arguments = config | {"bootstrap_servers": attempts.pop(0), "bootstrap_timeout_ms": timeout_ms}
        try:
            connected = client(**(arguments | options))
        except (KafkaError, OSError, ValueError) as error:
            fault = None
            while searches:  # kafka-python would leave its thread and sockets for ever
                fault = searches[-1].fault()
                searches.pop().close()
            if not attempts or not isinstance(error, KafkaTimeoutError):
                raise KafkaUnavailableError(
                    fault
                    or f"no Kafka broker answers at {kafka['bootstrap.servers']} ({error_line(error)}); check that it"
                    " runs there, and bootstrap.servers, security.protocol and login"
                ) from error
        else:
            for each in searches:
                each.end()
            return connected


def _check(config: Mapping[str, object]) -> None:
    """Raise KafkaUnavailableError for what kafka-python shows as a broker that gives no answer."""
    if (fault := lost_assertions()) is not None:
        raise KafkaUnavailableError(fault)
    for argument in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        if argument in config and not Path(str(config[argument])).is_file():
            raise KafkaUnavailableError(f"no file {config[argument]}, which ssl.* names; expected a PEM file there")


def kafka_python_config(kafka: Mapping[str, str]) -> dict[str, object]:
    """The arguments of kafka-python's clients for Kafka's own property names; what only Java takes is left out.

    Certificates have to be PEM files: `ssl.truststore.location` and `ssl.keystore.location` with their types PEM, or,
    in addition to a JKS store for the job, `ssl.ca.location`, `ssl.certificate.location` and `ssl.key.location`.
    Raises UnsupportedPropertyError as `check_properties` does, without `bootstrap.servers`, and for a login or a
    certificate store that the Python client can't use.
    """
    check_properties(kafka)
    servers_of(kafka.get("bootstrap.servers", ""))
    config: dict[str, object] = {}
    for name, (argument, convert) in ARGUMENTS.items():
        if name in kafka:
            config[argument] = _converted(name, kafka[name], convert)
    return config | _login(kafka) | _certificates(kafka)


def _converted(name: str, value: str, convert: Callable[[str], object]) -> object:
    try:
        return convert(value)
    except ValueError:
        raise UnsupportedPropertyError(f"{name} is {value!r}; expected a whole number") from None


def _buffer_bytes(value: str) -> int | None:
    """Kafka's -1 is the default of the operating system."""
    return None if int(value) < 0 else int(value)


ARGUMENTS: dict[str, tuple[str, Callable[[str], object]]] = {
    "bootstrap.servers": ("bootstrap_servers", servers_of),
    "client.id": ("client_id", str),
    "client.dns.lookup": ("client_dns_lookup", str),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "receive.buffer.bytes": ("receive_buffer_bytes", _buffer_bytes),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "request.timeout.ms": ("request_timeout_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "security.protocol": ("security_protocol", str.upper),
    "send.buffer.bytes": ("send_buffer_bytes", _buffer_bytes),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "ssl.key.password": ("ssl_password", str),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", bool),  # "" turns the check off
}
"""Kafka's name -> kafka-python's argument, common to its admin client, producer and consumer."""


def _login(kafka: Mapping[str, str]) -> dict[str, object]:
    """User name and password out of `sasl.jaas.config`."""
    if not has_layer(kafka, "SASL"):
        return {}
    mechanism = kafka.get("sasl.mechanism", "GSSAPI")
    if mechanism == "OAUTHBEARER":
        raise UnsupportedPropertyError(
            "sasl.mechanism OAUTHBEARER is not supported by Sluice's Python client;"
            " expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or GSSAPI"
        )
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        return {}
    options = _options(kafka)
    if "username" not in options or "password" not in options:
        raise UnsupportedPropertyError(
            f'sasl.jaas.config has no username="..." and password="..."; expected both with {mechanism}'
        )
    return {"sasl_plain_username": options["username"], "sasl_plain_password": options["password"]}


def principal_of(kafka: Mapping[str, str]) -> str | None:
    """The principal that the login of these properties has in Kafka, unless its brokers map names; None without one.

    >>> principal_of({"security.protocol": "SASL_SSL", "sasl.jaas.config": 'x required username="ops" password="p";'})
    'User:ops'
    """
    name = _options(kafka).get("username") if has_layer(kafka, "SASL") else None
    return name and f"User:{name}"


def _options(kafka: Mapping[str, str]) -> dict[str, str]:
    return login_of(kafka["sasl.jaas.config"]).options if "sasl.jaas.config" in kafka else {}


def _certificates(kafka: Mapping[str, str]) -> dict[str, object]:
    if not has_layer(kafka, "SSL"):
        return {}
    files = {
        "ssl_cafile": kafka.get("ssl.ca.location") or _pem_store(kafka, "truststore", "ssl.ca.location"),
        "ssl_certfile": kafka.get("ssl.certificate.location")
        or _pem_store(kafka, "keystore", "ssl.certificate.location"),
        "ssl_keyfile": kafka.get("ssl.key.location"),
    }
    return {argument: file for argument, file in files.items() if file}


def _pem_store(kafka: Mapping[str, str], store: str, instead: str) -> str | None:
    """The PEM file that is the trust store or key store; None without a store."""
    inline = {"truststore": "ssl.truststore.certificates", "keystore": "ssl.keystore.certificate.chain"}[store]
    if inline in kafka:
        raise UnsupportedPropertyError(
            f"{inline} is not supported by the Python client; expected a PEM file in {instead} beside it"
        )
    location = kafka.get(f"ssl.{store}.location")
    kind = kafka.get(f"ssl.{store}.type", "JKS").upper()
    if location and kind != "PEM":
        raise UnsupportedPropertyError(
            f"ssl.{store}.location is a {kind} store, which the Python client can't read;"
            f" expected ssl.{store}.type PEM, or a PEM file in {instead} beside it"
        )
    return location
