"""The report of the benchmarks: medians, ratios, bars and their tables."""

import json

import pytest

from sluice_demo.job import Json
from sluice_lab.benchmarks.report import Bar, Findings, at_least, at_most, to_json, to_markdown
from sluice_lab.benchmarks.scale import Scale, counted_runs


@pytest.fixture
def findings() -> Findings:
    found = Findings()
    enforce = found.add("Throughput", "enforce", "requests/s", [900.0, 300.0, 600.0])
    copy = found.add("Throughput", "copy", "requests/s", [1000.0, 5000.0, 800.0])
    found.compare("enforce / copy", enforce, copy, at_least(0.6))
    found.compare("copy / enforce", copy, enforce, at_most(1.5))
    return found


def test_a_ratio_is_the_ratio_of_the_medians(findings: Findings) -> None:
    assert [ratio.value for ratio in findings.ratios] == [pytest.approx(0.6), pytest.approx(1000 / 600)]


@pytest.mark.parametrize(
    ("bar", "value", "reached"),
    [
        (at_least(0.6), 0.6, True),
        (at_least(0.6), 0.599, False),
        (at_most(150), 150.0, True),
        (at_most(150), 150.1, False),
        (Bar(0.97, 1.02), 0.97, True),
        (Bar(0.97, 1.02), 1.021, False),
    ],
)
def test_a_bar_is_reached_from_its_own_side(bar: object, value: float, reached: bool) -> None:
    assert bar.reached(value) is reached  # type: ignore[attr-defined] # parametrize has no types


def test_a_section_of_lines_is_a_table_with_a_column_for_each_figure_and_the_bars_that_are_missed() -> None:
    found = Findings()
    bars = {"mean": Bar(0.97, 1.02), "silence": at_most(4)}
    found.add_line("java", "Kafka", {"mean": ("", [2.9]), "silence": ("s", [2.0])}, {})
    found.add_line("java", "1 proxy", {"mean": ("", [1.0, 1.01, 9.0]), "silence": ("s", [4.0])}, bars)
    found.add_line("java", "2 proxies", {"mean": ("", [1.023]), "silence": ("s", [4.5])}, bars)

    assert to_markdown({}, found).splitlines() == [
        "",
        "| java      | mean | silence, s | verdict                                              |",
        "| --------- | ---- | ---------- | ---------------------------------------------------- |",
        "| Kafka     | 2.9  | 2          |                                                      |",
        "| 1 proxy   | 1.01 | 4          | reached                                              |",
        "| 2 proxies | 1.02 | 4.5        | MISSED: mean 1.023 (0.97 to 1.02), silence 4.5 (≤ 4) |",
    ]
    assert [line["verdict"] for line in json.loads(to_json({}, found))["lines"]][:2] == ["", "reached"]


class Runs:
    """Runs of two sides; the compiler of one has nothing to do, that of the other one has spent these seconds."""

    def __init__(self, *compiler_s: float) -> None:
        self.taken = 0
        self._compiler_s = compiler_s

    def __call__(self, number: int) -> dict[str, Json]:
        assert number == self.taken
        self.taken += 1
        spent_s = self._compiler_s[min(number, len(self._compiler_s) - 1)]
        return {"copy": {"number": number, "compiler_cpu_s": 0.0}, "enforce": {"compiler_cpu_s": spent_s}}


def counted(scale: Scale, runs: Runs) -> list[int]:
    return [run["copy"]["number"] for run in counted_runs(scale, runs)]


def test_runs_count_once_java_compiles_for_less_than_5_microseconds_a_request_on_both_sides() -> None:
    runs = Runs(20.0, 2.6, 2.4, 20.0)  # seconds for the 500 000 requests of a run

    assert counted(Scale(runs=2), runs) == [3, 4]
    assert runs.taken == 5


def test_runs_count_after_150_micro_batches_however_long_java_compiles() -> None:
    assert counted(Scale(runs=1), Runs(20.0)) == [30]


def test_a_quick_bench_takes_one_run_that_does_not_count_and_does_not_wait_for_java() -> None:
    assert counted(Scale(quick=True, runs=2), Runs(20.0)) == [1, 2]
