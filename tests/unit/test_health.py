"""Health checks and metrics over HTTP."""

import http.client
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.process.clock import now_ms
from sluice.process.errors import ListenError
from sluice.process.http_server import HttpServer
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.store.pages import Evicted
from sluice.state.troubles import KNOWN, Facts, Flow, troubles_of
from sluice.streaming.queries.reasons import Place, QueryState, RunState
from sluice.streaming.runtime.health import MAX_CONNECTIONS, JobHealth, health_server
from sluice_reading.job_probe import JobProbe
from tests.web import answer_of

RUNNING = QueryState(RunState.RUNNING)
PATIENCE_S = 60.0
"""No answer takes that long on a busy machine."""

HAS_IPV6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists()
BATCH = {"query": "enforce", "batch_ms": 240, "events": 7, "lag": 5}


@pytest.fixture
def health() -> JobHealth:
    return JobHealth("enforce", stalled_after_s=600)


@contextmanager
def serving(health: JobHealth, *address: str) -> Iterator[HttpServer]:
    server = health_server(health, 0, *address)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def server(health: JobHealth) -> Iterator[HttpServer]:
    with serving(health) as server:
        yield server


def get(server: HttpServer, path: str) -> tuple[int, str]:
    return answer_of(server.port, path)


def test_a_job_whose_query_is_stuck_is_dead(server: HttpServer, health: JobHealth) -> None:
    health.heartbeat({"enforce": RUNNING}, 1, quiet_s=599)
    assert get(server, "/healthz")[0] == 200

    health.heartbeat({"enforce": RUNNING}, 1, quiet_s=600)
    status, body = get(server, "/healthz")
    assert status == 503
    assert json.loads(body)["reason"] == "query enforce is stuck: no micro-batch has ended for 600 s"
    assert get(server, "/readyz")[0] == 503


def test_a_job_that_may_not_decide_is_alive_and_not_ready(server: HttpServer, health: JobHealth) -> None:
    """Spark calls its query active, while each micro-batch waits for the lease."""
    health.heartbeat({"enforce": RUNNING, "audit": RUNNING}, 1, waits_for="waiting for a heartbeat")

    assert get(server, "/healthz")[0] == 200
    status, body = get(server, "/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "waiting for a heartbeat")
    metrics = get(server, "/metrics")[1]
    assert 'sluice_query_up{query="enforce"} 0.0' in metrics
    assert 'sluice_query_up{query="audit"} 1.0' in metrics


@pytest.mark.parametrize(("state", "stalled_after_s"), [(RunState.BACKING_OFF, 600), (RunState.RUNNING, 0)])
def test_a_query_that_waits_for_its_next_start_or_has_no_limit_is_not_stuck(
    state: RunState, stalled_after_s: int
) -> None:
    health = JobHealth("enforce", stalled_after_s=stalled_after_s)
    health.heartbeat({"enforce": QueryState(state)}, 1, quiet_s=10_000)
    assert health.alive()


def test_a_job_is_ready_while_requests_are_decided(server: HttpServer, health: JobHealth) -> None:
    """The audit query may be behind: gateways get their decisions without it; the body says why."""
    health.heartbeat({"enforce": RUNNING, "audit": QueryState(RunState.BACKING_OFF, 3, 4, "disk")}, 1)
    status, body = get(server, "/readyz")

    assert status == 200
    audit = {"state": "backing off", "restarts": 3, "reason": "disk", "place": None}
    assert json.loads(body)["queries"]["audit"] == audit

    health.heartbeat({"enforce": QueryState(RunState.BACKING_OFF), "audit": RUNNING}, 1)
    assert get(server, "/readyz")[0] == 503


def test_readyz_says_why_the_job_isnt_ready(server: HttpServer, health: JobHealth) -> None:
    """The reason is the phase of the start or stop, or the state of the required query."""
    reasons = []
    for phase, queries in (
        ("waiting for the broker", {}),
        (None, {"enforce": RUNNING}),
        (None, {"enforce": QueryState(RunState.BACKING_OFF, 1, 1, "no broker")}),
        ("stopping", {"enforce": RUNNING}),
    ):
        health.report_phase(phase)
        health.heartbeat(queries, 1)
        status, body = get(server, "/readyz")
        reasons.append((status, json.loads(body)["reason"]))

    assert reasons == [
        (503, "waiting for the broker"),
        (200, None),
        (503, "query enforce is backing off: no broker"),
        (503, "stopping"),
    ]


def test_a_job_without_a_heartbeat_is_dead_unless_it_stops(
    server: HttpServer, health: JobHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be killed in its last micro-batch."""
    health.heartbeat({"enforce": RUNNING}, 1)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 30)
    monkeypatch.setattr("sluice.streaming.runtime.health.time", later)
    assert [get(server, path)[0] for path in ("/healthz", "/readyz")] == [503, 503]

    health.report_phase("stopping")
    assert get(server, "/healthz")[0] == 200


def test_a_job_that_starts_is_alive_without_a_reason_and_its_query_is_down(server: HttpServer) -> None:
    """That it isn't ready is the other path's answer. An alert on 0 doesn't see a metric that is missing."""
    assert [get(server, path)[0] for path in ("/healthz", "/readyz")] == [200, 503]
    assert json.loads(get(server, "/healthz")[1])["reason"] is None
    assert '\nsluice_query_up{query="enforce"} 0.0\n' in get(server, "/metrics")[1]
    assert get(server, "/")[0] == 404


def test_a_mirror_of_the_clusters_quotas_is_in_the_body_and_the_metrics(server: HttpServer, health: JobHealth) -> None:
    """The job is ready without it; a job that mirrors nothing has no value that an alert on 0 could see."""
    health.heartbeat({"enforce": RUNNING}, 1)
    assert json.loads(get(server, "/readyz")[1])["quota_mirror"] is None
    assert "\nsluice_quota_mirror_up" not in get(server, "/metrics")[1]

    health.report_mirror("no broker", 2)

    status, body = get(server, "/readyz")
    assert status == 200
    assert json.loads(body)["quota_mirror"] == {"ok": False, "reason": "no broker", "left_out": 2}
    metrics = get(server, "/metrics")[1]
    assert '\nsluice_quota_mirror_up{source="kafka"} 0.0\n' in metrics
    assert '\nsluice_quotas_left_out{source="kafka"} 2.0\n' in metrics
    health.report_mirror(None, 0)
    assert '\nsluice_quota_mirror_up{source="kafka"} 1.0\n' in get(server, "/metrics")[1]


def test_readyz_names_topic_partition_and_offset_of_what_ended_a_query(server: HttpServer, health: JobHealth) -> None:
    ended = QueryState(RunState.GIVEN_UP, 0, 1, "lost", Place("requests", 3, 700))
    health.heartbeat({"enforce": ended, "audit": replace(ended, place=Place(page=5))}, 1)

    queries = json.loads(get(server, "/readyz")[1])["queries"]

    assert queries["enforce"]["place"] == {"topic": "requests", "partition": 3, "offset": 700}
    assert queries["audit"]["place"] == {"page": 5}


def test_decisions_of_other_jobs_are_in_the_body_and_a_metric(server: HttpServer, health: JobHealth) -> None:
    health.heartbeat({"enforce": RUNNING}, 1)
    health.report_foreign(7, ["other"])

    status, body = get(server, "/readyz")

    assert status == 200
    assert json.loads(body)["foreign_decisions"] == {"count": 7, "jobs": ["other"]}
    assert "\nsluice_foreign_decisions 7.0\n" in get(server, "/metrics")[1]


def test_another_job_that_was_stopped_is_no_trouble_five_minutes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    job, now = JobHealth("enforce", stalled_after_s=0), [1_000.0]
    with monkeypatch.context() as context:
        context.setattr(time, "monotonic", lambda: now[0])
        for count, now[0], seen in ((2, 1_000.0, 1), (2, 1_299.0, 1), (2, 1_300.0, 0), (3, 1_300.0, 1)):
            job.report_foreign(count, ["another"])
            assert [each.name for each in job.troubles()].count("foreign_decisions") == seen


def test_dead_letters_since_the_start_and_known_entities_are_metrics(server: HttpServer, health: JobHealth) -> None:
    for count in (2, 0, 3):
        health.count_dead_letters(count)
    health.report_known(12, Evicted(at_rest=3, owing=1), 2)
    health.report_native(missing=True)

    metrics = get(server, "/metrics")[1]
    for line in (
        "sluice_dead_letters_total 5.0",
        "sluice_known_entities 12.0",
        'sluice_evicted_entities{kind="at_rest"} 3.0',
        'sluice_evicted_entities{kind="owing"} 1.0',
        "sluice_dropped_records 2.0",
        "sluice_native_missing 1.0",
    ):
        assert f"\n{line}\n" in metrics


def test_metrics_are_prometheus_text(server: HttpServer, health: JobHealth) -> None:
    health.count_batch(BATCH)
    health.count_batch(BATCH)
    health.heartbeat({"enforce": RUNNING, "audit": QueryState(RunState.BACKING_OFF, 3)}, 12)

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


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/readyz", 503), ("/metrics", 200)])
def test_a_probe_may_ask_for_the_head_alone(server: HttpServer, path: str, status: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.request("HEAD", path)
    answer = connection.getresponse()

    assert (answer.status, answer.read(), answer.headers["Server"]) == (status, b"", "sluice")
    connection.close()


def test_a_taken_port_is_said_in_one_line(server: HttpServer, health: JobHealth) -> None:
    with pytest.raises(
        ListenError, match=rf"can't listen on 127\.0\.0\.1:{server.port} .*health\.port.*health\.address"
    ):
        health_server(health, server.port)


@pytest.mark.parametrize("address", ["203.0.113.7", "no.such.host.invalid", "127.0.0.1:9464", "::g", ""])
def test_an_address_of_another_machine_is_said_in_one_line(health: JobHealth, address: str) -> None:
    with pytest.raises(ListenError, match=r"can't listen on .*health\.port.*health\.address.*127\.0\.0\.1.*0\.0\.0\.0"):
        health_server(health, 0, address)


def test_by_default_only_this_machine_is_answered(health: JobHealth) -> None:
    """127.0.0.2 is this machine too, by an address the server doesn't listen on."""
    with serving(health) as server, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("listens", "asked"),
    [("0.0.0.0", "127.0.0.2"), pytest.param("::1", "[::1]", marks=pytest.mark.skipif(not HAS_IPV6, reason="no IPv6"))],  # noqa: S104 # what is tested
)
def test_an_open_or_an_ipv6_address_answers(health: JobHealth, listens: str, asked: str) -> None:
    with (
        serving(health, listens) as server,
        urllib.request.urlopen(f"http://{asked}:{server.port}/healthz", timeout=PATIENCE_S) as answer,
    ):
        assert answer.status == 200


def test_a_caller_that_sends_byte_by_byte_is_cut_off(
    health: JobHealth, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A slow caller can't hold a connection, and doesn't make the job write tracebacks."""
    monkeypatch.setattr("sluice.process.http_server.READ_TIMEOUT_S", 0.3)
    start_s = time.monotonic()
    with (
        serving(health) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as caller,
        suppress(OSError),
    ):
        while time.monotonic() - start_s < PATIENCE_S:
            caller.sendall(b"G")
            time.sleep(0.05)
    assert time.monotonic() - start_s < PATIENCE_S, "it could go on for ever"
    assert capfd.readouterr().err == ""


def test_idle_connections_keep_no_probe_out_and_hold_no_threads(server: HttpServer) -> None:
    """A connection beyond the bound closes the connection that has been idle for longest."""
    threads = threading.active_count()
    with ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S))
            for _ in range(4 * MAX_CONNECTIONS)
        ]
        assert get(server, "/healthz")[0] == 200
        assert threading.active_count() - threads <= MAX_CONNECTIONS
        assert idle[0].recv(1) == b""
    assert get(server, "/healthz")[0] == 200


def test_a_job_that_starts_says_so_until_its_first_micro_batch(
    server: HttpServer, health: JobHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that wait are a failure after it, or if it doesn't come: viewers hear both from its answer."""
    facts = Facts(flow=Flow(now_ms(), now_ms() - 145_000, 7))
    health.report_facts(lambda: facts)
    probe = JobProbe(f"http://127.0.0.1:{server.port}")

    def found() -> list[str]:
        probe.ask()
        of_viewer = [each.name for each in troubles_of(replace(facts, job=probe.seen(is_locked=True)), now_ms())]
        metrics = get(server, "/metrics")[1]
        in_metrics = [name for name, each in KNOWN.items() if f'name="{name}",severity="{each[0]}"}} 1.0' in metrics]
        assert of_viewer == troubles_in(server, "/readyz") == troubles_in(server, "/healthz") == in_metrics
        return of_viewer

    health.report_step("waiting for the queries to start")
    assert found() == ["starting"]
    health.report_phase(None)
    health.heartbeat({"enforce": RUNNING}, 1)
    health.count_batch(BATCH | {"query": "audit"})
    assert found() == ["starting"]
    with monkeypatch.context() as later:
        later.setattr("sluice.state.troubles.START_MS", 0)
        assert found() == ["decisions_stale"], "it doesn't start for ever"
    health.count_batch(BATCH)
    assert found() == ["decisions_stale"]
    health.report_step("waiting for the queries to start")
    health.report_phase("stopping")
    assert found() == ["decisions_stale"], "a job that stops doesn't start"


def troubles_in(server: HttpServer, path: str) -> list[str]:
    return [each["name"] for each in json.loads(get(server, path)[1])["troubles"]]


def test_both_probes_and_the_metrics_have_what_is_wrong_now_until_it_ends(
    server: HttpServer, health: JobHealth
) -> None:
    """A name that isn't there is 0 in the metrics: an alert must see the end."""
    backing_off = QueryState(RunState.BACKING_OFF, 1, 1, "no room")
    health.heartbeat({"enforce": RUNNING, "audit": backing_off}, 1)
    health.report_input("holds", "no table")
    health.report_mirror("no rights", 0)
    health.report_foreign(2, ["another"])
    health.report_native(missing=True)
    hold = Override("hold", reason="eve: it floods")
    health.report_facts(lambda: Facts(overrides={"operator": Overrides(1, now_ms(), 60_000, [hold])}))
    there = ["foreign_decisions", "audit_down", "hold", "input_unreadable", "mirror_down", "native_missing"]

    assert troubles_in(server, "/healthz") == troubles_in(server, "/readyz") == there
    (audit,) = (each for each in json.loads(get(server, "/readyz")[1])["troubles"] if each["name"] == "audit_down")
    assert audit["text"] == "query audit is backing off: no room"
    metrics = get(server, "/metrics")[1]
    for name, severities in KNOWN.items():
        for severity in severities:
            assert f'sluice_trouble{{name="{name}",severity="{severity}"}} {float(name in there)}' in metrics

    health.heartbeat({"enforce": RUNNING, "audit": RUNNING}, 1)
    assert "audit_down" not in troubles_in(server, "/readyz")


@pytest.mark.parametrize(
    ("queries", "more", "words"),
    [
        ({"enforce": QueryState(RunState.BACKING_OFF, 1, 1, "no room")}, {}, "query enforce is backing off: no room"),
        ({"enforce": QueryState(RunState.RETRYING, 1, 1, "no room")}, {}, "query enforce is trying again: no room"),
        ({"enforce": RUNNING}, {"waits_for": "waiting for a heartbeat"}, "decides nothing: waiting for a heartbeat"),
        ({"enforce": RUNNING}, {"quiet_s": 600.0}, "decides nothing: query enforce is stuck"),
    ],
)
def test_a_job_that_decides_nothing_is_a_trouble_in_the_words_of_its_probe(
    health: JobHealth, queries: dict[str, QueryState], more: dict[str, Any], words: str
) -> None:
    health.heartbeat(queries, 1, **more)

    (trouble,) = health.troubles()
    assert trouble.name == "enforce_down"
    assert words in trouble.line

    health.report_phase("stopping")
    assert health.troubles() == [], "a job that starts or stops is none"
