"""The job that most tests of a whole job share."""

from collections.abc import Iterator

import pytest

from sluice_proxy.processes import free_ports
from tests.integration.job_process import AUDITED, GENERATED_CODE, SMALL_ARROW_BATCHES, JobProcess

SHARED_QUOTAS = [
    {"entity": {"user": "kip599"}, "quotas": {"controller_mutation_rate": 5}},
    {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 1, "request_percentage": 1}},
    {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": 100, "consumer_byte_rate": 100}},
    {"entity": {"topic": "orders"}, "quotas": {"producer.byte.rate": 50}},
    {"entity": {"user": "greedy"}, "quotas": {"controller_mutation_rate": 10}},
    {"entity": {"user": "producer"}, "quotas": {"producer_byte_rate": 1_000_000}},
    {"entity": {"user": "long-wait"}, "quotas": {"producer_byte_rate": 10}},
]


@pytest.fixture(scope="session")
def shared_job(kafka_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    """One running job; a test that shares it has users of its own, and counts from what was there before.

    It accepts events from clocks that run ahead by ten minutes. Rows of a page and parts of a group come in several of
    Arrow's batches, as they do in production once a micro-batch is large.
    """
    job = JobProcess(
        tmp_path_factory.mktemp("shared"),
        kafka_broker,
        SHARED_QUOTAS,
        quota={"controller.quota.window.num": 100},
        audit=AUDITED,
        enforce={"max_future_ms": 3_000_000},  # for the clocks of gateways that run fast until a busy machine is done
        health={"port": free_ports(1)[0]},
        spark=GENERATED_CODE | SMALL_ARROW_BATCHES,
    )
    job.start()
    yield job
    job.stop()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The shared job ends after its last test: until the end of all tests it would take a fifth of a core."""
    job = getattr(item, "funcargs", {}).get("shared_job")
    if job is not None and "shared_job" not in getattr(nextitem, "fixturenames", ()):
        job.stop()
