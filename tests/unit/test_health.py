"""What the job answers to those who watch it."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streaming.errors import HealthError
from streaming.health import HealthServer, JobHealth
from streaming.supervision import QueryState

RUNNING = QueryState("running")
BATCH = {"query": "enforce", "batch_ms": 240, "events": 7, "lag": 5}


@pytest.fixture
def health() -> JobHealth:
    return JobHealth()


@pytest.fixture
def server(health: JobHealth) -> Iterator[HealthServer]:
    server = HealthServer(health, 0)
    server.start()
    yield server
    server.stop()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_starting_job_is_alive_and_not_ready(server: HealthServer) -> None:
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/readyz")[0] == 503


def test_a_job_is_ready_while_requests_are_decided(server: HealthServer, health: JobHealth) -> None:
    """The audit query may be behind: gateways get their decisions without it; the answer says why."""
    health.beat({"enforce": RUNNING, "audit": QueryState("backing off", 3, 4, "disk")}, 1)
    status, body = get(server, "/readyz")

    assert status == 200
    assert json.loads(body)["queries"]["audit"] == {"state": "backing off", "restarts": 3, "reason": "disk"}

    health.beat({"enforce": QueryState("backing off"), "audit": RUNNING}, 1)
    assert get(server, "/readyz")[0] == 503


def test_a_job_without_a_heartbeat_is_dead(
    server: HealthServer, health: JobHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    health.beat({"enforce": RUNNING}, 1)
    monkeypatch.setattr("streaming.health._HEARTBEAT_SECONDS", 0.0)

    assert get(server, "/healthz")[0] == 503
    assert get(server, "/readyz")[0] == 503


def test_metrics_are_prometheus_text(server: HealthServer, health: JobHealth) -> None:
    health.batch(BATCH)
    health.batch(BATCH)
    health.beat({"enforce": RUNNING, "audit": QueryState("backing off", 3)}, 12)

    values = {
        (sample.name, sample.labels.get("query")): sample.value
        for family in text_string_to_metric_families(get(server, "/metrics")[1])
        for sample in family.samples
    }

    expected: dict[Any, Any] = {
        ("sluice_events_total", "enforce"): 14,
        ("sluice_lag_events", "enforce"): 5,
        ("sluice_batch_seconds_count", "enforce"): 2,
        ("sluice_batch_seconds_sum", "enforce"): pytest.approx(0.48),
        ("sluice_query_up", "enforce"): 1,
        ("sluice_query_up", "audit"): 0,
        ("sluice_query_restarts", "audit"): 3,
        ("sluice_quota_version", None): 12,
    }
    assert {key: values[key] for key in expected} == expected


def test_another_path_is_named(server: HealthServer) -> None:
    assert get(server, "/")[0] == 404


def test_a_taken_port_is_said_in_one_line(server: HealthServer, health: JobHealth) -> None:
    with pytest.raises(HealthError, match=f"can't listen on 127.0.0.1:{server.port} .*health.port"):
        HealthServer(health, server.port)
