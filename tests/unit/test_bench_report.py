"""The report of the benchmarks: medians, ratios, bars and their tables."""

import pytest

from scripts.benchmarks.report import Findings, at_least, at_most


@pytest.fixture
def findings() -> Findings:
    found = Findings()
    enforce = found.add("Throughput", "enforce", "requests/s", [900.0, 300.0, 600.0])
    copy = found.add("Throughput", "copy", "requests/s", [1000.0, 5000.0, 800.0])
    found.add("State", "an entity", "bytes", [130.0], at_most(150))
    found.compare("enforce / copy", enforce, copy, at_least(0.6))
    found.compare("copy / enforce", copy, enforce, at_most(1.5))
    return found


def test_a_figure_is_the_median_of_its_runs_so_that_one_disturbed_run_changes_nothing() -> None:
    figure = Findings().add("Throughput", "enforce", "requests/s", [16_000.0, 900.0, 17_000.0])
    assert figure.median == 16_000.0


def test_a_ratio_is_the_ratio_of_the_medians(findings: Findings) -> None:
    assert [ratio.value for ratio in findings.ratios] == [pytest.approx(0.6), pytest.approx(1000 / 600)]


@pytest.mark.parametrize(
    ("bar", "value", "reached"),
    [
        (at_least(0.6), 0.6, True),
        (at_least(0.6), 0.599, False),
        (at_most(150), 150.0, True),
        (at_most(150), 150.1, False),
    ],
)
def test_a_bar_is_reached_from_its_own_side(bar: object, value: float, reached: bool) -> None:
    assert bar.reached(value) is reached  # type: ignore[attr-defined] # parametrize has no types
