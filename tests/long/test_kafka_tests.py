"""Kafka's own quota tests pass on nodes with the plugin, and with a job: a part of `./scripts/test-peers kafka`.

The lane has all classes and releases, and nodes of Kafka alone. Classes that produce until they are throttled are left
to it: they fail on a machine that is slower than their quota, without Sluice too.
"""

from pathlib import Path

import pytest

from scripts.scenarios.peers.kafka_tests import PASSED, RELEASES, Side, run_kafka_tests

pytestmark = pytest.mark.kafka

MUTATIONS = ["ControllerMutationQuotaTest"]


@pytest.mark.parametrize("release", [min(RELEASES), max(RELEASES)])
def test_kafkas_own_tests_of_mutation_quotas_pass_with_the_plugin(tmp_path: Path, release: str) -> None:
    outcomes = run_kafka_tests(tmp_path / release, release, Side.PLUGIN, MUTATIONS)

    assert list(outcomes.values()) == [PASSED] * 11, outcomes


@pytest.mark.spark
def test_kafkas_own_tests_of_mutation_quotas_pass_with_a_job_in_force(tmp_path: Path) -> None:
    tests = "(testSetUnsetQuota|testQuotaMetric|testStrictCreateTopicsRequest)"

    outcomes = run_kafka_tests(tmp_path / "job", max(RELEASES), Side.JOB, MUTATIONS, tests)

    assert list(outcomes.values()) == [PASSED] * 3, outcomes
