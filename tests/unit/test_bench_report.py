"""The report of the benchmarks: medians, ratios, bars and their tables."""

import json

import pytest

from scripts.benchmarks.report import Findings, Report, at_least, at_most, shown

ENVIRONMENT = {"machine": "2 cores", "command": "./scripts/bench --quick"}


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


def test_a_figure_without_a_run_is_refused() -> None:
    with pytest.raises(ValueError, match="Latency: p99 was not measured"):
        Findings().add("Latency", "p99", "ms", [])


def test_a_ratio_is_the_ratio_of_the_medians(findings: Findings) -> None:
    assert [ratio.value for ratio in findings.ratios] == [pytest.approx(0.6), pytest.approx(1000 / 600)]


def test_a_ratio_to_something_too_small_to_measure_is_infinite() -> None:
    found = Findings()
    found.compare("a / b", found.add("A", "a", "ms", [5.0]), found.add("A", "b", "ms", [0.0]))
    assert found.ratios[0].value == float("inf")


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


def test_json_has_every_single_run_and_on_what_it_was_measured(findings: Findings) -> None:
    content = json.loads(Report(ENVIRONMENT, findings).to_json())
    assert content["environment"] == ENVIRONMENT
    assert content["figures"][0] == {
        "section": "Throughput",
        "name": "enforce",
        "unit": "requests/s",
        "median": 600.0,
        "values": [900.0, 300.0, 600.0],
        "bar": None,
        "reached": None,
    }
    assert [figure["reached"] for figure in content["figures"]] == [None, None, True]
    assert [(ratio["bar"], ratio["reached"]) for ratio in content["ratios"]] == [("≥ 0.6", True), ("≤ 1.5", False)]


def test_the_tables_show_environment_spread_and_bars(findings: Findings) -> None:
    lines = [" ".join(line.replace("|", " ").split()) for line in Report(ENVIRONMENT, findings).markdown().splitlines()]
    assert "- command: ./scripts/bench --quick" in lines
    assert "enforce 600 300 900 requests/s" in lines
    assert "an entity 130 130 130 bytes ≤ 150 reached" in lines
    assert "enforce / copy 0.6 ≥ 0.6 reached" in lines
    assert "copy / enforce 1.67 ≤ 1.5 MISSED" in lines


@pytest.mark.parametrize(
    ("number", "text"),
    [(16_234.5, "16 200"), (999.6, "1 000"), (52.04, "52"), (0.45678, "0.457"), (1_234_567.0, "1 230 000"), (0.0, "0")],
)
def test_numbers_are_shown_with_the_digits_that_count(number: float, text: str) -> None:
    assert shown(number) == text
