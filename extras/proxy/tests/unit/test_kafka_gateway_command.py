"""`sluice kafka-gateway`: what it tells Kroxylicious, and one line for what it can't use."""

import gzip
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.errors import UsageError
from sluice.configs.settings import Settings, load_settings
from sluice_proxy import processes
from sluice_proxy.gateway import (
    ANY_PORT,
    Address,
    KafkaGateway,
    Tls,
    parse_address,
    parse_listener,
    proxy_properties,
    tls_of,
)
from sluice_proxy.jars import PROXY_CLASSES
from tests.commands import invoke

SECRET = "proxys-own-Secret"  # noqa: S105 # of no broker


def settings_with(tmp_path: Path, content: str) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(content, encoding="utf-8")
    return load_settings(file)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with(tmp_path, "kafka: {bootstrap.servers: 'b1:9092'}\n")


def config_of(tmp_path: Path, settings: Settings, listener: Address = ANY_PORT, tls: Tls | None = None) -> Any:
    """The configuration of a proxy in front of brokers 1, 2 and 7."""
    gateway = KafkaGateway(tmp_path, settings, listener, tls)
    file = gateway.write_config([1, 2, 7])  # what start would write once a broker has answered
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        *(("--listen", address, "expected HOST:PORT") for address in ("9092", ":9092", "h:", "h:x", "h:65536")),
        ("--listen", "0.0.0.0:9092", "expected the name by which they reach this host, such as proxy.example:9092"),
        *(
            ("--listen", f"{host}:9092", "which clients would get as the address of the brokers")
            for host in ("[::]", "[0:0::0]", "[::ffff:0.0.0.0]", "0", "*")
        ),
        *(
            ("--listen", f"{host}:9092", "such as 127.0.0.1:9092 or [::1]:9092")
            for host in ("::1", "[::1", "[]", "[h]")
        ),
        ("--metrics", "::1:9092", "such as 127.0.0.1:9092 or [::1]:9092"),
        ("--listen", "[::g]:9092", "no IPv6 address in its brackets"),
        ("--connections-per-s", "2147483648", "less than or equal to 2147483647"),
    ],
)
def test_an_option_that_is_not_right_is_refused_at_once(tmp_path: Path, option: str, value: str, expected: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("kafka: {bootstrap.servers: '127.0.0.1:1'}\n")

    assert expected in invoke("kafka-gateway", "--config", file, option, value, code=2).error


def test_a_proxy_listens_on_loopback_unless_another_host_is_named(tmp_path: Path, settings: Settings) -> None:
    (quiet,) = config_of(tmp_path, settings)["virtualClusters"]
    (public,) = config_of(tmp_path, settings, parse_address("--listen", "proxy.example:9092"))["virtualClusters"]

    assert quiet["clusterNetworkAddressConfigProvider"]["config"]["bindAddress"] == "127.0.0.1"
    assert public["clusterNetworkAddressConfigProvider"]["config"] == {
        "host": "proxy.example",
        "port": 9092,
        "nodeIds": [1, 2, 7],
    }


@pytest.mark.parametrize(
    ("host", "told", "bound"),
    [
        ("localhost", "localhost", "127.0.0.1"),
        ("127.0.0.5", "127.0.0.5", "127.0.0.5"),
        ("127.1", "127.1", "127.0.0.1"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.7"),
        ("[::1]", "::1", "0:0:0:0:0:0:0:1"),
        ("[2001:db8:0::7]", "2001:db8:0::7", "2001:db8:0:0:0:0:0:7"),
        ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_proxy_listens_on_the_address_that_is_named(
    tmp_path: Path, settings: Settings, host: str, told: str, bound: str
) -> None:
    listener = parse_listener(f"{host}:9092")

    (cluster,) = config_of(tmp_path, settings, listener)["virtualClusters"]

    address = cluster["clusterNetworkAddressConfigProvider"]["config"]
    assert (address["host"], address["bindAddress"]) == (told, bound)
    assert listener.with_port(9092) == f"{host}:9092"


def test_lines_for_the_terminal_are_read_once_and_whole(tmp_path: Path, settings: Settings) -> None:
    gateway, log = KafkaGateway(tmp_path, settings), tmp_path / "proxy.log"
    log.write_text("INFO x\nCLIENTS no new client gets in: b1:9092 is away\nINFO CLIENTS y\nCLIENTS new cl")

    assert gateway.news() == ["no new client gets in: b1:9092 is away"]
    assert gateway.news() == []
    with log.open("a") as more:
        more.write("ients get in again\n")
    assert gateway.news() == ["new clients get in again"]


def test_metrics_are_at_the_address_that_is_asked_for(tmp_path: Path, settings: Settings) -> None:
    gateway = KafkaGateway(tmp_path, settings, metrics=parse_address("--metrics", "0.0.0.0:9190"))

    assert json.loads(gateway.write_config([1]).read_text())["management"]["bindAddress"] == "0.0.0.0"  # noqa: S104
    assert gateway.management_port == 9190


def test_the_login_of_sluices_own_clients_is_passed_on_and_the_brokers_tls_too(tmp_path: Path) -> None:
    settings = settings_with(
        tmp_path,
        "kafka:\n  bootstrap.servers: b1:9093\n  client.id: secret-of-sluice\n  security.protocol: SASL_SSL\n"
        f"  sasl.mechanism: PLAIN\n  sasl.jaas.config: 'x required password=\"{SECRET}\";'\n"
        "  ssl.truststore.type: PEM\n  ssl.truststore.location: /etc/ca.pem\n",
    )

    config = config_of(tmp_path, settings)

    (cluster,) = config["virtualClusters"]
    (filtered,) = config["filterDefinitions"]
    assert cluster["targetCluster"]["tls"] == {"trust": {"storeFile": "/etc/ca.pem", "storeType": "PEM"}}
    assert SECRET in filtered["config"]["sluice.client.sasl.jaas.config"]
    assert "secret-of-sluice" not in filtered["config"].values()  # it would exempt whoever has this client-id


TLS = "kafka: {bootstrap.servers: 'b1:9093', ssl.truststore.location: /ca.pem, ssl.truststore.type: PEM, "


TRUST = {"trust": {"storeFile": "/ca.pem", "storeType": "PEM"}}
PROTOCOLS = "ssl.enabled.protocols: 'TLSv1.3, TLSv1.2', ssl.cipher.suites: A"
STORE = f"ssl.keystore.location: /c.pem, ssl.keystore.type: PEM, ssl.key.password: {SECRET}"
KEY = {"storeFile": "/c.pem", "storeType": "PEM", "keyPassword": {"password": SECRET}}


@pytest.mark.parametrize(
    ("properties", "tls"),
    [
        *(
            (f"sasl.mechanism: GSSAPI, security.protocol: {protocol}", TRUST)
            for protocol in ("SASL_SSL", "sasl_ssl", "Sasl_Ssl", "ssl")
        ),
        (
            f"security.protocol: SSL, {PROTOCOLS}, {STORE}",
            TRUST | {"protocols": {"allow": ["TLSv1.3", "TLSv1.2"]}, "cipherSuites": {"allow": ["A"]}, "key": KEY},
        ),
    ],
)
def test_the_proxy_speaks_tls_to_brokers_as_it_is_asked_to_in_whatever_case(
    tmp_path: Path, properties: str, tls: Mapping[str, Any]
) -> None:
    (cluster,) = config_of(tmp_path, settings_with(tmp_path, f"{TLS}{properties}}}\n"))["virtualClusters"]

    assert cluster["targetCluster"]["tls"] == tls


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("ssl.endpoint.identification.algorithm: ''", "only do by trusting any certificate; remove it"),
        ("ssl.engine.factory.class: x.Y", "take no kafka.ssl.engine.factory.class; expected .*ssl.truststore.location"),
        ("ssl.truststore.certificates: x", "take no kafka.ssl.truststore.certificates"),
    ],
)
def test_tls_that_the_proxy_would_not_have_is_refused(tmp_path: Path, properties: str, message: str) -> None:
    """Without the check of names Kroxylicious has none of the signer either."""
    encrypted = settings_with(tmp_path, f"{TLS}security.protocol: SSL, {properties}}}\n")
    plain = settings_with(tmp_path, f"{TLS}{properties}}}\n")

    with pytest.raises(UsageError, match=message):
        KafkaGateway(tmp_path, encrypted)
    (cluster,) = config_of(tmp_path, plain)["virtualClusters"]
    assert "tls" not in cluster["targetCluster"]


def test_topics_and_windows_are_those_of_the_job(tmp_path: Path) -> None:
    settings = settings_with(
        tmp_path,
        "kafka: {bootstrap.servers: 'b1:9092'}\ntopics: {sums: other-sums}\n"
        "quota: {quota.window.num: 6, quota.window.size.seconds: 2}\n",
    )

    properties = proxy_properties(settings)

    assert properties["sluice.sums.topic"] == "other-sums"
    assert (properties["quota.window.num"], properties["quota.window.size.seconds"]) == (6, 2)


def test_clients_certificates_are_asked_for_where_their_authority_is_named(tmp_path: Path, settings: Settings) -> None:
    files = [tmp_path / name for name in ("certificate.pem", "key.pem", "authority.pem")]
    for file in files:
        file.touch()
    tls = tls_of(*files)
    (cluster,) = config_of(tmp_path, settings, tls=tls)["virtualClusters"]

    assert cluster["tls"]["trust"]["trustOptions"] == {"clientAuth": "REQUIRED"}


@pytest.mark.parametrize(
    ("names", "problem"),
    [(("certificate.pem", None, None), "--tls-key"), ((None, None, "authority.pem"), "--tls-certificate")],
)
def test_half_of_a_clients_tls_is_refused(tmp_path: Path, names: Sequence[str | None], problem: str) -> None:
    files = [None if name is None else tmp_path / name for name in names]
    for file in filter(None, files):
        file.touch()

    with pytest.raises(UsageError, match=problem):
        tls_of(*files)


@pytest.mark.parametrize(
    ("outgoing", "below"), [("32768 60999", 32_768), ("10000 65535", 10_000), ("1024 65535", 32_768)]
)
def test_free_ports_follow_each_other_and_are_none_of_outgoing_connections(
    outgoing: str, below: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last range leaves none below it."""
    monkeypatch.setattr(processes, "_OUTGOING", tmp_path / "range")
    monkeypatch.setattr(processes, "is_free", lambda port: port % 8 != 0)
    (tmp_path / "range").write_text(outgoing)

    first, *others = processes.free_ports(4)

    assert others == [first + 1, first + 2, first + 3]
    assert all(port % 8 != 0 and 1_024 <= port < below for port in (first, *others))


def test_the_reason_of_a_proxy_that_does_not_start_is_its_last_error(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "proxy.log").write_text(
        "Caused by: java.lang.InterruptedException\nERROR bind(..) failed: Address already in use\n"
    )
    assert KafkaGateway(tmp_path, settings)._reason() == "bind(..) failed: Address already in use"


def test_what_isnt_filtered_has_no_filter(tmp_path: Path, settings: Settings) -> None:
    gateway = KafkaGateway(tmp_path, settings, filtered=False)

    config: Mapping[str, Any] = json.loads(gateway.write_config([1]).read_text())

    assert "filterDefinitions" not in config


def test_the_list_of_classes_has_those_of_a_proxy() -> None:
    names = set(gzip.decompress(PROXY_CLASSES.names.read_bytes()).decode().splitlines())

    assert {"io/kroxylicious/proxy/KafkaProxy", "io/netty/channel/epoll/EpollEventLoop"} <= names
