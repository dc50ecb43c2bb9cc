"""`./scripts/test-peers clients`: clients on a broker alone, through the proxy, and with the plugin."""

import hashlib
import re
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.request import urlopen

import msgspec
import typer
from kafka import KafkaAdminClient
from kafka.admin import UserScramCredentialUpsertion

from scripts.command import EXIT_FAILED, check_known
from sluice.configs.settings import Settings, load_settings
from sluice.jvm.jars import REPOSITORY, JarSet
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.counts import records
from sluice_demo.jars import BROKER_JARS
from sluice_demo.job import wait_until
from sluice_lab.benchmarks.report import table
from sluice_lab.scenarios.peers.client_table import CLIENTS, FEATURES, PASSWORD, USER, Client
from sluice_lab.testbed.clients.cell import ROUNDS, VALUES_PER_ROUND
from sluice_lab.testbed.jars import OLD_BROKER_JARS
from sluice_lab.testbed.jmx import Beans, beans
from sluice_lab.testbed.quotas_without_job import AlteringAdmin, publish_limits
from sluice_proxy.gateway import KafkaGateway
from sluice_toolbox.machine import Jvm

_ADMIN = "admin"
_CLIENT_S = 180.0
_START_S = 120.0
_CHARGES_S = 60.0
_AT_ONCE = 2 * 3
"""Clients that run at once: two cells on each way, as clients mostly wait."""

_EMPTY_FETCHES_BYTES = 3_000
"""Clients on two ways send different numbers of fetches that find nothing."""

_UNDELIVERED_BYTES = 200
"""A client that ends abandons a fetch: the broker has metered it, and the proxy could deliver it to nobody."""

_NEWEST_OF_PROXY = {"listoffsets": 10, "produce": 12, "fetch": 17, "offsetcommit": 9, "offsetfetch": 9}
"""Kroxylicious 0.12 has the requests of Kafka 4.0. docs/proxy.md says what newer versions of these have."""

_REFUSED_BY_PROXY = ("share group", "PLAIN as for 0.10.2")
"""Clients with these features end with an error at a proxy (docs/proxy.md), and so have nothing of what follows."""

_CHARGED = ("Produce", "Fetch")
_UNREACHED = 1e12
"""Bytes per second: a quota that meters its clients, and throttles nobody."""

_WINDOW_S = 1_000_000_000
"""Kafka's rates are sums over a window; with one that never ends, the sum is the rate times its length."""


class Way(StrEnum):
    """The way of clients to a broker."""

    DIRECT = "direct"
    PROXY = "proxy"
    PLUGIN = "plugin"


@dataclass(frozen=True)
class Outcome:
    """The output and the log of a client, and what the broker has of it.

    `versions` of the requests that it sent, by API; `batches` on the broker's disk, without what a broker chooses;
    `produces`, the number of its Produce requests; `charged` bytes in events of Sluice, `metered` ones of Kafka's own
    sensors, by API.
    """

    said: Sequence[str]
    versions: Mapping[str, int]
    features: Sequence[str]
    batches: Sequence[str]
    produces: int
    charged: Counter[str] = field(default_factory=Counter)
    metered: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Cell:
    """A client with a feature; `name` is that of its client-ids and topics, each with the initial of its way."""

    name: str
    client: Client
    feature: str

    def topic(self, way: Way) -> str:
        """Names are of one length on all ways, as they count as bytes."""
        return f"{self.name}-{way[:2]}"

    @property
    def records(self) -> int:
        """Records that its consumer is to read; one that reads committed ones alone gets no round that was aborted."""
        return VALUES_PER_ROUND * (ROUNDS - ("transactions" in self.feature))

    def run(self, way: Way, servers: str) -> "tuple[list[str], str]":
        """The lines that the client printed, and its log."""
        feature = FEATURES[self.feature]
        lines = {
            "topic": self.topic(way),
            "servers": servers,
            "client.id": self.topic(way),
            "expected": str(self.records),
        }
        lines |= feature.config_of(self.client.library, self.topic(way))
        command = self.client.command(feature.java_class)
        given = "".join(f"{key}={value}\n" for key, value in lines.items())
        try:
            done = subprocess.run(
                command,
                input=given,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_CLIENT_S,
                check=False,
                cwd=REPOSITORY,
                start_new_session=True,  # on a busy machine Linux shares CPU among sessions: one like each server's
            )
        except subprocess.TimeoutExpired as hung:
            printed, log = (str(each or b"", errors="replace") for each in (hung.stdout, hung.stderr))
            return [*printed.splitlines(), f"error=no end in {_CLIENT_S:.0f} s"], log
        said = done.stdout.splitlines() if done.returncode == 0 else [f"error=exit code {done.returncode}"]
        return said, done.stderr


_REQUESTS = (
    r"Sent (\w+)Request \(v(\d+)",  # librdkafka
    r"Request \d+: (\w+)Request_v(\d+)",  # kafka-python 2
    r"Request \d+: (\w+)Request\(version=(\d+)",  # kafka-python 3
    r"Sending \w+ request with header RequestHeader\(apiKey=(\w+), apiVersion=(\d+)",  # Java
)
_REQUEST = re.compile("|".join(_REQUESTS))
_FEATURES = re.compile(r"Updated enabled protocol features.* to (.+)$", re.MULTILINE)
_SESSION = re.compile(r"incremental fetch|[Ii]ncremental FetchRequest", re.MULTILINE)


def requests_in(log: str) -> dict[str, list[int]]:
    """The versions of all requests that the client sent, by API."""
    found: dict[str, list[int]] = {}
    for line in _REQUEST.finditer(log):
        api, version = (each for each in line.groups() if each is not None)
        found.setdefault(api.replace("_", "").lower(), []).append(int(version))
    return found


def _features(log: str) -> list[str]:
    named = {each for line in _FEATURES.findall(log) for each in line.split(",")}
    return sorted(named | ({"fetch session"} if _SESSION.search(log) else set()))


_BATCH = struct.Struct(">qiibIhiqqqhii")  # of format 2 (KIP-98), which all brokers write

_CODEC = 0x7
_GZIP = 1
_GZIP_TIME = slice(4, 8)  # of its header, in which kafka-python writes the clock


def _batches(folder: Path, topic: str) -> list[str]:
    """The batches of partition 0, without offsets, checksums, ids of producers, and what a marker says of its time."""
    found = []
    for segment in sorted((folder / "data" / f"{topic}-0").glob("*.log")):
        data, at = segment.read_bytes(), 0
        while at + _BATCH.size <= len(data):
            _, size, _, magic, _, attributes, last, *_, sequence, count = _BATCH.unpack_from(data, at)
            if not size:
                break
            records = bytearray(data[at + _BATCH.size : at + 12 + size])
            if attributes & _CODEC == _GZIP:
                records[_GZIP_TIME] = bytes(4)
            is_marker = attributes & 0x20
            digest = "marker" if is_marker else hashlib.sha256(records).hexdigest()[:12]
            found.append(f"v{magic} {size} bytes, {attributes:#x}, {last + 1} records, {sequence}, {count}, {digest}")
            at += 12 + size
    return found


@dataclass(frozen=True)
class _Rig:
    """A broker alone, a proxy in front of it, and a broker with the plugin."""

    brokers: Mapping[Way, Broker]
    proxy: KafkaGateway
    folders: Mapping[Way, Path]
    settings: Mapping[Way, Settings]
    login: Mapping[str, str]

    def servers(self, way: Way) -> str:
        """Where its clients connect."""
        return self.proxy.bootstrap_servers if way is Way.PROXY else self.brokers[way].bootstrap_servers

    def create_topics(self, cells: Sequence[Cell]) -> None:
        """One for each cell and way, with one partition."""
        for broker in {id(each): each for each in self.brokers.values()}.values():
            topics = [cell.topic(way) for cell in cells for way, each in self.brokers.items() if each is broker]
            with KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, **self.login) as admin:
                admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1} for topic in topics})

    def charged(self, way: Way) -> Counter[tuple[str, str]]:
        """Bytes in the events of Sluice so far, by client-id and API."""
        sums: Counter[tuple[str, str]] = Counter()
        settings = self.settings[way]
        for record in records(settings, settings.topics.requests):
            event = msgspec.json.decode(record.value)
            sums[event.get("client_id", ""), event.get("api", "")] += event.get("bytes", 0)
        return sums


@contextmanager
def _rig(folder: Path, jars: JarSet, *, logs_in: bool) -> Iterator[_Rig]:
    began_s = time.monotonic()
    login: dict[str, str] = {}
    kafka: dict[str, str] = {}
    properties = {
        "log.retention.ms": "-1",  # records have a time of their own, which is long ago
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
    }
    if logs_in:
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        admin = f'{plain} username="{_ADMIN}" password="{_ADMIN}"'
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        login |= {"sasl_plain_username": _ADMIN, "sasl_plain_password": _ADMIN}
        kafka = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{admin};"}
        properties |= _login_properties(f'{admin} user_{_ADMIN}="{_ADMIN}" user_{USER}="{PASSWORD}";')
    metered = {"quota.window.num": "2", "quota.window.size.seconds": str(_WINDOW_S)}
    folders = {Way.DIRECT: folder / "broker", Way.PROXY: folder / "broker", Way.PLUGIN: folder / "plugin"}
    plugged = plugin_properties({"bootstrap.servers": "127.0.0.1:{port}"}, load_settings(None).topics)
    plugged |= {f"sluice.client.{name}": value for name, value in kafka.items()}
    broker = Broker(folders[Way.DIRECT], properties | metered, jars, jmx=True)
    plugin = Broker(folders[Way.PLUGIN], properties | plugged, jars, [plugin_jar()])
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        list(pool.map(stack.enter_context, (broker, plugin)))
        brokers = {Way.DIRECT: broker, Way.PROXY: broker, Way.PLUGIN: plugin}
        settings = {way: _settings(folder / f"{way}.yaml", each, kafka) for way, each in brokers.items()}
        for way in (Way.PROXY, Way.PLUGIN):
            ensure_topics(settings[way].topics, settings[way].kafka)
            publish_limits(brokers[way].bootstrap_servers, _LIMITS, 1, login)
        with AlteringAdmin(bootstrap_servers=broker.bootstrap_servers, **login) as admin_client:
            admin_client.alter({"client-id": None}, {entry.kind.value: _UNREACHED for entry in _LIMITS})
        if logs_in:
            for each in (broker, plugin):
                _make_user(each.bootstrap_servers, login)
        with KafkaGateway(folder / "proxy", settings[Way.PROXY]) as proxy:
            wait_until(lambda: _limits_version(proxy) == 1, _START_S)  # it charges nobody without limits
            _say_seconds(began_s, "brokers and proxy")
            yield _Rig(brokers, proxy, folders, settings, login)


def _limits_version(proxy: KafkaGateway) -> int:
    with urlopen(f"http://127.0.0.1:{proxy.management_port}/metrics") as page:
        found = re.search(r"^sluice_gateway_limits_version\S* (\S+)", page.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else -1


def _login_properties(plain: str) -> dict[str, str]:
    listener, package = "listener.name.client.", "org.apache.kafka.common.security"
    scram = f"{package}.scram.ScramLoginModule required;"
    bearer = f"{package}.oauthbearer.OAuthBearerLoginModule required"
    return {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"{listener}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{listener}plain.sasl.jaas.config": plain,
        f"{listener}scram-sha-256.sasl.jaas.config": scram,
        f"{listener}scram-sha-512.sasl.jaas.config": scram,
        f"{listener}oauthbearer.sasl.jaas.config": f'{bearer} unsecuredLoginStringClaim_sub="{_ADMIN}";',
    }


def _make_user(servers: str, login: Mapping[str, str]) -> None:
    with KafkaAdminClient(bootstrap_servers=servers, **login) as admin:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, mechanism, PASSWORD)])


def _settings(file: Path, broker: Broker, kafka: Mapping[str, str]) -> Settings:
    own = {"bootstrap.servers": broker.bootstrap_servers, **kafka}
    file.write_bytes(msgspec.json.encode({"kafka": own, "topics": {"partitions": 1}}))
    return load_settings(file)


_LIMITS = [
    QuotaEntry(QuotaEntity(client_id=DEFAULT), kind, _UNREACHED)
    for kind in (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE)
]


def run_cells(cells: Sequence[Cell], jars: JarSet, *, logs_in: bool) -> dict[Cell, dict[Way, Outcome]]:
    """The outcomes of the cells, all on the same brokers, and several clients at once."""
    found: dict[Cell, dict[Way, Outcome]] = {cell: {} for cell in cells}
    with (
        TemporaryDirectory(prefix="sluice-clients-") as name,
        ThreadPoolExecutor(_AT_ONCE) as pool,
        _rig(Path(name), jars, logs_in=logs_in) as rig,
    ):
        rig.create_topics(cells)
        for cell in cells:
            cell.client.command(FEATURES[cell.feature].java_class)  # downloads and compiles, before all ways ask for it
        pairs = [(cell, way) for cell in cells for way in Way]
        for (cell, way), outcome in zip(pairs, pool.map(lambda pair: _outcome(rig, *pair), pairs), strict=True):
            found[cell][way] = outcome
        _add_bytes(rig, found)
    return found


def _say_seconds(began_s: float, what: str) -> None:
    print(f"{time.monotonic() - began_s:5.1f} s {what}", file=sys.stderr, flush=True)


def _outcome(rig: _Rig, cell: Cell, way: Way) -> Outcome:
    began_s = time.monotonic()
    said, log = cell.run(way, rig.servers(way))
    _say_seconds(began_s, f"{cell.client.name}: {cell.feature}: {way}")
    sent = requests_in(log)
    newest = {api: max(versions) for api, versions in sent.items()}
    batches = _batches(rig.folders[way], cell.topic(way))
    return Outcome(said, newest, _features(log), batches, len(sent.get("produce", ())))


def _add_bytes(rig: _Rig, found: Mapping[Cell, Mapping[Way, Outcome]]) -> None:
    """Add what Kafka's own sensors have, and what was charged as soon as that is all of it."""
    with Jvm() as jvm:
        metered = _metered(beans(jvm, rig.brokers[Way.DIRECT].jmx_port))
    until_s = time.monotonic() + _CHARGES_S
    while True:
        charged = rig.charged(Way.PROXY) + rig.charged(Way.PLUGIN)
        for cell, outcomes in found.items():
            for way, outcome in outcomes.items():
                for api in _CHARGED:
                    outcome.charged[api] = charged[cell.topic(way), api]
                    outcome.metered[api] = metered[cell.topic(way), api]
        ways = [(outcomes, way) for outcomes in found.values() for way in (Way.PROXY, Way.PLUGIN)]
        if not any(_mischarged(*each) for each in ways) or time.monotonic() > until_s:
            break
        time.sleep(1)


def _metered(broker: Beans) -> Counter[tuple[str, str]]:
    """Bytes that Kafka's sensors have metered since their first request, by client-id and API."""
    sums: Counter[tuple[str, str]] = Counter()
    for api in _CHARGED:
        for name, rate in broker.read(f"kafka.server:type={api},client-id=*,*", "byte-rate").items():
            if client_id := re.search(r"client-id=\"?([^,\"]+)", name):
                sums[client_id[1], api] += round(rate * _WINDOW_S)
    return sums


def faults(cell: Cell, outcome: Outcome) -> list[str]:
    """Lines of a client that had an error or not all records at a broker alone: the same elsewhere tells nothing."""
    has_all = f"records={cell.records}" in outcome.said and not any(line.startswith("error=") for line in outcome.said)
    return [] if has_all else ["; ".join(outcome.said)]


def differences(outcomes: Mapping[Way, Outcome], way: Way) -> list[str]:
    """Differences of this way from that to the broker alone."""
    direct, other, found = outcomes[Way.DIRECT], outcomes[way], []
    for name in ("said", "features", "batches"):
        before, after = getattr(direct, name), getattr(other, name)
        if before != after:
            lost, more = ([x for x in a if x not in b] for a, b in ((before, after), (after, before)))
            found.append(f"{name}: {'; '.join(lost) or '-'} -> {'; '.join(more) or '-'}")
    for api in sorted({*direct.versions, *other.versions} - {"heartbeat"}):  # which is sent by the clock
        newest = [each.versions.get(api) for each in (direct, other)]
        if newest[0] != newest[1]:
            found.append(f"{api} {newest[0]} -> {newest[1]}")
    return found + _mischarged(outcomes, way)


def _mischarged(outcomes: Mapping[Way, Outcome], way: Way) -> list[str]:
    """Differences between the bytes of Kafka's own sensors and those that were charged.

    The broker with the plugin has no sensors of its own: there a client has to be charged as directly for each Produce,
    of which it may send one again, as when its last transaction isn't complete yet.
    """
    direct, other = outcomes[Way.DIRECT], outcomes[way]
    metered, charged = (other if way is Way.PROXY else direct).metered.copy(), other.charged
    tolerances = {"Produce": 0, "Fetch": _EMPTY_FETCHES_BYTES if way is Way.PLUGIN else _UNDELIVERED_BYTES}
    if way is Way.PLUGIN and direct.produces and direct.produces != other.produces:
        metered["Produce"] = metered["Produce"] * other.produces // direct.produces
        tolerances["Produce"] = metered["Produce"] // 100  # compressed rounds aren't of one size
    return [
        f"{api} metered {metered[api]} bytes -> charged {charged[api]}"
        for api in _CHARGED
        if abs(metered[api] - charged[api]) > tolerances[api]
    ]


def is_expected(feature: str, way: Way, difference: str) -> bool:
    """True for an older version of a request, if the proxy has no newer one, and for what it refuses."""
    api, *versions = difference.replace(" -> ", " ").split(" ")
    return way is Way.PROXY and (feature in _REFUSED_BY_PROXY or versions[1:] == [str(_NEWEST_OF_PROXY.get(api, 0))])


@dataclass(frozen=True)
class ClientMatrix:
    """Run clients on a broker alone, through the proxy, and on a broker with the plugin, and compare what they had.

    Each cell is a version of a client library and what it negotiates. Compared are what it printed (records, their
    digest, errors), the features and the versions of requests in its log, the batches on the broker's disk, and the
    bytes that were charged with those of Kafka's own sensors. Exit code 1 if a difference has no reason that is known,
    or if a client fails at a broker alone.

    \b
      ./scripts/test-peers clients                      all
      ./scripts/test-peers clients --client java --feature zstd
    """

    client: Annotated[list[str] | None, typer.Option(help="Begin of a client's name; all if not given.")] = None
    feature: Annotated[list[str] | None, typer.Option(help="A feature; all if not given.")] = None

    def run(self) -> int:
        """Run the matrix, and print the differences."""
        check_known("feature", self.feature or (), FEATURES)
        clients = [each for each in CLIENTS if each.name.startswith(tuple(self.client or [""]))]
        found = run_matrix(clients, self.feature or list(FEATURES))
        rows = [
            (
                cell.client.name,
                cell.feature,
                way,
                text,
                "expected" if is_refused or is_expected(cell.feature, way, text) else "",
            )
            for cell, outcomes in found.items()
            for way in (Way.PROXY, Way.PLUGIN)
            for is_refused in [way is Way.PROXY and outcomes[Way.DIRECT].versions.get("saslhandshake") == 0]
            for text in differences(outcomes, way)
        ]
        rows += [
            (cell.client.name, cell.feature, Way.DIRECT, fault, "")
            for cell, outcomes in found.items()
            for fault in faults(cell, outcomes[Way.DIRECT])
        ]
        if rows:
            print("\n".join(table("client", "feature", "way", "difference", "", rows=rows)))
        for way in (Way.PROXY, Way.PLUGIN):
            other = {row[:2] for row in rows if row[2] == way}
            unexpected = {row[:2] for row in rows if row[2] == way and not row[4]}
            print(
                f"{way}: of {len(found)} cells {len(found) - len(other)} are as direct,"
                f" {len(other - unexpected)} differ as expected, {len(unexpected)} otherwise"
            )
        return 0 if all(row[4] for row in rows) else EXIT_FAILED


def run_matrix(clients: Sequence[Client], features: Sequence[str]) -> dict[Cell, dict[Way, Outcome]]:
    """The outcomes of all cells."""
    found: dict[Cell, dict[Way, Outcome]] = {}
    wanted = [(client, name) for client in clients for name in features if client.has(FEATURES[name])]
    cells = [Cell(f"cell-{number:03d}", *each) for number, each in enumerate(wanted)]
    for is_old, logs_in in product((False, True), repeat=2):
        of_rig = [cell for cell in cells if FEATURES[cell.feature].needs == (is_old, logs_in)]
        if of_rig:
            found |= run_cells(of_rig, OLD_BROKER_JARS if is_old else BROKER_JARS, logs_in=logs_in)
    return found
