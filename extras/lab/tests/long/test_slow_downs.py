"""Slow clients on real brokers, whose cause the command and the page name, without anything else."""

import json
from html import unescape
from pathlib import Path

import pytest

from sluice.process.clock import now_ms
from sluice_demo.full_speed_client import Client, FullSpeedClient, Role
from sluice_demo.job import RunError, wait_until
from sluice_lab.scenarios.closed_loop.brokers import TOPIC, fill
from sluice_lab.scenarios.slow_downs import (
    LIMIT,
    SLOW_DOWNS,
    SPAN_S,
    Bed,
    SlowDown,
    answer,
    first_cause,
    page,
    slowed,
    sluice,
)
from sluice_reading.times import from_ms

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]


def reads(bed: Bed, name: str) -> list[Client]:
    fill(bed.servers, TOPIC)
    return [FullSpeedClient(name, Role.CONSUME, bed.servers, TOPIC)]


READS = SlowDown(
    "quota", "throttled by consumer_byte_rate 500 kB/s of client-id '{}'", reads, {"consumer_byte_rate": LIMIT}
)
TOGETHER = [
    ("a quota of bytes", "a quota of request time", "a quota of mutations", "a hold"),
    ("a consumer that pauses", "rebalances"),
]
ALONE = [(name,) for name in SLOW_DOWNS if not any(name in names for names in TOGETHER)]


@pytest.mark.parametrize("names", [*TOGETHER, *ALONE], ids=lambda names: ", ".join(names))
def test_the_first_line_of_command_and_page_is_the_cause(tmp_path: Path, names: tuple[str, ...]) -> None:
    downs = {f"app-{number}": SLOW_DOWNS[name] for number, name in enumerate(names)}
    if "a hold" in names:
        downs["reads"] = READS
    said = dict[str, str]()

    def told(name: str, down: SlowDown) -> bool:
        cause = first_cause(answer(bed.rig, name, "--json"))
        said[name] = cause["text"]
        return bool(cause["cause"] == down.cause) and said[name].startswith(down.says.format(name))

    with slowed(tmp_path, downs) as (bed, _), page(bed.rig) as shown:
        try:
            wait_until(lambda: all([told(*each) for each in downs.items()]), 3 * SPAN_S)
        finally:
            print(*(answer(bed.rig, name) for name in downs), sep="\n")
        for name, down in downs.items():
            assert down.says.format(name) in unescape(shown(name)), name


def test_the_waits_that_a_client_was_told_and_those_of_the_decisions_agree(tmp_path: Path) -> None:
    """A producer with one broker, as each connection waits for itself."""
    with slowed(tmp_path, {"sends": SLOW_DOWNS["a quota of bytes"]}) as (bed, clients):
        (client,) = clients["sends"]
        until_ms = now_ms()

        def is_recorded() -> bool:
            """True once the tables have decisions on what came later."""
            seconds = (now_ms() - until_ms) // 1000
            try:
                return bool(seconds) and bool(answer(bed.rig, "sends", "--since", f"{seconds}s"))
            except RunError:
                return False

        wait_until(is_recorded, 2 * SPAN_S)
        found = json.loads(answer(bed.rig, "sends", "--at", from_ms(until_ms).isoformat(), "--json"))
    assert isinstance(client, FullSpeedClient)
    from_, to = found["from_ms"], found["to_ms"]
    told_ms = sum(max(0, min(at_ms + wait_s * 1000, to) - max(at_ms, from_)) for at_ms, wait_s in client.waits)
    waited_ms, decided_ms = (sum(row[name] for row in found["rows"]) for name in ("waited_ms", "decided_ms"))
    print(f"of {to - from_} ms: the client was told {told_ms:.0f}, decisions {waited_ms}, of the job {decided_ms}")
    print(sluice(bed.rig, "explain", "--client-id", "sends"))

    assert waited_ms == pytest.approx(told_ms, rel=0.05)
