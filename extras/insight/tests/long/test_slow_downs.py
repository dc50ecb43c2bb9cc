"""Slow clients on real brokers, whose cause the command and the page name, without anything else."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from html import unescape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # its own documentation says so

from console_facts import facts_of
from sluice.configs.settings import load_settings
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.process.clock import now_ms
from sluice_demo.broker_plugin import new_exempt_client_id, wait_for_gateways
from sluice_demo.cluster import Cluster, make_topic
from sluice_demo.full_speed_client import Client, FullSpeedClient, Role
from sluice_demo.job import Json, Sections, wait_until
from sluice_insight.console.app import Pages
from sluice_insight.console.slow import SlowPage
from sluice_insight.reports.span import Span
from sluice_insight.slow.sources import TELEMETRY_TOPIC, Recorded, telemetry_in
from sluice_lab.scenarios.closed_loop.brokers import TOPIC, fill
from sluice_lab.testbed.rig import Rig
from sluice_telemetry.jars import RECEIVER_CLASS, telemetry_jar
from sluice_telemetry.subscription import subscribe
from tests.commands import run_sluice

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

LIMIT = 500_000.0
SPAN_S = 60
PAUSE_S = 9.0


def limits(client_id: str | None, **numbers: float) -> Json:
    return {"entity": {"client_id": client_id}, "quotas": numbers}


@contextmanager
def brokers(
    folder: Path,
    size: int,
    quotas: Sequence[Json],
    more: Sections = MappingProxyType({}),
    server: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[str, Rig]]:
    """Brokers with the plugin and the receiver of telemetry, to which clients push each 5 s, and a job."""
    client_id = new_exempt_client_id()

    def properties(servers: str, node_id: int) -> dict[str, str]:
        found = plugin_properties({"bootstrap.servers": servers}, load_settings().topics)
        own = {"sluice.gateway.name": f"broker-{node_id}", "sluice.exempt.client.id": client_id}
        return found | own | dict(server) | {"metric.reporters": f"{found['metric.reporters']},{RECEIVER_CLASS}"}

    sections: Sections = {
        "kafka": {"client.id": client_id},
        "topics": {"partitions": 2, "replication_factor": size},
        "audit": {"trigger_s": 5},
        **more,
    }
    with (
        Cluster(folder / "brokers", size, properties, [plugin_jar(), telemetry_jar()]) as cluster,
        Rig(folder, cluster.bootstrap_servers, sections, quotas) as rig,
    ):
        subscribe({"bootstrap_servers": cluster.bootstrap_servers}, 5_000)
        rig.start()
        wait_for_gateways(rig.settings, size)
        make_topic(cluster.bootstrap_servers, TOPIC, [2] * size)
        yield cluster.bootstrap_servers, rig


class OwnClient(Client):
    """A client that does the same again and again."""

    def __init__(self, name: str, step: Callable[["OwnClient"], None]) -> None:
        super().__init__(name)
        self._start(self._run, step)

    def _run(self, step: Callable[["OwnClient"], None]) -> None:
        while not self._stop.is_set():
            step(self)

    def rests(self, seconds: float) -> bool:
        """Do nothing for a while; true at its end."""
        return self._stop.wait(seconds)


def makes_topics(servers: str, client: OwnClient) -> None:
    """Make a topic of many partitions, as fast as its broker lets it."""
    admin = AdminClient({"bootstrap.servers": servers, "client.id": client.name})
    while not client.rests(0):
        made = admin.create_topics([NewTopic(f"made-{len(client.samples)}-{now_ms()}", 20, 1)], request_timeout=30)
        client.samples += [(now_ms(), 20.0) for each in made.values() if not each.exception(60)]


def reads(servers: str, client: OwnClient) -> None:
    """Consume in a group, with a pause after each poll."""
    group = {"group.id": client.name, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": servers, "client.id": client.name, **group})
    consumer.subscribe([TOPIC])
    while not client.rests(PAUSE_S):
        consumer.consume(10, timeout=0.5)
    consumer.close()


QUOTAS = [
    limits("sends", producer_byte_rate=LIMIT),
    limits("reads", consumer_byte_rate=LIMIT),
    limits("asks", request_percentage=1.0),
    limits("makes", controller_mutation_rate=1.0),
    limits("stopped", producer_byte_rate=1e9),
]
CAUSES = {
    "sends": ("quota", "throttled by producer_byte_rate 500 kB/s of client-id 'sends'"),
    "reads": ("quota", "throttled by consumer_byte_rate 500 kB/s of client-id 'reads'"),
    "asks": ("quota", "throttled by request_percentage 1 % of client-id 'asks'"),
    "makes": ("quota", "throttled by controller_mutation_rate 1/s of client-id 'makes'"),
    "stopped": ("hold", "stopped by an operator ("),
}
"""Client-id -> its cause, and how the sentence begins."""


def check(rig: Rig, clients: Sequence[Client], expected: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Fails unless the command, and then the page, name each cause; gives the last answers by client-id."""
    found, recorded = dict[str, Any](), Recorded.of(rig.settings.delta)

    def told() -> bool:
        for name in expected:
            options = ("--client-id", name, "--since", f"{SPAN_S}s", "--config", rig.settings_file, "--json")
            found[name] = json.loads(run_sluice("explain", "--slow", *options).output)
        firsts = {name: each["causes"][0] for name, each in found.items()}
        return all(
            firsts[name]["cause"] == cause and firsts[name]["text"].startswith(text)
            for name, (cause, text) in expected.items()
        )

    began_ms = now_ms()
    wait_until(lambda: now_ms() - began_ms > SPAN_S * 1000, 2 * SPAN_S)
    try:
        wait_until(told, 180)
    finally:
        print(*(f"{name}: {each['causes'][0]['text']}" for name, each in found.items()), sep="\n")
        print(*(f"{name}: {each['evidence']['own']}" for name, each in found.items()), sep="\n")
    page = SlowPage(recorded)
    told_ms = max(each["to_ms"] for each in found.values())
    for each in telemetry_in(rig.settings.kafka, TELEMETRY_TOPIC, Span(told_ms - SPAN_S * 1000, told_ms)):
        page.heard.take(None, json.dumps({name: getattr(each, name) for name in each.__struct_fields__}).encode())
    facts = facts_of(clock=lambda: told_ms)
    facts.slow = page
    for name, (_, text) in expected.items():
        assert text in unescape(Pages(facts).page("slow", {"client_id": name}, "")), name
    for client in clients:
        client.stop()
    return found


def test_the_cause_of_each_slow_client_is_the_first_line(tmp_path: Path) -> None:
    """Quotas of bytes in and out, of request time and of mutations, and a hold."""
    with brokers(tmp_path, 2, QUOTAS) as (servers, rig):
        fill(servers, TOPIC)
        roles = {"sends": Role.PRODUCE, "reads": Role.CONSUME, "asks": Role.REQUESTS, "stopped": Role.PRODUCE}
        clients: list[Client] = [FullSpeedClient(name, role, servers, TOPIC) for name, role in roles.items()]
        clients += [
            OwnClient("makes", partial(makes_topics, servers)),
        ]
        whose = ("--client-id", "stopped", "--reason", "it floods", "--for", "1h", "--timeout", 120)
        assert run_sluice("quotas", "hold", *whose, "--config", rig.settings_file).code == 0
        found = check(rig, clients, CAUSES)

    for each in clients[:2]:
        assert isinstance(each, FullSpeedClient)
        evidence, until_ms = found[each.name]["evidence"], found[each.name]["to_ms"]
        told_s = sum(wait_s for at_ms, wait_s in each.waits if until_ms - SPAN_S * 1000 <= at_ms < until_ms)
        print(f"{each.name}: waited {evidence['waited'] * SPAN_S:.1f} s of {SPAN_S}, told the client {told_s:.1f} s")


def test_the_pauses_of_a_consumer_are_its_own_doing(tmp_path: Path) -> None:
    with brokers(tmp_path, 1, [limits(None, consumer_byte_rate=1e9)]) as (servers, rig):
        fill(servers, TOPIC)
        clients = [OwnClient("pauses", partial(reads, servers))]
        check(rig, clients, {"pauses": ("client", "not by the cluster: the consumer's own work takes ")})


def test_a_disk_that_is_nearly_full_is_the_cause(tmp_path: Path) -> None:
    floor: Sections = {"brokers": {"disk_min_free_bytes": 2**50}}
    with brokers(tmp_path, 1, [limits("sends", producer_byte_rate=1e9)], floor) as (servers, rig):
        clients = [FullSpeedClient("sends", Role.PRODUCE, servers, TOPIC)]
        check(rig, clients, {"sends": ("disk_guard", "producers are stopped by the disk guard (broker 1: ")})


def test_a_broker_with_too_much_to_do_is_the_cause(tmp_path: Path) -> None:
    """One thread for all requests, and clients without a limit that send as many as they can."""
    quotas = [limits("waits", producer_byte_rate=1e9)]
    with brokers(tmp_path, 1, quotas, server={"num.io.threads": "1"}) as (servers, rig):
        clients = [FullSpeedClient(f"floods-{number}", Role.REQUESTS, servers, TOPIC) for number in range(12)]
        clients += [FullSpeedClient("waits", Role.REQUESTS, servers, TOPIC)]
        check(rig, clients, {"waits": ("broker", "not by quotas: broker 1's request ")})


def test_limits_that_gave_way_to_an_overloaded_broker_are_the_cause(tmp_path: Path) -> None:
    """Every client has a limit, without which none gives way."""
    capacity = {"capacity_in_bytes_per_s": 400_000, "capacity_out_bytes_per_s": 400_000}
    quotas = [
        limits("sends", producer_byte_rate=1e6),
        limits(None, producer_byte_rate=1e9, consumer_byte_rate=1e9),
    ]
    with brokers(tmp_path, 1, quotas, {"elastic": {"limits": "elastic"}, "brokers": capacity}) as (servers, rig):
        clients = [FullSpeedClient("sends", Role.PRODUCE, servers, TOPIC)]
        check(rig, clients, {"sends": ("tightened", "throttled below producer_byte_rate 1 MB/s of client-id")})
