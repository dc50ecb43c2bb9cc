"""Slow clients on real brokers, whose cause the command and the page name, without anything else."""

from html import unescape
from pathlib import Path

import pytest

from sluice_demo.full_speed_client import Client, FullSpeedClient, Role
from sluice_demo.job import wait_until
from sluice_lab.scenarios.closed_loop.brokers import TOPIC, fill
from sluice_lab.scenarios.slow_downs import (
    LIMIT,
    SLOW_DOWNS,
    SPAN_S,
    TOGETHER,
    Bed,
    SlowDown,
    answer,
    first_cause,
    page,
    slowed,
    sluice,
    waits_of,
)

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]


def reads(bed: Bed, name: str) -> list[Client]:
    fill(bed.servers, TOPIC)
    return [FullSpeedClient(name, Role.CONSUME, bed.servers, TOPIC)]


READS = SlowDown(
    "quota", "throttled by consumer_byte_rate 500 kB/s of client-id '{}'", reads, {"consumer_byte_rate": LIMIT}
)
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
    with slowed(tmp_path, {"sends": SLOW_DOWNS["a quota of bytes"]}) as (bed, clients):
        (client,) = clients["sends"]
        assert isinstance(client, FullSpeedClient)
        waits = waits_of(bed, client)
        print(waits, sluice(bed.rig, "explain", "--client-id", "sends"), sep="\n")

    assert waits.decided_ms == pytest.approx(waits.told_ms, rel=0.05)
