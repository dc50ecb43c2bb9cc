"""A Kafka proxy that enforces quotas of clients, for brokers that take no plugin: its configuration and process."""

import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Event
from typing import Any, NamedTuple

import typer

from sluice.cli.errors import UsageError
from sluice.configs.settings import Settings
from sluice.jvm.java import find_java
from sluice.jvm.plugin import gateway_properties
from sluice.kafka_io.client import OF_COMMANDS, connect
from sluice.kafka_io.properties import PROPERTIES, Takes, has_layer, java_properties
from sluice.process.addresses import is_loopback, listening_address
from sluice.process.format import error_line
from sluice.state.errors import SluiceError
from sluice_proxy.jars import FILTER_TYPE, MAIN_CLASS, PROXY_CLASSES, proxy_class_path
from sluice_proxy.java_server import JavaServer
from sluice_proxy.processes import free_ports

_CONFIG = "proxy.yaml"
_LOOPBACK = "127.0.0.1"
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=128m",  # else all is collected when clients come, and accepts nobody meanwhile
    "-Dio.netty.bootstrap.extensions=serviceload",  # the bound on new connections
    "-Djdk.tls.rejectClientInitiatedRenegotiation=true",  # brokers refuse it, too: it costs a handshake each time
)
_UPSTREAM_TLS = ", ".join(
    name for name, takes in PROPERTIES.items() if name.startswith("ssl.") and Takes.PROXY in takes
)
_OF_GATEWAY = ("bootstrap.servers", "client.id")  # its own clients have names of their own
_TO_TERMINAL = b"CLIENTS "
"""Begins the lines of the log that say whether new clients get in."""

_NEXT_PORTS = 20
"""As many ports after a free one are free too: a broker's is its number and one more after it."""

_POLL_S = 0.2
_ATTEMPTS = 5  # a free port may be taken before the proxy listens on it
_OWNER_ONLY = 0o600


class KafkaGatewayError(SluiceError):
    """The Kafka proxy can't be started, or ended by itself."""


class Address(NamedTuple):
    """An address to which others connect; port 0 is a free one. `interface` is where the proxy listens, None: all."""

    host: str = _LOOPBACK
    port: int = 0
    interface: str | None = _LOOPBACK

    def with_port(self, port: int) -> str:
        """Host and port as clients write them.

        >>> Address("::1").with_port(9092), Address("proxy.example").with_port(9092)
        ('[::1]:9092', 'proxy.example:9092')
        """
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def reach(self) -> str:
        """Where it listens, for whoever runs it."""
        if self.interface is None:
            return "all interfaces"
        return f"{self.interface}: this machine alone" if is_loopback(self.interface) else self.interface


ANY_PORT = Address()


@dataclass(frozen=True)
class Tls:
    """PEM files for the connections of clients: certificate and key of the proxy, and the authority of the clients'.

    With an authority, a client needs a certificate, and its name is the user.
    """

    certificate: Path
    key: Path
    client_authority: Path | None = None

    def section(self) -> dict[str, Any]:
        """The section `tls` of Kroxylicious's configuration."""
        section: dict[str, Any] = {"key": {"privateKeyFile": str(self.key), "certificateFile": str(self.certificate)}}
        if self.client_authority is not None:
            options = {"clientAuth": "REQUIRED"}
            section["trust"] = {"storeFile": str(self.client_authority), "storeType": "PEM", "trustOptions": options}
        return section


def tls_of(certificate: Path | None, key: Path | None, client_authority: Path | None) -> Tls | None:
    """The TLS of clients' connections; None without a certificate. Raises UsageError."""
    for file in (certificate, key, client_authority):
        if file is not None and not file.is_file():
            raise UsageError(f"no file {file}; expected a PEM file there")
    if certificate is None and key is None and client_authority is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS for clients needs both --tls-certificate and --tls-key")
    return Tls(certificate.absolute(), key.absolute(), client_authority and client_authority.absolute())


def parse_address(option: str, text: str) -> Address:
    """The address in `HOST:PORT`, which an option gives. Raises UsageError.

    It listens on the address that the host is. A name is of this machine alone if any of its addresses is loopback; any
    other is of all interfaces: a proxy's clients may have it for a load balancer, and this machine no address for it.

    >>> parse_address("--listen", "[::1]:9092"), parse_address("--listen", "proxy.example:9092")
    (Address(host='::1', port=9092, interface='0:0:0:0:0:0:0:1'), \
Address(host='proxy.example', port=9092, interface=None))
    """
    written = re.fullmatch(r"(\[(?P<ipv6>[^\[\]]*:[^\[\]]*)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})", text)
    if written is None or int(written["port"]) > 65_535:
        raise UsageError(f"{option} is {text!r}; expected HOST:PORT, such as {_LOOPBACK}:9092 or [::1]:9092")
    host = written["host"] or written["ipv6"]
    interface = _interface(host)
    if written["ipv6"] is not None and interface is None:
        raise UsageError(f"{option} is {text!r}, which has no IPv6 address in its brackets; expected one such as [::1]")
    return Address(host, int(written["port"]), interface)


def parse_listener(text: str) -> Address:
    """The address of `--listen`, whose host clients get as that of the brokers. Raises UsageError."""
    listener = parse_address("--listen", text)
    if listener.host == "*" or (listener.interface is not None and ip_address(listener.interface).is_unspecified):
        raise UsageError(
            f"--listen is {text!r}, which clients would get as the address of the brokers; expected the name by which"
            f" they reach this host, such as proxy.example:{listener.port}: the proxy then listens on all interfaces"
        )
    return listener


def _interface(host: str) -> str | None:
    """The address to listen on, such as 127.0.0.1 for 127.1; None for a name that isn't of this machine alone.

    IPv6 as Java writes it: Kroxylicious knows by this text for whom a connection is.

    >>> _interface("::1"), _interface("::ffff:127.0.0.1"), _interface("Localhost"), _interface("proxy.invalid")
    ('0:0:0:0:0:0:0:1', '127.0.0.1', '127.0.0.1', None)
    """
    try:
        address = ip_address(listening_address(host))
    except (OSError, UnicodeError):
        return None
    if not (address.is_loopback or is_numeric(host)):
        return None
    address = getattr(address, "ipv4_mapped", None) or address
    if address.version == 4:
        return str(address)
    return ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))


class KafkaGateway(JavaServer):
    """A proxy in front of the brokers of `settings.kafka`, as a context manager or by start and stop.

    `folder`, which no other proxy may use, holds its configuration and its log (`proxy.log`). `properties` override
    those of the filter; without `filtered` the proxy only forwards. It accepts `connections_per_s` new connections a
    second at most; None is 500 for each core. `jvm_options` come last, so they count. The proxy ends with this process,
    even if this process is killed. The port of broker N is N + 1 after that of the listener, also for one that comes
    later.
    """

    kind, error, started, start_s = "proxy", KafkaGatewayError, "Kafka gateway started", 120.0

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        listener: Address = ANY_PORT,
        tls: Tls | None = None,
        properties: Mapping[str, Any] | None = None,
        *,
        metrics: Address = ANY_PORT,
        connections_per_s: int | None = None,
        filtered: bool = True,
        heap_mib: int = 512,
        jvm_options: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, "proxy.log")
        self._settings, self._listener, self._metrics, self._tls = settings, listener, metrics, tls
        self._upstream_tls = upstream_tls(settings.kafka)
        self._properties, self._filtered = dict(properties or {}), filtered
        self._jvm_options = [f"-Xmx{heap_mib}m", *_JVM_OPTIONS, *jvm_options]
        if connections_per_s is not None:
            self._jvm_options.append(f"-Dsluice.connections.per.s={connections_per_s}")
        self._port = listener.port
        self._bytes_read = 0
        self.management_port = 0

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, of the last start."""
        return self._listener.with_port(self._port)

    @property
    def log(self) -> Path:
        """The log of the last start."""
        return self._log

    def news(self) -> list[str]:
        """The lines of the log since the last call that are for whoever runs the proxy: whether clients get in."""
        with self._log.open("rb") as log:
            log.seek(self._bytes_read)
            content = log.read()
        whole_lines = content[: content.rfind(b"\n") + 1]
        self._bytes_read += len(whole_lines)
        found = (line for line in whole_lines.splitlines() if line.startswith(_TO_TERMINAL))
        return [line.removeprefix(_TO_TERMINAL).decode(errors="replace") for line in found]

    def start(self) -> None:
        """Start the proxy and return when it serves.

        Raises KafkaGatewayError (with the reason from its log), KafkaUnavailableError, JarError and JavaError.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        nodes = _node_ids(self._settings)  # before the jars, which the first start downloads
        java, _ = find_java()
        class_path = ":".join(map(str, proxy_class_path()))
        archived = PROXY_CLASSES.options()
        for attempt in range(1, _ATTEMPTS + 1):
            self._bytes_read = 0
            config = self.write_config(nodes)
            command = [java, *archived, *self._jvm_options, "-cp", class_path, MAIN_CLASS, str(config)]
            if self._run(command):
                return
            reason, has_ended = self._reason(), not self.alive
            self.stop()
            if self._listener.port or attempt == _ATTEMPTS or not has_ended:
                raise KafkaGatewayError(f"the proxy doesn't start: {reason}; all of it: {self._log}")

    def _reason(self) -> str:
        """The proxy's main class prints its own error last; those before may come from what it closes then."""
        last = self._log.read_text(errors="replace").rstrip().rpartition("\n")[2]
        return last.removeprefix("ERROR ") if last.startswith("ERROR ") else super()._reason()

    def write_config(self, nodes: Sequence[int]) -> Path:
        """Write Kroxylicious's configuration, which is JSON and so YAML too. It may hold secrets."""
        self._port = self._listener.port or free_ports(2 + min(max(nodes), _NEXT_PORTS))[0]
        self.management_port = self._metrics.port or free_ports(1)[0]
        address = {"host": self._listener.host, "port": self._port, "nodeIds": list(nodes)}
        if self._listener.interface is not None:
            address["bindAddress"] = self._listener.interface
        cluster: dict[str, Any] = {
            "name": "kafka",
            "targetCluster": {"bootstrapServers": self._settings.kafka["bootstrap.servers"]} | self._upstream_tls,
            "clusterNetworkAddressConfigProvider": {"type": "BoundPorts", "config": address},
        }
        if self._tls is not None:
            cluster["tls"] = self._tls.section()
        config: dict[str, Any] = {
            "management": {
                "bindAddress": self._metrics.interface or self._metrics.host,
                "port": self.management_port,
                "endpoints": {"prometheus": {}},
            },
            "virtualClusters": [cluster],
        }
        if self._filtered:
            properties = {**proxy_properties(self._settings), **self._properties}
            config["filterDefinitions"] = [{"name": "sluice", "type": FILTER_TYPE, "config": properties}]
            config["defaultFilters"] = ["sluice"]
        file = self._folder / _CONFIG
        file.touch(_OWNER_ONLY)
        file.write_text(json.dumps(config, indent=1))
        return file


def upstream_tls(kafka: Mapping[str, str]) -> dict[str, Any]:
    """The section for connections to brokers, where `security.protocol` has TLS; certificates as for Java.

    Raises UsageError for a property of TLS that Kroxylicious doesn't know: connections would have less protection, or
    another one.
    """
    if not has_layer(kafka, "SSL"):
        return {}
    _check_upstream_tls(kafka)
    tls: dict[str, Any] = {}
    for section, store in (("trust", "truststore"), ("key", "keystore")):
        location = kafka.get(f"ssl.{store}.location")
        if location is not None:
            tls[section] = {"storeFile": location, "storeType": kafka.get(f"ssl.{store}.type", "JKS")}
            if password := kafka.get(f"ssl.{store}.password"):
                tls[section]["storePassword"] = {"password": password}
    if "key" in tls and (password := kafka.get("ssl.key.password")):
        tls["key"]["keyPassword"] = {"password": password}
    for section, name in (("protocols", "ssl.enabled.protocols"), ("cipherSuites", "ssl.cipher.suites")):
        if allowed := [value.strip() for value in kafka.get(name, "").split(",") if value.strip()]:
            tls[section] = {"allow": allowed}
    return {"tls": tls}


def _check_upstream_tls(kafka: Mapping[str, str]) -> None:
    if kafka.get("ssl.endpoint.identification.algorithm", "https").lower() != "https":
        raise UsageError(
            "kafka.ssl.endpoint.identification.algorithm switches off the check of the brokers' names, which the proxy"
            " could only do by trusting any certificate; remove it, and name the brokers as their certificates do"
        )
    for name in kafka:
        if name.startswith("ssl.") and not PROPERTIES[name] & (Takes.PROXY | Takes.PYTHON):
            raise UsageError(f"the proxy's connections to brokers take no kafka.{name}; expected {_UPSTREAM_TLS}")


def proxy_properties(settings: Settings) -> dict[str, Any]:
    """The properties of the filter for a job with these settings, secrets included."""
    kafka, window = settings.kafka, settings.quota.client_window
    properties: dict[str, Any] = {
        **gateway_properties(kafka, settings.topics),
        "sluice.max.partitions.per.request": settings.quota.max_partitions_per_request,
        "quota.window.num": window.samples,
        "quota.window.size.seconds": max(1, window.window_ms // 1000),
    }
    own = {name: value for name, value in java_properties(kafka).items() if name not in _OF_GATEWAY}
    return properties | {f"sluice.client.{name}": value for name, value in own.items()}


def run_kafka_gateway(
    settings: Settings,
    listener: Address,
    metrics: Address,
    tls: Tls | None,
    properties: Mapping[str, Any],
    connections_per_s: int | None,
    stop: Event,
) -> None:
    """Run a proxy until `stop`; print where clients connect, and if they don't get in.

    Its log is left where the proxy has failed. Raises as `KafkaGateway.start` and `check` do.
    """
    folder = Path(mkdtemp(prefix="sluice-kafka-gateway-"))
    proxy = KafkaGateway(
        folder, settings, listener, tls, properties, metrics=metrics, connections_per_s=connections_per_s
    )
    try:
        with proxy:
            typer.echo(f"clients connect to {proxy.bootstrap_servers}")
            typer.echo(f"listens on {listener.reach}")
            typer.echo(f"metrics: http://{metrics.with_port(proxy.management_port)}/metrics")
            typer.echo(f"log: {proxy.log}")
            while not stop.wait(_POLL_S):
                proxy.check()
                for line in proxy.news():
                    typer.echo(f"sluice: {line}", err=True)
    except KafkaGatewayError:  # it names the log
        (folder / _CONFIG).unlink(missing_ok=True)  # which may hold secrets
        raise
    except BaseException:
        rmtree(folder)
        raise
    rmtree(folder)


def _node_ids(settings: Settings) -> list[int]:
    from kafka import KafkaAdminClient  # slow to import
    from kafka.errors import KafkaError

    try:
        with connect(KafkaAdminClient, settings.kafka | OF_COMMANDS) as admin:
            nodes = admin.describe_cluster()["brokers"]
    except KafkaError as error:
        raise KafkaGatewayError(f"the cluster can't be described ({error_line(error)}); look at its brokers") from error
    return sorted(int(node["broker_id"]) for node in nodes)


def is_numeric(host: str) -> bool:
    """True if the host is an address by itself rather than a name that has one.

    >>> is_numeric("127.1"), is_numeric("::1"), is_numeric("localhost")
    (True, True, False)
    """
    try:
        return bool(socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):
        return False
