"""Reservations beside limits, and where they are not in force, as commands of core and extras tell."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from quota_shell import Shell, empty_table
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import KINDS_BY_NAME
from tests.builders import quota
from tests.commands import invoke


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return empty_table(tmp_path)


def test_a_reservation_stands_beside_a_limit(shell: Shell, tmp_path: Path) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=1000,producer_byte_rate_reservation=400")
    described = "producer_byte_rate=1000.0, producer_byte_rate_reservation=400.0"
    assert shell.lines("describe") == [f"Quota configs for user-principal 'alice' are {described}"]
    assert shell.lines("resolve --user alice")[0] == (
        "producer_byte_rate: 1000.0 (reservation 400.0, not in force: no default user or client-id has"
        " a quota of producer_byte_rate and consumer_byte_rate) from user-principal 'alice',"
        " counted for user 'alice'"
    )
    applies = json.loads(shell.run("resolve --user alice --json").output)["quotas"][0]
    assert applies["reservation"] == 400.0

    shell.lines("alter --user alice --delete-config producer_byte_rate_reservation")
    assert "- user-principal 'alice': producer_byte_rate_reservation 400" in shell.lines("history --limit 1")[0]
    file = tmp_path / "quotas.yaml"
    assert shell.lines(f"export --out {file}") == []
    assert file.read_text() == shell.run("export").output
    assert "--out" in shell.error(f"export --out {tmp_path / 'no' / 'quotas.yaml'}")
    assert shell.lines(f"apply {file} --prune") == ["Nothing changes."]


def test_a_reservation_says_where_it_is_not_in_force(tmp_path: Path) -> None:
    said = []
    strict, of_nobody = "elastic.limits is strict", "no default user or client-id has a quota of consumer_byte_rate"
    of_all = [quota(KINDS_BY_NAME[f"{role}_byte_rate"], 1e9, user=DEFAULT) for role in ("producer", "consumer")]
    for limits, defaults in (("strict", of_all), ("elastic", of_all[:1]), ("elastic", of_all)):
        quotas = tmp_path / f"{limits}-{len(defaults)}"
        QuotasTable(str(quotas)).create(defaults, "seed", datetime(2026, 1, 1, tzinfo=UTC))
        settings = quotas.with_suffix(".yaml")
        settings.write_text(f"delta: {{quotas: {quotas}}}\nelastic: {{limits: {limits}}}\n")
        added = "producer_byte_rate=9,producer_byte_rate_reservation=4"
        for line in (f"alter --user etl --add-config {added}", "describe", "resolve --user etl"):
            ended = invoke("quotas", *line.split(), "--config", settings)
            found = (ended.output + ended.error).partition("not in force: ")[2]
            said.append(next((why for why in (strict, of_nobody) if found.startswith(why)), found or None))
    assert said == [strict] * 3 + [of_nobody] * 3 + [None] * 3
