"""Kafka's own quota tests pass on nodes with the plugin, and with a job: a part of `./scripts/test-peers kafka`."""

from pathlib import Path

import pytest

from scripts.scenarios.peers.kafka_tests import PASSED, RELEASES, Side, run_kafka_tests

pytestmark = pytest.mark.kafka

CLASSES = {"ClientIdQuotaTest": 5, "ControllerMutationQuotaTest": 11}
"""Short classes, and their numbers of tests; the lane has all classes and releases, and nodes of Kafka alone."""


@pytest.mark.parametrize("release", [min(RELEASES), max(RELEASES)])
def test_kafkas_own_quota_tests_pass_with_the_plugin(tmp_path: Path, release: str) -> None:
    outcomes = run_kafka_tests(tmp_path, release, Side.PLUGIN, list(CLASSES))

    assert set(outcomes.values()) == {PASSED}, outcomes
    assert len(outcomes) == sum(CLASSES.values())


@pytest.mark.spark
def test_kafkas_own_tests_of_mutation_quotas_pass_with_a_job_in_force(tmp_path: Path) -> None:
    outcomes = run_kafka_tests(tmp_path, max(RELEASES), Side.JOB, ["ControllerMutationQuotaTest"])

    assert set(outcomes.values()) == {PASSED}, outcomes
    assert len(outcomes) == CLASSES["ControllerMutationQuotaTest"]
