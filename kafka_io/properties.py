"""Kafka's client properties: which of Sluice's clients take each, and the one check that refuses all others."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import Flag, auto
from types import MappingProxyType
from typing import Final

from sluice.kafka_io.errors import UnsupportedPropertyError
from sluice.kafka_io.jaas import EXAMPLE, check_login


class Takes(Flag):
    """The clients that take a property."""

    JAVA = auto()
    """Spark's, and those of the broker plugin and of the proxy itself."""

    PYTHON = auto()
    """Those of the commands, of Python gateways and of the job beside Spark."""

    PROXY = auto()
    """The proxy's connections to brokers, on which its clients' requests go."""


_ALL = Takes.JAVA | Takes.PYTHON | Takes.PROXY
_OWN = Takes.JAVA | Takes.PYTHON
_TLS = Takes.JAVA | Takes.PROXY
_NOBODY = Takes(0)


def _rows() -> Iterator[tuple[Takes, str]]:
    yield _ALL, "bootstrap.servers security.protocol"
    yield _ALL, "ssl.truststore.location ssl.truststore.type ssl.keystore.location ssl.keystore.type ssl.key.password"
    yield _ALL, "ssl.endpoint.identification.algorithm"  # the proxy takes its default alone
    yield _OWN, "client.id client.dns.lookup connections.max.idle.ms metadata.max.age.ms request.timeout.ms"
    yield _OWN, "reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms receive.buffer.bytes send.buffer.bytes"
    yield _OWN, "sasl.mechanism sasl.jaas.config sasl.kerberos.service.name"
    # PEM files, which Python needs beside Java's stores of another type
    yield Takes.PYTHON, "ssl.ca.location ssl.certificate.location ssl.key.location"
    # PEM files have no such password
    yield _TLS, "ssl.truststore.password ssl.keystore.password"
    # Python speaks TLS 1.2 and 1.3, as Kafka does by default; what a broker must not speak it refuses itself
    yield _TLS, "ssl.cipher.suites ssl.enabled.protocols"
    # Python would fail at its start without the files that it asks for instead
    yield Takes.JAVA, "ssl.truststore.certificates ssl.keystore.certificate.chain ssl.keystore.key"
    # Java's own parts of TLS and logins
    yield Takes.JAVA, "ssl.protocol ssl.provider ssl.keymanager.algorithm ssl.trustmanager.algorithm"
    yield Takes.JAVA, "ssl.engine.factory.class ssl.secure.random.implementation security.providers"
    yield Takes.JAVA, "sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class"
    yield Takes.JAVA, "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin"
    yield Takes.JAVA, "sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor"
    yield Takes.JAVA, "sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds"
    yield Takes.JAVA, "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter"
    yield Takes.JAVA, "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms"
    yield Takes.JAVA, "sasl.login.retry.backoff.ms sasl.login.retry.backoff.max.ms"
    # Pace and bookkeeping of Java's clients: no other result
    yield Takes.JAVA, "default.api.timeout.ms retries retry.backoff.max.ms enable.metrics.push metric.reporters"
    yield Takes.JAVA, "metrics.num.samples metrics.recording.level metrics.sample.window.ms"
    yield Takes.JAVA, "metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metadata.max.idle.ms"
    yield Takes.JAVA, "socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms"
    # Pace of Spark's producer and consumer, whose other properties Sluice or Spark sets
    yield Takes.JAVA, "batch.size buffer.memory linger.ms max.block.ms max.request.size delivery.timeout.ms"
    yield Takes.JAVA, "compression.type compression.gzip.level compression.lz4.level compression.zstd.level"
    yield Takes.JAVA, "enable.idempotence max.in.flight.requests.per.connection"
    yield Takes.JAVA, "check.crcs client.rack fetch.min.bytes fetch.max.bytes fetch.max.wait.ms"
    yield Takes.JAVA, "max.partition.fetch.bytes max.poll.interval.ms max.poll.records"
    # What Sluice or Spark sets for single producers, consumers and admin clients
    yield _NOBODY, "acks key.serializer value.serializer key.deserializer value.deserializer interceptor.classes"
    yield _NOBODY, "transactional.id transaction.timeout.ms transaction.two.phase.commit.enable"
    yield _NOBODY, "partitioner.class partitioner.ignore.keys partitioner.availability.timeout.ms"
    yield _NOBODY, "partitioner.adaptive.partitioning.enable partition.assignment.strategy"
    yield _NOBODY, "auto.offset.reset enable.auto.commit auto.commit.interval.ms isolation.level"
    yield _NOBODY, "group.id group.instance.id group.protocol group.remote.assignor"
    yield _NOBODY, "session.timeout.ms heartbeat.interval.ms share.acknowledgement.mode share.acquire.mode"
    yield _NOBODY, "allow.auto.create.topics exclude.internal.topics bootstrap.controllers"


PROPERTIES: Final[Mapping[str, Takes]] = MappingProxyType(
    {name: takes for takes, names in _rows() for name in names.split()}
)
"""The clients that take each property; the comments say why the others can do without."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_JAAS: Final = f"sasl.jaas.config, such as: {EXAMPLE}"
_STORE: Final = "ssl.truststore.location with ssl.truststore.type PEM"

INSTEAD: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": _JAAS,
    "sasl.password": _JAAS,
    "metadata.broker.list": "bootstrap.servers",
    "socket.timeout.ms": "request.timeout.ms",
    "enable.ssl.certificate.verification": f"{_STORE}: certificates are always verified",
    "ssl.ca.pem": _STORE,
    "config.providers": "${NAME}, which is replaced from the environment",
}
"""Properties of librdkafka, and those for which Sluice has its own way -> what to write."""

PREFIXES: Final = {
    "sasl.oauthbearer.": "another sasl.mechanism: Sluice's Python clients have no OAUTHBEARER",
    "config.providers.": INSTEAD["config.providers"],
}


def check_properties(kafka: Mapping[str, str]) -> None:
    """Raise UnsupportedPropertyError for the first property that no client takes, by its name, with the right one.

    So it does for an unknown protocol, which some clients would take for PLAINTEXT, and for a login that Java refuses.
    """
    for name in kafka:
        if not PROPERTIES.get(name):
            raise UnsupportedPropertyError(f"{name} {_fault(name)}")
    protocol = kafka.get("security.protocol", "PLAINTEXT")
    if protocol.upper() not in PROTOCOLS:
        expected = ", ".join(PROTOCOLS)
        raise UnsupportedPropertyError(f"security.protocol is {protocol!r}; expected one of {expected}")
    if not has_layer(kafka, "SASL"):
        return
    mechanism, jaas = kafka.get("sasl.mechanism"), kafka.get("sasl.jaas.config")
    missing = [name for name in ("sasl.mechanism", "sasl.jaas.config") if name not in kafka]
    # Java's default is GSSAPI, whose login may be in another file
    if missing and mechanism not in ("GSSAPI", "OAUTHBEARER") and "Krb5" not in (jaas or ""):
        them = " and ".join(missing) + (" are" if missing[1:] else " is")
        example = f"sasl.mechanism SCRAM-SHA-512 and sasl.jaas.config {EXAMPLE}"
        raise UnsupportedPropertyError(
            f"{them} missing, and security.protocol is {protocol}; expected such as {example}"
        )
    if jaas is not None:
        check_login(jaas, mechanism or "GSSAPI")


_SERVER = re.compile(r"(?:[0-9A-Za-z\-%._]*://)?\[?(?P<host>[0-9A-Za-z\-%._:]*)]?:(?P<port>[0-9]+)")
"""An address as Kafka's Java clients take it (Utils.HOST_PORT_PATTERN): what comes before :// is passed over."""


def servers_of(bootstrap_servers: str) -> list[str]:
    """The addresses of `bootstrap.servers`, each once, as all clients take them. Raises UnsupportedPropertyError.

    >>> servers_of("SASL_SSL://a.example:9092, [::1]:9093,")
    ['a.example:9092', '[::1]:9093']
    """
    found = dict[str, None]()
    for text in filter(None, map(str.strip, bootstrap_servers.split(","))):
        server = _SERVER.fullmatch(text)
        if server is None or not server["host"] or not 0 < int(server["port"]) <= _MOST_PORT:
            raise UnsupportedPropertyError(f"bootstrap.servers has {text!r}; expected host:port, such as kafka-1:9092")
        host, port = server["host"], int(server["port"])
        found[f"[{host}]:{port}" if ":" in host else f"{host}:{port}"] = None
    if not found:
        raise UnsupportedPropertyError(
            "bootstrap.servers is missing or empty; expected host:port, or several with commas between them"
        )
    return list(found)


_MOST_PORT = 65_535


def java_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """The properties that Java's clients take."""
    return {name: value for name, value in kafka.items() if Takes.JAVA in PROPERTIES[name]}


def has_layer(kafka: Mapping[str, str], layer: str) -> bool:
    """True if `security.protocol`, in any case, has the layer SASL or SSL.

    >>> has_layer({"security.protocol": "sasl_ssl"}, "SSL"), has_layer({}, "SSL")
    (True, False)
    """
    return layer in kafka.get("security.protocol", "PLAINTEXT").upper()


def _fault(name: str) -> str:
    if name.startswith("kafka."):
        return f"has Spark's prefix; expected Kafka's own name, kafka: {{{name.removeprefix('kafka.')}: ...}}"
    if name in PROPERTIES:
        return "is a property of single producers or consumers; remove it: Sluice sets what they need"
    instead = INSTEAD.get(name) or next((way for start, way in PREFIXES.items() if name.startswith(start)), None)
    if instead is not None:
        return f"isn't taken; expected {instead}"
    nearest = get_close_matches(name, PROPERTIES, n=1)
    right = f"did you mean {nearest[0]}?" if nearest else "docs/security.md lists those that are taken"
    return f"is no client property that Sluice takes; {right}"
