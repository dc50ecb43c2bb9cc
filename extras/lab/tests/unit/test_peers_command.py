"""`./scripts/test-peers kafka`: what it reads out of a report, and what it refuses."""

from pathlib import Path

import pytest

from sluice_lab.scenarios.peers.kafka_tests import PASSED, Side, read_outcomes, report

REPORT = """<testsuite>
<testcase name="testThrottled(String)[1]" classname="sluice.tests.UserQuotaTest"/>
<testcase name="testThrottled(String)[2]" classname="sluice.tests.UserQuotaTest">
  <failure message="expected: &lt;8000&gt;&#10;but was: &lt;4000&gt;"/>
</testcase>
<testcase name="testThrottled(String)[3]" classname="sluice.tests.UserQuotaTest"/>
<testcase name="testDelete(String)[1]" classname="sluice.tests.UserQuotaTest"><skipped/></testcase>
<testcase name="testDelete(String)[2]" classname="sluice.tests.UserQuotaTest"/>
<testcase name="testOnZooKeeperAlone()" classname="sluice.tests.UserQuotaTest"><skipped/></testcase>
</testsuite>"""


def test_a_test_fails_if_it_does_with_any_of_its_parameters_and_what_was_skipped_is_no_test(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)

    assert read_outcomes(report) == {
        "UserQuotaTest.testThrottled": "expected: <8000>",
        "UserQuotaTest.testDelete": PASSED,
    }


@pytest.mark.parametrize(
    ("of_kafka", "code", "said"),
    [
        (
            {"A.slow": "too slow", "A.quick": "too quick"},
            0,
            "A.slow fails on 4.3 plugin, and on nodes of Kafka alone as well",
        ),
        ({"A.slow": PASSED, "A.quick": PASSED}, 1, "A.slow fails on 4.3 plugin\n"),
        ({}, 1, "A.slow fails on 4.3 plugin\n"),
    ],
)
def test_a_fault_that_kafka_alone_has_as_well_is_said_and_fails_nothing(
    of_kafka: dict[str, str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {Side.KAFKA: of_kafka, Side.PLUGIN: {"A.slow": "too slow", "A.quick": PASSED}}

    assert report({"4.3": found}) == code
    assert said in capsys.readouterr().out
