"""`sluice quotas hold` and `release` with a broker, a gateway and the deciding side: they end when gateways know."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from sluice import Gateway
from sluice.configs.settings import Settings
from sluice.process.background import BackgroundService
from sluice.sinks.tables.overrides import OverridesTable
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.overrides.watch import OverridesWatch
from sluice_demo.gateways import gateway_options
from sluice_reading.holds_table import HoldsTable
from sluice_toolbox.holds_watch import HoldsWatch
from sluice_toolbox.operator_holds import OperatorHolds
from tests.builders import quota
from tests.commands import invoke
from tests.deciding_side import deciding_side, own_settings
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

ENTRIES = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1e9, client_id="app")]


@contextmanager
def job(settings: Settings, quotas: str, folder: Path) -> Iterator[None]:
    """The parts of a job that take holds and decide heartbeats."""
    holds = HoldsWatch(HoldsTable(quotas), lambda: decider.published, lambda _: None)
    decider = OperatorHolds(lambda: holds.holds)
    watch = OverridesWatch([decider], OverridesTable(str(folder / "overrides"), {}), 0)
    deciding, *_ = watch.services(settings.topics, settings.kafka)
    with BackgroundService("holds", holds.poll, 0.1), deciding, deciding_side(settings, ENTRIES, watch):
        yield


def test_a_hold_returns_when_gateways_have_it_in_force_and_says_so_if_no_job_takes_it(
    kafka_broker: str, tmp_path: Path
) -> None:
    settings, quotas = own_settings(kafka_broker, partitions=1), str(tmp_path / "quotas")
    QuotasTable(quotas).create(ENTRIES, "test", datetime.now(UTC))
    topics = {name: each for name, each in asdict(settings.topics).items() if isinstance(each, str)}
    content = {"kafka": {"bootstrap.servers": kafka_broker}, "topics": topics, "delta": {"quotas": quotas}}
    (file := tmp_path / "job.yaml").write_text(yaml.safe_dump(content))
    waits_ms = []

    def run(command: str, *more: str, code: int = 0) -> str:
        ended = invoke("quotas", command, "--client-id", "app", "--config", file, *more, code=code)
        waits_ms.append(gateway.throttle_of("alice", "app", "Produce").throttle_ms)
        return ended.output + ended.error

    with Gateway(settings.kafka, gateway_options(settings, name="web-1")) as gateway:
        with job(settings, quotas, tmp_path):
            eventually(lambda: gateway.stats().limits_version == 1)
            held = run("hold", "--reason", "it floods", "--for", "1h", "--timeout", "120")
            released = run("release", "--timeout", "120")
        unheard = run("hold", "--reason", "it floods", "--timeout", "1", code=1)
        with job(settings, quotas, tmp_path):
            eventually(lambda: gateway.throttle_of("alice", "app", "Produce").throttle_ms == 10_000)
        unheard += run("release", "--timeout", "1", code=1)
        with job(settings, quotas, tmp_path):
            eventually(lambda: gateway.throttle_of("alice", "app", "Produce").throttle_ms == 0)

    assert "Holding client-id 'app' for 1h, in force at 1 of 1 other gateways" in held
    assert "Released client-id 'app', in force at 1 of 1 other gateways" in released
    assert unheard.count("written, but no job has taken it: ") == 2
    assert waits_ms == [10_000, 0, 0, 10_000]
