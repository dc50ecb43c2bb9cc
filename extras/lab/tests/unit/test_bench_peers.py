"""The peers of `./scripts/bench --only peers`: the checks before a figure of theirs is shown."""

import re
from collections import Counter
from pathlib import Path

import pytest

from sluice.configs.settings import load_settings
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from sluice_lab.benchmarks.events import ONE_CHARGE
from sluice_lab.benchmarks.peers.decided import CHECKS, ComparedDecision, check_requests, check_same, decision
from sluice_lab.benchmarks.rig import BenchError

PEERS = Path("extras/lab/sluice_lab/benchmarks/peers")
ALLOWED = ComparedDecision("ALLOW", 0, 0, 54.0)
REFUSED = ComparedDecision("REJECT", 23, 23, -0.11499999999997436)


def test_the_checks_are_allowed_refused_in_part_and_refused() -> None:
    simulation = Simulation(Quotas(ONE_CHARGE.quotas), load_settings(environment={}))
    decided = [decision(record.value)[1] for record in simulation.decide(value for _, value in check_requests(10**12))]
    assert len(decided) == CHECKS
    assert min(Counter(found.verdict for found in decided).values()) > CHECKS / 20
    assert {found.verdict for found in decided} == {"ALLOW", "THROTTLE", "REJECT"}
    assert len({found.tokens for found in decided}) > CHECKS / 2


def test_a_peer_that_decides_the_same_passes() -> None:
    check_same("it", {"b": REFUSED, "a": ALLOWED}, {"a": ALLOWED, "b": REFUSED})


@pytest.mark.parametrize(
    ("decided", "problem"),
    [
        *(
            ({"a": ALLOWED, "b": REFUSED._replace(**other)}, "on the request b it decided ComparedDecision")
            for other in (
                {"throttle_ms": 24},
                {"throttle_time_ms": 24},
                {"verdict": "THROTTLE"},
                {"tokens": -0.11499999999997437},
            )
        ),
        ({"a": ALLOWED}, "on the request b it decided None"),
        ({"a": ALLOWED, "b": REFUSED, "c": REFUSED}, "it decided on 3 requests, Sluice on 2"),
    ],
)
def test_a_peer_that_decides_anything_else_is_refused(decided: dict[str, ComparedDecision], problem: str) -> None:
    with pytest.raises(BenchError, match=f"it is not measured: {problem}"):
        check_same("it", decided, {"a": ALLOWED, "b": REFUSED})


def test_quix_streams_is_pinned_with_all_it_needs_and_is_no_requirement_of_sluice() -> None:
    wanted, locked = (PEERS / "quix.in").read_text().strip(), (PEERS / "quix.lock").read_text()
    pins = re.findall(r"^\S+==\S+.*((?:\\\n    --hash=sha256:[0-9a-f]{64} ?)+)", locked, re.MULTILINE)
    assert re.search(rf"^{re.escape(wanted)} \\$", locked, re.MULTILINE)
    assert len(pins) == len(re.findall("==", locked))
    assert "quixstreams" not in Path("requirements.lock").read_text()
