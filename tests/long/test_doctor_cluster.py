"""`sluice doctor --cluster` beside a real broker; with a local master the executor is the driver itself."""

from pathlib import Path

import pytest

from tests.commands import run_sluice
from tests.integration.job_process import JobProcess

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]


def test_the_executors_are_asked_and_each_finding_is_a_line(kafka_broker: str, tmp_path: Path) -> None:
    job = JobProcess(tmp_path / "job", kafka_broker, [])

    done = run_sluice("doctor", "--cluster", "--config", job.settings_file)

    findings = {line[6:].partition(":")[0]: line for line in done.output.splitlines()}
    assert findings["executors"].startswith("ok    executors: 1 answered: ")
    assert findings["executors to broker"] == "ok    executors to broker: all 1 executors store records"
    assert findings["executors to storage"].startswith("ok    executors to storage: all 1 executors read ")
    assert findings["python of executors"].startswith("ok    python of executors: 3.")
    assert findings["clocks"].startswith("ok    clocks: ")
