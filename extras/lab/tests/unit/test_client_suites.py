"""Output of clients' own tests, and when their lane fails."""

import sys
from pathlib import Path

import pytest

from sluice_lab.scenarios.peers.suite import Outcome, Outcomes, SuiteError, run_go
from sluice_lab.scenarios.peers.suites import Route, passes_as_well

OUTPUT = """=== RUN   TestPing
--- PASS: TestPing (0.03s)
=== RUN   TestShareGroup
    share_test.go:35: no share groups
--- SKIP: TestShareGroup (0.10s)
    --- PASS: TestTxnEtl/inner (1.00s)
--- FAIL: TestTxnEtl (12.50s)
FAIL
"""


def outcomes(**texts: str) -> Outcomes:
    return {name: Outcome(text, 1.0) for name, text in texts.items()}


def prints(text: str) -> list[str]:
    return [sys.executable, "-c", f"print({text!r})"]


def test_each_test_of_a_go_program_has_its_outcome_and_time(tmp_path: Path) -> None:
    assert run_go(prints(OUTPUT), tmp_path, {}, tmp_path / "log") == {
        "TestPing": Outcome("passed", 0.03),
        "TestShareGroup": Outcome("skipped", 0.1),
        "TestTxnEtl": Outcome("failed", 12.5),
    }


def test_a_go_program_that_runs_no_test_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no test has run: panic: no brokers; all of it: "):
        run_go(prints("panic: no brokers"), tmp_path, {}, tmp_path / "log")


@pytest.mark.parametrize(
    ("direct", "through", "passes"),
    [
        (outcomes(a="passed", b="failed"), outcomes(a="passed", b="failed"), True),
        (outcomes(a="passed", b="failed"), outcomes(a="passed", b="passed"), True),
        (outcomes(a="passed"), outcomes(a="skipped"), True),
        (outcomes(a="passed"), outcomes(a="failed"), False),
        (outcomes(a="passed"), outcomes(), False),
        (outcomes(a="failed"), outcomes(a="failed"), False),
    ],
)
def test_a_suite_fails_if_a_test_that_passes_direct_fails_through_the_proxy(
    direct: Outcomes, through: Outcomes, passes: bool
) -> None:
    assert passes_as_well({Route.DIRECT: direct, Route.PROXY: through}) is passes


def test_a_failure_that_is_expected_through_the_proxy_is_no_failure_of_the_lane() -> None:
    found = {Route.DIRECT: outcomes(a="passed", b="passed"), Route.PROXY: outcomes(a="failed", b="passed")}

    assert passes_as_well(found, ["a"])
    assert not passes_as_well(found, ["b"])
