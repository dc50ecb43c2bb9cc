"""Quotas that `sluice whatif` foretold are set on a broker with the plugin: its clients get what was foretold."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from recorded import simulated, write_decisions
from sluice.configs.quotas import load_quotas_file
from sluice.process.clock import now_ms
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.full_speed_client import Client, FullSpeedClient, Role
from sluice_reading.quota_text import quotas_yaml
from tests.builders import quota
from tests.commands import invoke
from tests.integration.plugin_broker import PluginBroker, produce
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.alone]

PRODUCE_S = 30
IN_FORCE = [quota(QuotaKind.PRODUCER_BYTE_RATE, 400_000.0, client_id="app")]
WANTED = """
- {entity: {client_id: app}, quotas: {producer_byte_rate: 1000000}}
- {entity: {user: ANONYMOUS}, quotas: {producer_byte_rate: 100000}}
"""


def test_a_limit_on_the_user_of_a_client_with_one_on_its_client_id_takes_what_whatif_said(
    tmp_path: Path, classes: list[Path]
) -> None:
    """The user comes before the client-id, so the client is hit, though its counter had no user."""
    (tmp_path / "wanted.yaml").write_text(WANTED)
    (tmp_path / "settings.yaml").write_text(f"delta: {{decisions: {tmp_path / 'decisions'}}}\n")
    plugin = PluginBroker(tmp_path / "broker", classes)
    with plugin.broker:
        plugin.create_topics("quota-requests", "quota-decisions", "quota-sums", "quota-limits", "orders")
        plugin.publish_limits(IN_FORCE)
        eventually(lambda: "Sluice knows the limits (version 1)" in plugin.log.read_text())
        begin = datetime.now(UTC)
        recorded = produce(plugin.servers, "app", PRODUCE_S)
        eventually(lambda: sum(event.get("bytes", 0) for event in plugin.events()) >= recorded)
        decided = simulated((json.dumps(event).encode() for event in plugin.events()), IN_FORCE)
        write_decisions(tmp_path / "decisions", [each | {"decided_at_ms": each["timestamp_ms"]} for each in decided])
        arguments = ["--quotas", str(tmp_path / "wanted.yaml"), "--config", str(tmp_path / "settings.yaml")]
        span = ["--from", begin.isoformat(), "--to", (begin + timedelta(seconds=PRODUCE_S)).isoformat()]
        clients = json.loads(invoke("whatif", *arguments, *span, "--json").output)["clients"]

        plugin.publish_limits(load_quotas_file(tmp_path / "wanted.yaml"), version=2)
        eventually(lambda: plugin.metric("LimitsVersion") == 2)
        accepted = produce(plugin.servers, "app", PRODUCE_S)

    [client] = [each for each in clients if (each["user"], each["client_id"]) == ("ANONYMOUS", "app")]
    foretold = recorded * (1 - client["not_sent"] / client["requests"])
    assert recorded > 2 * accepted
    assert accepted == pytest.approx(foretold, rel=0.5), ("an event is sent as a whole", clients)


# --- five kinds of changes, each of quotas of another kind ------------------------------------------------------------

SPAN_S = 120
LEAD_S = 75  # a replay reads a minute before its span
ORDERS, DATA, SMALL = "orders", "data", "small"
RECORD_BYTES = 10_000


class Offering(Client):
    """A producer that is offered so many bytes by a time in seconds, and sends them when it may, 100 kB at once."""

    def __init__(self, name: str, servers: str, offered: Callable[[float], float]) -> None:
        super().__init__(name)
        self._start(self._run, servers, offered)

    def _run(self, servers: str, offered: Callable[[float], float]) -> None:
        options = {"queue.buffering.max.kbytes": 32 * 1024, "batch.size": 100_000, "log_level": 2}
        producer = Producer({"bootstrap.servers": servers, "client.id": self.name, **options})
        sent, began_s = 0, time.monotonic()
        while not self.stopping.is_set():
            if sent + RECORD_BYTES > offered(time.monotonic() - began_s):
                producer.poll(0.02)
                continue
            try:
                producer.produce(ORDERS, bytes(RECORD_BYTES))
            except BufferError:  # it is full
                producer.poll(0.05)
            else:
                sent += RECORD_BYTES
                producer.poll(0)
        producer.purge()


def steadily(rate: float) -> Callable[[float], float]:
    return lambda at_s: rate * at_s


def in_bursts(size: float, every_s: float) -> Callable[[float], float]:
    return lambda at_s: size * (1 + at_s // every_s)


P, C, R = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE
PRESENT = [
    quota(P, 1_000_000.0, client_id="halved"),
    quota(P, 1_000_000.0, client_id="half-halved"),  # its producer's alone
    quota(C, 2_000_000.0, client_id="half-halved"),
    quota(C, 1_000_000.0, client_id="doubled"),
    quota(P, 400_000.0, client_id="removed"),
    quota(P, 800_000.0, client_id="overridden"),
    quota(R, 4.0, client_id="asks"),
    quota(P, 100_000.0, client_id="asks"),  # never reached; a broker says each second what it used of it
]
CHANGED = [
    quota(P, 500_000.0, client_id="halved"),
    quota(P, 500_000.0, client_id="half-halved"),
    quota(C, 2_000_000.0, client_id="half-halved"),
    quota(C, 2_000_000.0, client_id="doubled"),
    quota(P, 1e9, client_id="removed"),  # the new default would take its place
    quota(P, 200_000.0, client_id=DEFAULT),
    quota(P, 300_000.0, client_id="overridden"),
    quota(R, 2.0, client_id="asks"),
    quota(P, 100_000.0, client_id="asks"),
]


def clients_of(servers: str) -> list[Client]:
    """Clients at full speed, one in bursts, and two that are offered less than they may send."""
    return [
        FullSpeedClient("halved", Role.PRODUCE, servers, ORDERS),
        FullSpeedClient("half-halved", Role.PRODUCE, servers, ORDERS),
        FullSpeedClient("half-halved", Role.CONSUME, servers, DATA),
        FullSpeedClient("doubled", Role.CONSUME, servers, DATA),
        FullSpeedClient("asks", Role.REQUESTS, servers, SMALL),
        Offering("removed", servers, in_bursts(12_000_000, 40)),
        Offering("defaulted", servers, steadily(350_000)),
        Offering("overridden", servers, steadily(600_000)),
    ]


def is_in_force(plugin: PluginBroker, version: int) -> bool:
    return plugin.metric("LimitsVersion") == version


def foretold(folder: Path, at_ms: int, *arguments: str) -> dict[str, dict[str, Any]]:
    """The clients of a span by `sluice whatif`, by client-id."""
    times = (datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in (at_ms, at_ms + 1000 * SPAN_S))
    span = [text for pair in zip(("--from", "--to"), times, strict=True) for text in pair]
    ended = invoke("whatif", "--config", str(folder / "settings.yaml"), *arguments, *span, "--processes", "1", "--json")
    return {client["client_id"]: client for client in json.loads(ended.output)["clients"]}


def test_five_changes_give_clients_the_throttled_minutes_and_bytes_that_whatif_said(
    tmp_path: Path, classes: list[Path]
) -> None:
    """Halved, doubled and removed, a new default and an override; of producers, of consumers and of request time.

    Small requests wait for some milliseconds each, which a broker's sums don't show: nothing of them is foretold.
    """
    (tmp_path / "changed.yaml").write_text(quotas_yaml(CHANGED))
    (tmp_path / "settings.yaml").write_text(
        f"delta: {{decisions: {tmp_path / 'decisions'}, quotas: {tmp_path / 'quotas'}}}\n"
    )
    plugin, begun_ms = PluginBroker(tmp_path / "broker", classes), list[int]()
    with plugin.broker:
        plugin.create_topics("quota-requests", "quota-decisions", "quota-sums", "quota-limits", ORDERS, DATA, SMALL)
        feeder = Producer({"bootstrap.servers": plugin.servers, "client.id": "feeder", "log_level": 2})
        for _ in range(3_000):
            feeder.produce(DATA, bytes(RECORD_BYTES))
        assert feeder.flush(60) == 0
        clients = list[Client]()
        for version, entries in enumerate((PRESENT, CHANGED), start=1):
            plugin.publish_limits(entries, version)
            eventually(partial(is_in_force, plugin, version))
            clients = clients or clients_of(plugin.servers)
            time.sleep(LEAD_S)
            begun_ms.append(now_ms())
            time.sleep(SPAN_S)
        for client in clients:
            client.stop()
        events = plugin.events()
    decided = simulated((json.dumps(event).encode() for event in events), [])
    write_decisions(tmp_path / "decisions", [each | {"decided_at_ms": each["timestamp_ms"]} for each in decided])
    QuotasTable(str(tmp_path / "quotas")).create(PRESENT, "test", datetime(2026, 1, 1, tzinfo=UTC))

    said = foretold(tmp_path, begun_ms[0], "--quotas", str(tmp_path / "changed.yaml"))
    became = foretold(tmp_path, begun_ms[1], "--quotas", str(tmp_path / "changed.yaml"))

    figures = {
        f"{name} {figure}": [said[name][f"{figure}_{side}"] for side in ("then", "same", "now")]
        + [became[name][f"{figure}_then"]]
        for name in sorted({client.name for client in clients})
        for figure in ("minutes_waited", "bytes")
    }
    print(*(f"{name:28} {values}" for name, values in figures.items()), sep="\n")
    known = {name: values for name, values in figures.items() if values[2] is not None}
    wrong = {name: values for name, values in known.items() if values[2] != pytest.approx(values[3], rel=0.2)}
    assert not wrong
    assert figures.keys() - known.keys() == {"asks minutes_waited", "asks bytes"}
