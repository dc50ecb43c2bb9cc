"""The systems that the bench compares decide as Sluice does, on a real broker."""

import time

import pytest

from scripts.benchmarks.events import ONE_CHARGE, spread
from scripts.benchmarks.peers.measure import check_decisions, decisions_of
from scripts.benchmarks.peers.systems import KafkaStreams, Quix, System, running
from scripts.benchmarks.rig import BenchmarkRig
from state.quotas.kinds import QuotaSettings

pytestmark = [pytest.mark.kafka, pytest.mark.long]

NOW_MS = 1_800_000_000_000
WAIT_S = 120.0


@pytest.mark.parametrize(
    "system", [KafkaStreams("exactly_once_v2"), Quix(commit_s=0.1)], ids=lambda system: system.name
)
def test_a_peer_decides_as_sluice_does_also_after_a_restart(system: System) -> None:
    events = list(ONE_CHARGE.backlog(spread(2_000, 10), NOW_MS))
    wanted = decisions_of(events, QuotaSettings())
    assert any(decided.throttle_ms for decided in wanted.values())
    with BenchmarkRig({}) as rig:
        setup = rig.setup("peer", "peer-requests", ONE_CHARGE.quotas)
        reader = rig.reader(setup.settings.topics.decisions)
        found: list[bytes] = []
        for part in (events[:1_000], events[1_000:]):
            rig.publish(setup.settings.topics.requests, part)
            wait_until_s, so_far = time.monotonic() + WAIT_S, len(found)
            with running(system, setup):
                while len(found) < so_far + len(part) and time.monotonic() < wait_until_s:
                    found += [record.value() or b"" for record in reader.consume(1_000, timeout=0.5)]
        reader.close()

    check_decisions(system.name, found, wanted)
