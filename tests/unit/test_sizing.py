"""`sluice size`: the plan keeps its own bounds, and its figures are those of the pages that they are measured on."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.cli.size import MEASURED_CORES
from sluice.streaming import sizing
from sluice.streaming.sizing import BUSY, MOST_GATEWAYS, Load, decide_us, gateway_busy, job_size, size

DOCS = Path(__file__).resolve().parents[2] / "docs"

loads = st.builds(
    Load,
    requests_per_s=st.floats(1, 1e6),
    entities=st.integers(1, 10**9),
    charges=st.integers(1, 20),
    gateways=st.integers(1, 5_000),
    batch_s=st.floats(0.5, 60),
)


def _figure(page: str, row: str) -> float:
    """The first number of a row of a table, such as `| audit | 14 300 | …`."""
    found = re.search(rf"^\| {re.escape(row)} \| ([\d .]+) \|", (DOCS / page).read_text(), re.MULTILINE)
    assert found is not None, row
    return float(found.group(1).replace(" ", ""))


def _throughput(charges: int) -> float:
    """Requests/s of the enforce query, of the table for so many charges."""
    table = (DOCS / "performance.md").read_text().partition(f"| Throughput, {charges} charge")[2]
    found = re.search(r"^\| enforce \| ([\d ]+) \|", table, re.MULTILINE)
    assert found is not None
    return float(found.group(1).replace(" ", ""))


@pytest.mark.parametrize("charges", [1, 2, 4])
def test_a_request_costs_what_the_page_of_performance_measured(charges: int) -> None:
    assert sizing.DECIDE_US[charges] == round(MEASURED_CORES / _throughput(charges) * 1e6)


def test_the_other_figures_are_those_of_the_pages() -> None:
    gateways = " ".join((DOCS / "gateways.md").read_text().split())

    assert round(MEASURED_CORES / _figure("performance.md", "audit") * 1e6) == sizing.AUDIT_US
    assert _figure("performance.md", "an entity with bucket and request time") == sizing.ENTITY_BYTES
    assert "29 µs beside two other gateways" in gateways
    assert "45 µs for an event published, and 56 000 decisions taken in" in gateways
    assert (sizing.ADMIT_US, sizing.TAKE_US) == (29 + 45, 1e6 / 56_000)


@given(loads)
def test_no_gateway_and_no_job_is_planned_to_be_busier_than_allowed(load: Load) -> None:
    plan = size(load)

    assert plan.gateway_busy <= BUSY
    assert plan.job.gateways <= MOST_GATEWAYS
    assert plan.job.decide_cores + plan.job.entity_cores + plan.job.audit_cores <= plan.job.cores * BUSY


@given(loads)
def test_all_jobs_together_carry_the_load(load: Load) -> None:
    plan = size(load)

    assert plan.jobs * plan.job.requests_per_s == pytest.approx(load.requests_per_s)
    assert plan.jobs * plan.job.entities >= load.entities
    assert plan.gateways == plan.jobs * plan.job.gateways >= load.gateways


@given(loads)
def test_one_job_fewer_would_be_too_few(load: Load) -> None:
    plan = size(load)
    fewer = plan.jobs - 1

    if fewer:
        gateways = -(-load.gateways // fewer)
        busy = gateway_busy(load.requests_per_s / fewer, load.requests_per_s / fewer / gateways)
        assert busy > BUSY or gateways > MOST_GATEWAYS


@given(loads)
def test_longer_micro_batches_never_take_more_cores(load: Load) -> None:
    assert job_size(replace(load, batch_s=load.batch_s * 2)).cores <= job_size(load).cores


@given(st.integers(1, 100))
def test_another_charge_never_makes_a_request_cheaper(charges: int) -> None:
    assert decide_us(charges + 1) > decide_us(charges)


def test_the_command_says_the_plan_of_the_page() -> None:
    page = (DOCS / "sizing.md").read_text()
    found = re.search(r"^\$ \.venv/bin/sluice (size [^\n]*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    command, shown = found.groups()

    done = CliRunner().invoke(app, command.split())

    assert done.exit_code == 0, done.output
    assert done.output == shown
