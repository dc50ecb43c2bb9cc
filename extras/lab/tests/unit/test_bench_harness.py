"""The harness of the bench: the workers' part of a micro-batch, without Spark and Kafka."""

import json
from pathlib import Path

import pytest

from sluice.configs.settings import Settings
from sluice_demo.job import storage_in, write_settings
from sluice_lab.benchmarks.events import FOUR_CHARGES, LOADS, ONE_CHARGE, Load, spread
from sluice_lab.benchmarks.harness import Workers, work

EVENTS = 200


def settings(folder: Path, pages: int) -> Settings:
    folder.mkdir(exist_ok=True)
    return write_settings(folder / "settings.yaml", storage_in(folder), {"state": {"pages": pages}})


@pytest.mark.parametrize("load", [*LOADS, ONE_CHARGE.in_tenants()], ids=["1", "2", "4", "1 and its tenant's"])
def test_every_event_has_one_decision_with_all_its_charges(load: Load, tmp_path: Path) -> None:
    workers, users = Workers(load, settings(tmp_path, 64)), spread(2 * EVENTS, 50)

    rows = [row for first in (0, EVENTS) for row in workers.micro_batch(first, users[first : first + EVENTS])]

    decisions = [json.loads(value or b"") for _, topic, _, value in rows if topic == "quota-decisions"]
    assert sorted(int(decision["request_id"]) for decision in decisions) == list(range(2 * EVENTS))
    limited = [[charge for charge in decision["charges"] if charge["limit"]] for decision in decisions]
    assert {len(charges) for charges in limited} == {load.charges}


def test_digests_of_records_are_of_the_decisions_alone_and_those_of_pages_of_the_stored_state(tmp_path: Path) -> None:
    """So two releases with other pages can be compared by their records."""
    one, again = (work(FOUR_CHARGES, settings(tmp_path / name, 1), EVENTS, 50, 1) for name in ("one", "again"))
    many = work(FOUR_CHARGES, settings(tmp_path / "many", 64), EVENTS, 50, 1)
    other = work(ONE_CHARGE, settings(tmp_path / "other", 1), EVENTS, 50, 1)

    assert one.records_digest == again.records_digest == many.records_digest != other.records_digest
    assert one.pages_digest == again.pages_digest != many.pages_digest


def test_the_total_is_the_sum_of_the_steps(tmp_path: Path) -> None:
    found = work(FOUR_CHARGES, settings(tmp_path, 64), EVENTS, 50, 1)
    assert found.total_us == pytest.approx(found.plan_us + found.decide_us + found.rows_us + found.combine_us, abs=0.03)
    assert found.combine_us > 0
