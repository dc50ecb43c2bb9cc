"""The clients of the matrix, and what they negotiate."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from scripts.java.compiler import build_jar, java_compiler
from sluice.jvm.jars import jars_home
from sluice.jvm.java import find_java
from sluice_lab.testbed.jars import JAVA_CLIENT_JARS, PEER_JARS
from sluice_lab.testbed.locked_python import locked_python

PROGRAMS = Path(__file__).parents[2] / "testbed" / "clients"
_LOCKS = Path(__file__).parent / "locks"
_JAVA_RELEASE = 11
_SHARE_GROUPS_SINCE = (4, 1)  # those of 4.0 are a preview, to which brokers 4.3 are closed

Config = Mapping[str, str]


Command = Sequence[str]


@dataclass(frozen=True)
class Client:
    """A version of a library. `command` downloads it at the first call; for Java it takes the name of the class."""

    library: str
    version: str
    command: Callable[[str], Command]

    @property
    def name(self) -> str:
        """Library and version."""
        return f"{self.library} {self.version}"

    def has(self, feature: "Feature") -> bool:
        """True if this version of the library has the feature."""
        since = feature.since.get(self.library)
        return since is not None and tuple(map(int, self.version.split("."))) >= since


@dataclass(frozen=True)
class Feature:
    """Subject of a negotiation; `config` has keys such as `producer.acks`, for one library `java:producer.acks`.

    `since` is the first version of each library that has it. Without a `mechanism` clients don't log in. With `is_old`
    they send requests that brokers of Kafka 4 refuse.
    """

    since: Mapping[str, tuple[int, ...]]
    config: Config = field(default_factory=dict)
    mechanism: str | None = None
    is_old: bool = False
    java_class: str = "JavaClient"

    @property
    def needs(self) -> tuple[bool, bool]:
        """True for brokers of Kafka 3, and for brokers with logins."""
        return self.is_old, self.mechanism is not None

    def config_of(self, library: str, name: str) -> dict[str, str]:
        """Configuration for a library; `{name}` in a value stands for the client's."""
        found = {}
        for key, value in self.config.items():
            of, _, plain_key = key.rpartition(":")
            if of in ("", library):
                found[plain_key] = value.replace("{name}", name)
        return found | ({} if self.mechanism is None else _login(library, self.mechanism))


def _login(library: str, mechanism: str) -> dict[str, str]:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if library == "java":
        module = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}.get(mechanism, "scram.Scram")
        options = (
            f'unsecuredLoginStringClaim_sub="{USER}"'
            if mechanism == "OAUTHBEARER"
            else f'username="{USER}" password="{PASSWORD}"'
        )
        login["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module}LoginModule required {options};"
    elif mechanism == "OAUTHBEARER":
        login |= {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": f"principal={USER}"}
    else:
        prefix = "sasl.plain" if library == "kafka-python" else "sasl"
        login |= {f"{prefix}.username": USER, f"{prefix}.password": PASSWORD}
    return {f"common.{key}": value for key, value in login.items()}


USER = "alice"
PASSWORD = "alices"  # noqa: S105 # of a broker that only exists during the run


def _locked(library: str, package: str, release: str) -> Client:
    def command(_: str) -> Command:
        python = locked_python(f"{package}-{release}", _LOCKS / f"{package}-{release}.lock")
        return _python(python, library.replace("-", "_"))

    return Client(library, release, command)


def _python(python: Path, program: str) -> Command:
    return [str(python), "-m", f"sluice_lab.testbed.clients.{program}"]


@cache
def _java(release: str, java_class: str) -> Command:
    jars = JAVA_CLIENT_JARS.get(release, PEER_JARS).paths()
    sources = [PROGRAMS / "java"]
    if tuple(map(int, release.split("."))) >= _SHARE_GROUPS_SINCE:
        sources.append(PROGRAMS / "java_share")
    programs = jars_home() / "java-clients" / f"{release}.jar"
    build_jar(programs, sources, jars, _JAVA_RELEASE, java_compiler)
    log = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients=debug"
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", log)
    java, _ = find_java()
    class_path = os.pathsep.join(map(str, [programs, *jars]))
    return [java, *options, "-cp", class_path, f"sluice.testbed.{java_class}"]


CLIENTS: Sequence[Client] = (
    _locked("librdkafka", "confluent-kafka", "2.0.2"),
    _locked("librdkafka", "confluent-kafka", "2.2.0"),
    _locked("librdkafka", "confluent-kafka", "2.6.2"),
    Client("librdkafka", version("confluent-kafka"), lambda _: _python(Path(sys.executable), "librdkafka")),
    _locked("kafka-python", "kafka-python", "2.0.6"),
    _locked("kafka-python", "kafka-python", "2.2.21"),
    _locked("kafka-python", "kafka-python", "3.0.12"),
    *(Client("java", each, partial(_java, each)) for each in (*JAVA_CLIENT_JARS, "4.3")),
)

_ALL = dict.fromkeys(("librdkafka", "kafka-python", "java"), (0,))
_TRANSACTIONAL = {"librdkafka": (0,), "kafka-python": (2, 2), "java": (0,)}
_SENDS_UNACKNOWLEDGED = {"librdkafka": (0,), "kafka-python": (3, 0), "java": (0,)}
"""kafka-python 2 takes records of acks=0 for delivered, and sends none."""

_LOGS_IN_BY_SCRAM = _ALL | {"librdkafka": (2, 6, 1)}
"""Brokers 4 refuse the nonce of older ones (confluentinc/librdkafka#4895)."""

_OLD = {"librdkafka": (0,), "kafka-python": (0,)}


def _as_for(version: str) -> Config:
    """The client takes the broker for an older one, and asks for no versions of requests."""
    return {
        "librdkafka:common.api.version.request": "false",
        "librdkafka:common.broker.version.fallback": version,
        "kafka-python:common.api.version": version,
    }


FEATURES: Mapping[str, Feature] = {
    "no compression": Feature(_ALL),
    **{name: Feature(_ALL, {"producer.compression.type": name}) for name in ("gzip", "snappy", "lz4", "zstd")},
    "acks=0": Feature(_SENDS_UNACKNOWLEDGED, {"producer.acks": "0"}),
    "idempotence": Feature(_TRANSACTIONAL, {"producer.enable.idempotence": "true"}),
    "transactions": Feature(
        _TRANSACTIONAL, {"producer.transactional.id": "{name}", "consumer.isolation.level": "read_committed"}
    ),
    "group protocol consumer": Feature({"librdkafka": (2, 6), "java": (4, 0)}, {"consumer.group.protocol": "consumer"}),
    "share group": Feature({"java": _SHARE_GROUPS_SINCE}, java_class="JavaShareClient"),
    **{f"as for {each}": Feature(_OLD, _as_for(each), is_old=True) for each in ("0.10.2", "0.11.0", "1.0.0")},
    "PLAIN": Feature(_ALL, mechanism="PLAIN"),
    **{each: Feature(_LOGS_IN_BY_SCRAM, mechanism=each) for each in ("SCRAM-SHA-256", "SCRAM-SHA-512")},
    "OAUTHBEARER": Feature({"librdkafka": (0,), "java": (0,)}, mechanism="OAUTHBEARER"),
    "PLAIN as for 0.10.2": Feature(_OLD, _as_for("0.10.2"), "PLAIN", is_old=True),
}
"""Clients read in a group of the classic protocol unless it says another."""
