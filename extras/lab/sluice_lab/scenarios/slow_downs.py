"""Ten ways in which a client of real brokers is slow: for tests, and for readers who know `explain --slow` alone.

`python -m sluice_lab.scenarios.slow_downs` starts them in random order, under names that say nothing, some at once, and
prints the client-id and the settings of each. It goes on at each line of its input, and in the end it prints what they
were. The folder `.work/slow-downs` has what command and page said after a minute, in N.txt and N.html.
"""

import json
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

import typer
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # its own documentation says so
from kafka.errors import KafkaError

from scripts.command import run_app
from scripts.java.compiler import compile_java, java_compiler
from sluice.configs.settings import load_settings
from sluice.jvm.java import OLDEST
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.process.clock import now_ms
from sluice_demo.broker_plugin import new_exempt_client_id, wait_for_gateways
from sluice_demo.cluster import Cluster, make_topic
from sluice_demo.full_speed_client import Client, FullSpeedClient, Role
from sluice_demo.jars import BROKER_JARS
from sluice_demo.job import Json, RunError, Sections, wait_until
from sluice_demo.work_folder import work_folder
from sluice_lab.scenarios.closed_loop.brokers import TOPIC, fill
from sluice_lab.testbed.processes import output_of
from sluice_lab.testbed.rig import Rig
from sluice_lab.testbed.slow_loopback import slow_loopback
from sluice_proxy.processes import Child, free_ports
from sluice_reading.times import from_ms
from sluice_telemetry.jars import RECEIVER_CLASS, telemetry_jar
from sluice_telemetry.subscription import subscribe

LIMIT = 500_000.0
SPAN_S = 60
"""Seconds of slowness before anybody is asked."""

_PUSH_MS = 5_000
_FREE = 1e9
"""A limit that nobody reaches: without one the job tells less of a client."""

_STOP_S = 10.0
_TRIES = 3
_QUIET = {"log_level": 2}
"""librdkafka's lines would tell a reader what kind of client it is."""
_SLUICE = (sys.executable, "-m", "sluice.cli.main")


@dataclass(frozen=True)
class Brokers:
    """Brokers with the plugin and the receiver of telemetry: `sections` are settings of their job, `server` theirs."""

    size: int = 1
    sections: Mapping[str, Json] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    limits_all: bool = False
    """Every client has a limit, without which none gives way."""
    is_far: bool = False
    """Clients come by a slow loopback."""


class Bed(NamedTuple):
    """Brokers that run, their addresses, those for slow clients, which may be others, and the job."""

    cluster: Cluster
    servers: str
    entrance: str
    rig: Rig


@dataclass(frozen=True)
class SlowDown:
    """A way in which a client of some name is slow.

    `cause` is the word of the first cause, and `says` the beginning of its sentence, in which {} stands for the name.
    `numbers` are the client's quotas, and `start` makes it slow.
    """

    cause: str
    says: str
    start: Callable[[Bed, str], list[Client]]
    numbers: Mapping[str, float] = field(default_factory=lambda: {"producer_byte_rate": _FREE})
    brokers: Brokers = field(default_factory=Brokers)


class _OwnClient(Client):
    """A client that does the same again and again."""

    def __init__(self, name: str, run: Callable[["_OwnClient"], None]) -> None:
        super().__init__(name)
        self._start(self._again, run)

    def _again(self, run: Callable[["_OwnClient"], None]) -> None:
        while not self.stopping.is_set():
            run(self)

    def rests(self, seconds: float) -> bool:
        """Do nothing for a while; true if it is to end."""
        return self.stopping.wait(seconds)


def at_full_speed(role: Role, batch_bytes: int = 1_000_000) -> Callable[[Bed, str], list[Client]]:
    """A start of a client that does its work as fast as it can, at one broker."""

    def start(bed: Bed, name: str) -> list[Client]:
        options = {"batch.size": batch_bytes, "max.in.flight.requests.per.connection": 5}  # else muted ones time out
        return [FullSpeedClient(name, role, bed.entrance, TOPIC, lambda: 0, options)]

    return start


def _makes_topics(bed: Bed, name: str) -> list[Client]:
    """Make topics of many partitions, as fast as their broker lets it."""

    def run(client: _OwnClient) -> None:
        made = admin.create_topics([NewTopic(f"made-{now_ms()}", 20, 1)], request_timeout=30)
        client.samples += [(now_ms(), 20.0) for each in made.values() if not each.exception(60)]

    admin = AdminClient({"bootstrap.servers": bed.servers, "client.id": name, **_QUIET})
    return [_OwnClient(name, run)]


def _is_held(bed: Bed, name: str) -> list[Client]:
    whose = ("--client-id", name, "--reason", "it floods", "--for", "1h", "--timeout", "120")
    sluice(bed.rig, "quotas", "hold", *whose)
    return at_full_speed(Role.PRODUCE)(bed, name)


def _member(bed: Bed, name: str, group: str, pause_s: float, stays_s: float = 3_600.0) -> Client:
    """A member of a group, which works for a while after each poll, and leaves the group and comes again."""

    def run(client: _OwnClient) -> None:
        options = {"group.id": group, "auto.offset.reset": "earliest", **_QUIET}
        consumer = Consumer({"bootstrap.servers": bed.servers, "client.id": name, **options})
        consumer.subscribe([TOPIC])
        until_ms = now_ms() + stays_s * 1000
        while now_ms() < until_ms and not client.rests(pause_s):
            consumer.consume(10, timeout=0.5)
        consumer.close()

    return _OwnClient(name, run)


def _pauses(bed: Bed, name: str) -> list[Client]:
    fill(bed.servers, TOPIC)
    return [_member(bed, name, name, pause_s=9.0)]


def _rebalances(bed: Bed, name: str) -> list[Client]:
    """A guest comes and goes, and all wait each time for a member that seldom polls."""
    others = ((f"{name}-other", 20.0, 3_600.0), (f"{name}-guest", 0.0, 6.0))
    return [_member(bed, name, name, 0.0), *(_member(bed, each, name, *times) for each, *times in others)]


def _beside_floods(bed: Bed, name: str) -> list[Client]:
    floods = [FullSpeedClient(f"floods-{number}", Role.REQUESTS, bed.servers, TOPIC) for number in range(5)]
    return [FullSpeedClient(name, Role.REQUESTS, bed.servers, TOPIC), *floods]


_SLOW_AUTHORIZER = Path(__file__).parents[1] / "testbed" / "SlowAuthorizer.java"
_BUSY = Brokers(
    server={
        "num.io.threads": "1",
        "authorizer.class.name": "sluice.testbed.SlowAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
)
_FULL_DISK = Brokers(sections={"brokers": {"disk_min_free_bytes": 2**50}})
_OVERLOADED = Brokers(
    sections={
        "elastic": {"limits": "elastic"},
        "brokers": {"capacity_in_bytes_per_s": 400_000, "capacity_out_bytes_per_s": 400_000},
    },
    limits_all=True,
)

SLOW_DOWNS: Mapping[str, SlowDown] = {
    "a quota of bytes": SlowDown(
        "quota",
        "throttled by producer_byte_rate 500 kB/s of client-id '{}'",
        at_full_speed(Role.PRODUCE),
        {"producer_byte_rate": LIMIT},
    ),
    "a quota of request time": SlowDown(
        "quota",
        "throttled by request_percentage 1 % of client-id '{}'",
        at_full_speed(Role.REQUESTS),
        {"request_percentage": 1.0},
    ),
    "a quota of mutations": SlowDown(
        "quota",
        "throttled by controller_mutation_rate 1/s of client-id '{}'",
        _makes_topics,
        {"controller_mutation_rate": 1.0},
    ),
    "a hold": SlowDown("hold", "stopped by an operator (", _is_held),
    "the disk guard": SlowDown(
        "disk_guard",
        "producers are stopped by the disk guard (broker 1: ",
        at_full_speed(Role.PRODUCE),
        brokers=_FULL_DISK,
    ),
    "limits that give way": SlowDown(
        "tightened",
        "throttled below producer_byte_rate 1 MB/s of client-id '{}'",
        at_full_speed(Role.PRODUCE, 20_000),  # a load that goes up and down has limits give way now and then
        {"producer_byte_rate": 1e6},
        _OVERLOADED,
    ),
    "a busy broker": SlowDown("broker", "not by quotas: broker 1's request ", _beside_floods, brokers=_BUSY),
    "loss on the network": SlowDown(
        "network",
        "not by quotas or brokers: a request takes ",
        at_full_speed(Role.PRODUCE),
        brokers=Brokers(is_far=True),
    ),
    "a consumer that pauses": SlowDown(
        "client", "not by the cluster: the consumer's own work takes ", _pauses, {"consumer_byte_rate": _FREE}
    ),
    "rebalances": SlowDown(
        "client", "not by the cluster: its group rebalanced ", _rebalances, {"consumer_byte_rate": _FREE}
    ),
}

TOGETHER = (
    ("a quota of bytes", "a quota of request time", "a quota of mutations", "a hold"),
    ("a consumer that pauses", "rebalances"),
)
"""Slow-downs that share brokers, and don't slow down one another."""


@contextmanager
def brokers(folder: Path, wanted: Brokers, quotas: Mapping[str, Mapping[str, float]]) -> Iterator[Bed]:
    """Brokers as they are wanted, to which clients push telemetry each 5 s, and a job with quotas by client-id."""
    client_id, (far, entrance, controller) = new_exempt_client_id(), free_ports(3)
    by_far = {
        "listeners": f"CLIENT://127.0.0.1:{{port}},FAR://127.0.0.1:{far},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"CLIENT://127.0.0.1:{{port}},FAR://127.0.0.1:{entrance}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }

    def properties(servers: str, node_id: int) -> dict[str, str]:
        found = plugin_properties({"bootstrap.servers": servers}, load_settings().topics)
        found |= {"sluice.gateway.name": f"broker-{node_id}", "sluice.exempt.client.id": client_id}
        found |= {**wanted.server, **(by_far if wanted.is_far else {})}
        return found | {"metric.reporters": f"{found['metric.reporters']},{RECEIVER_CLASS}"}

    sections: Sections = {
        "kafka": {"client.id": client_id},
        "topics": {"partitions": 2, "replication_factor": wanted.size},
        "audit": {"trigger_s": 5},
        **wanted.sections,
    }
    limits: list[Json] = [{"entity": {"client_id": name}, "quotas": {**each}} for name, each in quotas.items()]
    if wanted.limits_all:
        free = {"producer_byte_rate": _FREE, "consumer_byte_rate": _FREE}
        limits.append({"entity": {"client_id": None}, "quotas": free})
    (classes := folder / "classes").mkdir(parents=True)
    compile_java([_SLOW_AUTHORIZER], BROKER_JARS.paths(), classes, OLDEST, java_compiler)
    plugins = [plugin_jar(), telemetry_jar(), classes]
    with (
        Cluster(folder / "brokers", wanted.size, properties, plugins) as cluster,
        Rig(folder, cluster.bootstrap_servers, sections, limits) as rig,
        slow_loopback(entrance, far, late_s=0.02, lost=0.1) if wanted.is_far else nullcontext(),
    ):
        servers = cluster.bootstrap_servers
        subscribe({"bootstrap_servers": servers}, _PUSH_MS)
        rig.start()
        wait_for_gateways(rig.settings, wanted.size)
        make_topic(servers, TOPIC, [2] * wanted.size)
        yield Bed(cluster, servers, f"127.0.0.1:{entrance}" if wanted.is_far else servers, rig)


def sluice(rig: Rig, *arguments: str) -> str:
    """The output of a command with the settings of a job. Raises RunError if it fails."""
    return output_of([*_SLUICE, *arguments, "--config", rig.settings_file], RunError, "sluice: {}")


def answer(rig: Rig, name: str, *options: str, since_s: int = SPAN_S) -> str:
    """The answer on a client's last seconds, by default a minute."""
    return sluice(rig, "explain", "--slow", "--client-id", name, "--since", f"{since_s}s", *options)


@contextmanager
def page(rig: Rig) -> Iterator[Callable[[str], str]]:
    """The page "Why is it slow?" of a console, by client-id."""
    (port,) = free_ports(1)
    command = [*_SLUICE, "console", "--port", str(port), "--config", str(rig.settings_file)]
    console = Child(command, rig.folder / "console.log")

    def shown(name: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}/slow?{urlencode({'client_id': name})}", timeout=60) as found:
            text: str = found.read().decode()
            return text

    def is_up() -> bool:
        try:
            return bool(shown(""))
        except OSError:
            return False

    try:
        wait_until(is_up, 120)
        yield shown
    finally:
        console.end(signal.SIGTERM, _STOP_S)


@contextmanager
def slowed(folder: Path, downs: Mapping[str, SlowDown]) -> Iterator[tuple[Bed, Mapping[str, list[Client]]]]:
    """Clients by name that are slow for a minute at least, on the brokers that all of them want."""
    wanted = next(each.brokers for each in downs.values())
    with brokers(folder, wanted, {name: each.numbers for name, each in downs.items()}) as bed, ExitStack() as stack:
        clients = {name: each.start(bed, name) for name, each in downs.items()}
        for each in (each for made in clients.values() for each in made):
            stack.callback(each.stop)
        began_ms = now_ms()
        wait_until(lambda: now_ms() - began_ms > SPAN_S * 1000, 2 * SPAN_S)
        yield bed, clients


def first_cause(told: str) -> dict[str, Any]:
    """The first cause of an answer with --json."""
    cause: dict[str, Any] = json.loads(told)["causes"][0]
    return cause


class Waits(NamedTuple):
    """The milliseconds of a minute that a client was told to wait, and those that the command shows."""

    told_ms: float
    decided_ms: float


def waits_of(bed: Bed, client: FullSpeedClient) -> Waits:
    """Those of the minute until now, of a client with one broker: each connection waits for itself.

    Blocks until the tables have them. Raises RunError.
    """
    until_ms = now_ms()

    def is_recorded() -> bool:
        """True once the tables have decisions on what came later."""
        seconds = (now_ms() - until_ms) // 1000
        try:
            return bool(seconds) and bool(answer(bed.rig, client.name, since_s=seconds))
        except RunError:
            return False

    wait_until(is_recorded, 2 * SPAN_S)
    found = json.loads(answer(bed.rig, client.name, "--at", from_ms(until_ms).isoformat(), "--json"))
    from_, to = found["from_ms"], found["to_ms"]
    told_ms = sum(max(0, min(at_ms + wait_s * 1000, to) - max(at_ms, from_)) for at_ms, wait_s in client.waits)
    return Waits(told_ms, sum(row["waited_ms"] for row in found["rows"]))


def run(folder: Path, names: Sequence[str], go_on: Callable[[], object]) -> list[str]:
    """Start slow-downs in turn, those of TOGETHER at once, and give the lines that say in the end what they were.

    `go_on` is called after each start, and returns when a reader has named what was shown.
    """
    numbers, said = {name: number for number, name in enumerate(names, 1)}, dict[int, str]()
    for name in names:
        if numbers[name] not in said:
            group = next((group for group in TOGETHER if name in group), (name,))
            said |= _told(folder, {numbers[each]: each for each in group if each in numbers}, go_on)
    return [said[number] for number in sorted(said)]


def _told(folder: Path, names: Mapping[int, str], go_on: Callable[[], object], tries: int = _TRIES) -> dict[int, str]:
    """Tell a reader of some; brokers that don't answer on a busy machine are started again. Gives what they were."""
    downs = {f"app-{number}": SLOW_DOWNS[name] for number, name in sorted(names.items())}
    said = {number: f"{number}: {name}" for number, name in names.items()}
    bed_folder = folder / f"brokers-of-{min(names)}"
    try:
        with slowed(bed_folder, downs) as (bed, clients), page(bed.rig) as shown:
            for number in sorted(names):
                name = f"app-{number}"
                (folder / f"{number}.txt").write_text(answer(bed.rig, name))
                (folder / f"{number}.html").write_text(shown(name))
                options = f"--client-id {name} --since {SPAN_S}s --config {bed.rig.settings_file}"
                print(f"{number}: sluice explain --slow {options}", flush=True)
            go_on()
            for number, name in names.items():
                (first, *_) = clients[f"app-{number}"]
                if name == "a quota of bytes" and isinstance(first, FullSpeedClient):
                    told_ms, decided_ms = waits_of(bed, first)
                    said[number] += f" (its client was told {told_ms:.0f} ms of waits, decisions have {decided_ms:.0f})"
        return said
    except (KafkaError, RunError):
        if tries == 1:
            raise
    rmtree(bed_folder)
    return _told(folder, names, go_on, tries - 1)


def main(
    seed: Annotated[int | None, typer.Option(help="Seed of the order; else another one each time.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait for a line of input after each.")] = True,
) -> int:
    """Start ten slow-downs in turn, in random order, and say in the end what they were."""
    names = list(SLOW_DOWNS)
    random.Random(seed).shuffle(names)
    with work_folder("slow-downs", fresh=True) as folder:
        found = run(folder, names, sys.stdin.readline if wait else lambda: None)
    print(*found, sep="\n")
    return 0


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    sys.exit(run_app("slow-downs", app))
