"""A limit that `sluice whatif` foretold is set on a broker with the plugin: its client gets what was foretold."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.configs.quotas import load_quotas_file
from sluice.state.quotas.kinds import QuotaKind
from tests.builders import quota
from tests.commands import invoke
from tests.integration.plugin_broker import PluginBroker, produce
from tests.recorded import simulated, write_decisions
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.long]

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
