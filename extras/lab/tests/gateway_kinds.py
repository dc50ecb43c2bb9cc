"""Gateways of each kind behind one interface, and one job that decides what they publish: for one suite of cases."""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from scripts.java.build import PROXY
from scripts.java.compiler import compile_java
from sluice import Mutation, Request, TopicPartition
from sluice.gateways.client.options import GatewayOptions
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import overrides_key, overrides_value
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from sluice_proxy.jars import proxy_class_path
from tests.broker_plugin import JAVA_SOURCES, JavaProcess, plugin_properties
from tests.builders import DEFAULTS, T0, Json
from tests.gateway_loop import Clock, OfflineGateway, limit_records

STEP_MS = 100
"""Milliseconds from one reading of the meters to the next."""

_JAVA = Path(__file__).parent / "java_gateways"


LimitRecords = Sequence[tuple[bytes, bytes | None]]


class AnyGateway(Protocol):
    """A gateway whose clients come without a login, and whose time passes when it is told so."""

    def take_limits(self, records: LimitRecords, *, is_past: bool = False) -> int:
        """Read records of the limits topic, `is_past` if it had them before. Returns how many were unreadable."""

    def take_sums(self, records: Sequence[bytes]) -> None:
        """Read records of the sums topic."""

    def sleep(self, ms: int) -> list[bytes]:
        """Let time pass. Returns the events that were published since the last time."""

    def charge(self, kind: QuotaKind, client_id: str, amount: float) -> int:
        """Charge a request: bytes, or nanoseconds of request time. Returns the wait in milliseconds."""

    def admit(self, client_id: str, *partitions: int) -> tuple[int, int]:
        """Ask for topics of so many partitions: how many topics are admitted, and the wait in milliseconds."""


class PythonGateway:
    """The client library's gateway."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._clock.ms = T0  # where Java's clock begins
        options = GatewayOptions(name="gateway", close_timeout_s=0, decide_timeout_ms=1)
        self._gateway = OfflineGateway(options, self._clock)

    def take_limits(self, records: LimitRecords, *, is_past: bool = False) -> int:
        if not is_past:
            self._gateway.limits.be_read()
        for key, value in records:
            self._gateway.limits.give(key, value)
        return self._gateway.stats().unreadable_records

    def take_sums(self, records: Sequence[bytes]) -> None:
        for record in records:
            self._gateway.sums.give(None, record)

    def sleep(self, ms: int) -> list[bytes]:
        self._clock.ms += ms
        self._gateway.idle()
        return list(self._gateway.published())

    def charge(self, kind: QuotaKind, client_id: str, amount: float) -> int:
        if kind is QuotaKind.REQUEST_PERCENTAGE:
            request = Request("Metadata", client_id=client_id, request_time_ns=int(amount))
        else:
            api = "Fetch" if kind is QuotaKind.CONSUMER_BYTE_RATE else "Produce"
            touched = [TopicPartition("orders", 0, int(amount))]
            request = Request(api, client_id=client_id, topic_partitions=touched)
        return self._gateway.admit(request, delivered=True).throttle_ms

    def admit(self, client_id: str, *partitions: int) -> tuple[int, int]:
        mutations = [Mutation(f"t{number}", count) for number, count in enumerate(partitions)]
        answer = self._gateway.admit(Request("CreateTopics", client_id=client_id, mutations=mutations))
        return answer.refused.count(False), answer.throttle_ms


class JavaGateways(JavaProcess):
    """One Java process with any number of gateways of the broker plugin and of the proxy."""

    def __init__(self, folder: Path) -> None:
        jars = proxy_class_path()
        sources = [*sorted(_JAVA.rglob("*.java")), JAVA_SOURCES / "sluice" / "kafka" / "ManualTime.java"]
        compile_java(sources, jars, folder, PROXY.release)
        super().__init__(folder, [*jars, folder], "sluice.proxy.GatewayCases")


class JavaGateway:
    """A gateway of the broker plugin, in front of Kafka's own meters, or of a proxy."""

    def __init__(self, java: JavaGateways, kind: str, number: int) -> None:
        properties = plugin_properties() | {"node.id": str(number)}
        if kind == "proxy":
            properties = {"sluice.bootstrap.servers": "127.0.0.1:1", "sluice.gateway.name": "proxy"}
        self._java = java
        (self._number,) = java.ask([{"properties": properties, "is_proxy": kind == "proxy"}])

    def _do(self, what: str, **more: object) -> Any:
        (answer,) = self._java.ask([{"number": self._number, "do": what, **more}])
        return answer

    def take_limits(self, records: LimitRecords, *, is_past: bool = False) -> int:
        encoded = [[part and b64encode(part).decode() for part in record] for record in records]
        return int(self._do("limits", records=encoded, is_past=is_past))

    def take_sums(self, records: Sequence[bytes]) -> None:
        self._do("sums", records=[record.decode() for record in records])

    def sleep(self, ms: int) -> list[bytes]:
        return [event.encode() for event in self._do("sleep", ms=ms)]

    def charge(self, kind: QuotaKind, client_id: str, amount: float) -> int:
        answer = self._do("charge", quota=kind, user="ANONYMOUS", client_id=client_id, amount=amount)
        return int(answer["wait_ms"])

    def ask(self, requests: int, length: int) -> int:
        """The number of requests, of so many for a topic of so long a name, that wait for their decision."""
        return int(self._do("ask", requests=requests, length=length))

    def longest_wait_ms(self, connections: int, size: float, ms: int) -> int:
        """The longest wait of so many connections of `shop-1` at full speed, in so long a time."""
        return int(self._do("take_turns", connections=connections, size=size, ms=ms))

    def invent(self, names: int, length: int, is_charged: bool) -> int:
        """MiB of heap that so many new client-ids of so many characters take."""
        return int(self._do("invent", names=names, length=length, is_charged=is_charged))

    def admit(self, client_id: str, *partitions: int) -> tuple[int, int]:
        quota = QuotaKind.CONTROLLER_MUTATION_RATE
        answer = self._do("charge", quota=quota, user="ANONYMOUS", client_id=client_id, amount=partitions)
        return int(answer["admitted"]), int(answer["wait_ms"])


class Gateways:
    """Gateways and the job that decides what they publish, a step later."""

    def __init__(self, *gateways: AnyGateway) -> None:
        self.all = gateways
        self.alive: Sequence[AnyGateway] = gateways
        self.sums: list[bytes] = []
        """The records of the last step with any."""
        self.now_ms, self.job_ahead_ms = T0, 0
        self._version = 0
        self._limits: set[bytes] = set()
        self._waits: list[Json] = []
        self.published_bytes: Counter[str] = Counter()
        """Bytes in the events of each client-id."""
        self.heartbeats: dict[AnyGateway, Json] = {}
        self._job = Simulation(Quotas(), DEFAULTS)

    def limit(self, *entries: QuotaEntry) -> None:
        """Make these the quotas in force."""
        self._version += 1
        self._job = Simulation(Quotas(entries, self._version), DEFAULTS, str(self._version))
        records: LimitRecords = limit_records(entries, self._version)
        before, self._limits = self._limits, {key for key, _ in records}
        for gateway in self.alive:
            gateway.take_limits([*((key, None) for key in before - self._limits), *records])

    def override(self, decider: str, *overrides: Override, fresh_ms: int = 60_000, command: int = 0) -> None:
        """Say what a decider says, by the job's clock, which is `self.job_ahead_ms` ahead of the gateways'."""
        said = overrides_value(Overrides(1, self.now_ms + self.job_ahead_ms, fresh_ms, [*overrides], command=command))
        for gateway in self.alive:
            gateway.take_limits([(overrides_key(decider), said)])

    def run(self, seconds: float, has_job: bool = True) -> None:
        """Let time pass."""
        for _ in range(round(seconds * 1_000 / STEP_MS)):
            self.step(has_job)

    def step(self, has_job: bool = True) -> None:
        """Let a step pass in which all that was published is decided."""
        published: list[bytes] = []
        self.now_ms += STEP_MS
        for gateway in self.alive:
            values = gateway.sleep(STEP_MS)
            for event in map(json.loads, values):
                if event["api"] == HEARTBEAT_API:
                    self.heartbeats[gateway] = event
                self._waits += event.get("throttled_by") or ()
                touched = event.get("topic_partitions") or ()
                size = event.get("bytes", 0) + sum(each["bytes"] for each in touched)
                self.published_bytes[event.get("client_id", "")] += size
            published += values
        if has_job:
            self.decide(published)

    def waits(self) -> list[Json]:
        """All waits that gateways have published."""
        return self._waits

    def decide(self, events: Iterable[bytes]) -> None:
        """Decide events, and let all gateways know."""
        made = list(self._job.records(events))
        assert not [record.value for record in made if record.topic == DEFAULTS.topics.dead_letters]
        records = [record.value for record in made if record.topic == DEFAULTS.topics.sums]
        self.sums = records or self.sums
        self.tell(records)

    def tell(self, records: Sequence[bytes]) -> None:
        """Let all gateways read records of the sums topic."""
        for gateway in self.alive:
            gateway.take_sums(records)

    def share(self, gateway: AnyGateway, client_id: str) -> float:
        """The share of a client's counter, as the last heartbeat says it."""
        shares = self.heartbeats[gateway]["heartbeat"]["shares"]
        (found,) = [each["share"] for each in shares if each["entity"].get("client_id") == client_id]
        return float(found)
