"""Kafka's own quota tests pass on nodes with the plugin, and with a job: a part of `./scripts/test-peers kafka`.

The lane has all classes and releases, and nodes of Kafka alone. Tests that a busy machine fails without Sluice too are
left to it: classes that produce until they are throttled, and tests that wait for 15 s at most until a quota lets them
go on.
"""

from pathlib import Path

import pytest

from sluice_lab.scenarios.peers.kafka_tests import PASSED, RELEASES, Side, run_kafka_tests

pytestmark = pytest.mark.kafka

MUTATIONS = ["ControllerMutationQuotaTest"]

TESTS = r"(SetUnsetQuota|QuotaMetric|test(Unbounded|Permissive)\w+)"


@pytest.mark.parametrize("release", [min(RELEASES), max(RELEASES)])
def test_kafkas_own_tests_of_mutation_quotas_pass_with_the_plugin(tmp_path: Path, release: str) -> None:
    outcomes = run_kafka_tests(tmp_path / release, release, Side.PLUGIN, MUTATIONS, TESTS)

    assert list(outcomes.values()) == [PASSED] * 8, outcomes


@pytest.mark.spark
def test_kafkas_own_tests_of_mutation_quotas_pass_with_a_job_in_force(tmp_path: Path) -> None:
    tests = "(SetUnsetQuota|QuotaMetric|PermissiveCreateTopicsRequest)"

    outcomes = run_kafka_tests(tmp_path / "job", max(RELEASES), Side.JOB, MUTATIONS, tests)

    assert list(outcomes.values()) == [PASSED] * 3, outcomes
