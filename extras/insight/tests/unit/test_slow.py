"""Why a client is slow: one cause of all that is known, by rules; the line of time, the command and the page."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console_facts import HOSTILE, facts_of
from recorded import SETTINGS, event_at, write_tables
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entity import QuotaEntity, Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice_insight.console.app import Pages
from sluice_insight.console.slow import KEPT_MS, SlowPage
from sluice_insight.live import read_decision
from sluice_insight.reports.span import Span
from sluice_insight.slow import sources
from sluice_insight.slow.line import LineOfTime, Telemetry, stops_of
from sluice_insight.slow.sources import Recorded, SlowReport, slow_client
from sluice_insight.slow.verdict import LEAST_SHARE, Broker, Cause, Evidence, Own, Wait, verdicts
from sluice_insight.slow.words import cells
from sluice_reading.query import Tables
from sluice_reading.times import to_ms
from tests.builders import decision, file_of, member, quota
from tests.commands import Ended, invoke

T = datetime(2026, 11, 2, 10, tzinfo=UTC)
T_MS = to_ms(T)
MINUTES = 10
LIMIT = quota(QuotaKind.PRODUCER_BYTE_RATE, 1e6, QuotaEntity(user="alice"))
UNTIL = ["--at", "2026-11-02T10:10Z", "--since", "10m"]

SHARES = st.floats(0, 1)
WAITS = st.builds(
    Wait,
    st.sampled_from(["producer_byte_rate", "request_percentage", "operator", "disk_guard", "stored_bytes", "newer"]),
    st.text(max_size=5),
    SHARES,
    SHARES,
    st.none() | st.floats(1, 1e9),
    st.none() | st.floats(0, 5),
    SHARES,
    st.text(max_size=5),
)
OWN = st.builds(
    Own,
    st.none() | st.floats(0, 1e5),
    st.none() | SHARES,
    SHARES,
    st.floats(0, 100),
    st.none() | st.floats(0, 1e6),
    st.floats(0, 1e4),
)
EVIDENCE = st.builds(
    Evidence,
    st.just(600_000),
    st.lists(WAITS, max_size=5),
    SHARES,
    st.lists(st.builds(Broker, st.just("broker 2"), SHARES, st.just("disk")), max_size=3),
    OWN,
    st.booleans(),
)


def cause(evidence: Evidence) -> Cause:
    return verdicts(evidence)[0].cause


@given(EVIDENCE, st.randoms())
def test_the_order_in_which_evidence_comes_changes_no_verdict(evidence: Evidence, random: Any) -> None:
    waits, brokers = list(evidence.waits), list(evidence.brokers)
    random.shuffle(waits)
    random.shuffle(brokers)
    assert verdicts(replace(evidence, waits=waits, brokers=brokers)) == verdicts(evidence)


@given(EVIDENCE)
def test_nothing_is_said_of_quotas_unless_somebody_waited_for_a_part_of_the_time_that_counts(
    evidence: Evidence,
) -> None:
    little = [replace(each, share=each.share * 0.09, last_minute=0.0) for each in evidence.waits]
    assert cause(replace(evidence, waits=little)) in (Cause.BROKER, Cause.CLIENT, Cause.NETWORK, Cause.NOTHING)
    assert all(each.share < LEAST_SHARE for each in little)


@given(EVIDENCE, st.sampled_from(["operator", "disk_guard", "stored_bytes", "producer_byte_rate"]))
def test_a_wait_of_the_whole_time_is_the_verdict_unless_an_earlier_cause_waited_for_half_of_it(
    evidence: Evidence, name: str
) -> None:
    whole = Wait(name, "x", 1.0, 1.0)
    found = cause(replace(evidence, waits=[*evidence.waits, whole]))
    half = {each.cause for each in evidence.waits if max(each.share, each.last_minute) >= 0.5} | {whole.cause}
    assert found == min(half, key=[*Cause].index)


@given(EVIDENCE)
def test_all_causes_are_there_in_their_order_and_nothing_stands_alone(evidence: Evidence) -> None:
    found = [each.cause for each in verdicts(evidence)]
    assert found == sorted(found, key=[*Cause].index)
    assert Cause.NOTHING not in found or found == [Cause.NOTHING]


def produces(at_s: float, wait_ms: int = 0, by: str = "producer_byte_rate", **said: Any) -> bytes:
    """A sum of a tenth of a second that broker 2 published, with the wait that was left."""
    waits = [{"quota": by, "entity": {"user": "alice"}, "ms": wait_ms}] if wait_ms else []
    own = {"gateway": "b", "instance": "b-2-0a1b2c3d", "throttled_by": waits, "bytes": 100_000, "requests": 5}
    api = said.pop("api", "Produce")
    return event_at(T + timedelta(seconds=at_s), "alice", api, **own | said)


def throttled(seconds: int, of_each_s: float, **said: Any) -> list[bytes]:
    """Requests of each second, which wait for a part of it."""
    return [produces(at_s, round(of_each_s * 1000), **said) for at_s in range(seconds)]


@pytest.fixture
def slow(here: Path) -> Callable[..., Ended]:
    """Write tables with these events, and ask why alice's client is slow, in a cluster that is away."""

    def ask(events: list[bytes], *options: str, code: int = 0, quotas: tuple[Any, ...] = (LIMIT,)) -> Ended:
        write_tables(here, list(quotas), events, T - timedelta(days=1))
        file = file_of(here / "settings.yaml", "kafka: {bootstrap.servers: '127.0.0.1:1'}")
        client = options or ("--user", "alice", "--client-id", "app")
        return invoke("explain", "--slow", *client, *UNTIL, "--config", file, code=code)

    return ask


def test_the_first_line_is_the_cause_and_the_table_has_each_half_minute(slow: Callable[..., Ended]) -> None:
    """88 % of each second: 528 s of ten minutes."""
    ended = slow(throttled(600, 0.88))
    first, client, near, columns, *rows = ended.output.splitlines()

    assert first.startswith("throttled by producer_byte_rate 1 MB/s of user 'alice', 88 % of the last 10 min (")
    assert first.endswith(" of the limit is in use): ask for a larger limit, or send less")
    assert client == "user 'alice' and client-id 'app', 2026-11-02 10:00:00 to 2026-11-02 10:10:00 UTC"
    assert near == "11 % of producer_byte_rate 1 MB/s of user 'alice' is in use"
    assert columns.split() == [
        *("TIME", "MOVED", "REQUESTS", "USED", "THROTTLED", "DECIDED", "BY", "CLIENT", "SAW", "BUSY", "BROKERS"),
    ]
    assert len(rows) == 21
    assert rows[0].split()[:7] == ["10:00:00", "100", "kB/s", "150", "11", "%", "88"]
    assert rows[-1].startswith("the client sends no telemetry")
    assert "sluice: topic sluice.client-telemetry can't be read: no Kafka broker answers at 127.0.0.1:1" in ended.error


def test_a_throttled_client_uses_its_limit_and_not_more_though_the_rate_passes_it_with_each_request(
    slow: Callable[..., Ended],
) -> None:
    said = slow([produces(at_s, 900, bytes=1_000_000) for at_s in range(600)]).output.splitlines()
    assert said[2] == "all of producer_byte_rate 1 MB/s of user 'alice' is in use"
    assert {row.split()[4] for row in said[5:24]} == {"100"}


def test_requests_without_bytes_moved_nothing(slow: Callable[..., Ended]) -> None:
    said = slow([produces(0, api="Metadata", bytes=None)]).output
    assert [line.split()[:3] for line in said.splitlines() if line.startswith("10:00:00")] == [["10:00:00", "—", "5"]]


def test_waits_of_a_few_seconds_are_normal(slow: Callable[..., Ended]) -> None:
    said = slow([produces(0, 9_000), *throttled(600, 0.0)[10:]]).output
    assert said.startswith("no cause is known: throttled 2 % of the last 10 min, as a client near its limit is")


def test_a_client_that_nobody_saw_has_exit_code_1(slow: Callable[..., Ended]) -> None:
    ended = slow([produces(0)], "--client-id", "nobody", code=1)
    assert ended.output.startswith("no request and no telemetry of it is known in the last 10 min: see whether")
    assert len(ended.output.splitlines()) == 1, "no table of empty rows"
    assert "sluice: no decision names client-id 'nobody'" in ended.error
    assert "sluice: no rows; " in ended.error


def test_a_hold_is_the_cause_though_its_client_also_owes_its_quota_and_sends_nothing_any_more(
    slow: Callable[..., Ended], here: Path
) -> None:
    hold = Override("hold", entity=CountedEntity(client_id="app"), reason="eve: it floods", consumers=True)
    table = OverridesTable(str(here / SETTINGS.delta.overrides), {})
    begin, end = Overrides(1, T_MS + 60_000, 600_000, [hold]), Overrides(2, T_MS + 540_000, 600_000)
    table.append([("operator", begin), ("operator", end)])
    said = slow(throttled(60, 0.9)).output

    assert said.startswith("stopped by an operator (eve: it floods), 80 % of the last 10 min: ask who did it\n")
    assert said.count("  operator  ") == 16  # of 20 half minutes
    assert said.count("operator, producer_byte_rate") == 0


def test_the_waits_for_mutations_that_a_controller_asks_for_are_told(slow: Callable[..., Ended]) -> None:
    limit = quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, QuotaEntity(client_id="app"))
    wait = {"quota": "controller_mutation_rate", "entity": {"client_id": "app"}, "ms": 19_000}
    told: dict[str, Any] = {"api": "Mutations", "mutations_charged": 20, "bytes": None, "throttled_by": [wait]}
    events = [produces(at_s, **told) for at_s in range(0, 600, 20)]
    said = slow(events, quotas=(limit,)).output
    assert said.startswith("throttled by controller_mutation_rate 1/s of client-id 'app', ")


def test_holds_of_days_that_overlap_count_once() -> None:
    """A wait that an event tells counts for an hour at most, a hold as long as it is in force."""
    tags, hours = Tags("alice", "app"), 3_600_000
    names = (CountedEntity(user="alice"), CountedEntity(client_id="app"), CountedEntity(client_id="other"))
    holds = [Override("hold", entity=each, reason="it floods", consumers=True) for each in names]
    span = Span(100 * hours, 110 * hours)
    said = [("operator", Overrides(1, 0, 1, holds)), ("operator", Overrides(2, 105 * hours, 1))]
    (wait,) = LineOfTime(span).ended((), stops_of(said, span, tags)).waits
    assert (wait.quota, wait.share, wait.last_minute) == ("operator", 0.5, 0.0)


def test_the_disk_guard_stops_producers_and_no_consumer(slow: Callable[..., Ended], here: Path) -> None:
    guard = Override("hold", reason="broker 2: /data has 1 of 100 bytes free")
    OverridesTable(str(here / SETTINGS.delta.overrides), {}).append(
        [("disk_guard", Overrides(1, T_MS, 60_000, [guard]))]
    )
    reads = [event_at(T + timedelta(seconds=at_s), "bob", "Fetch", bytes=9) for at_s in range(600)]
    events = [produces(at_s, 10_000, by="disk_guard") for at_s in range(0, 600, 10)]

    producer = slow([*events, *reads]).output
    client = ("--user", "bob")
    file = here / "settings.yaml"
    consumer = invoke("explain", "--slow", *client, *UNTIL, "--config", file).output
    assert producer.startswith("producers are stopped by the disk guard (broker 2: /data has 1 of 100 bytes free)")
    assert consumer.startswith("no cause is known")


def test_limits_that_gave_way_are_told_from_the_clients_own() -> None:
    tight = Wait("producer_byte_rate", "user 'alice'", 0.5, limit=1e6, tight=0.9, why="broker 2 was tightened")
    (found,) = verdicts(Evidence(600_000, [tight]))
    assert found.cause is Cause.TIGHTENED
    assert "as limits gave way (broker 2 was tightened): it ends with the load" in found.text


def said_by(kind: str, **metrics: float) -> Telemetry:
    return Telemetry(kind, T_MS + 5_000, "2", "i", "app", "alice", dict(metrics))


PAUSES = {"consumer.time.between.poll.avg": 9_000.0, "consumer.poll.idle.ratio.avg": 0.02}
REBALANCES = {"consumer.coordinator.rebalance.latency.total": 90_000.0}
MANY = {"consumer.coordinator.rebalance.latency.total": 6_000.0, "consumer.coordinator.rebalance.total": 20.0}
SHORT = MANY | {"consumer.coordinator.rebalance.latency.total": 600.0}
MANY_OF_LIBRDKAFKA = {"consumer.coordinator.rebalance.latency.total": 300.0}
NEAR = {"request_queue_ms_p99": 1.0, "local_ms_p99.Produce": 3.0}


def test_the_disk_that_writes_wait_for_is_no_cause_for_a_consumer() -> None:
    """The p99 of reads is its own."""
    span, said = Span(T_MS, T_MS + 60_000), list[list[str]]()
    for api in ("Fetch", "Produce"):
        for slow_part in ("log_flush_ms_p99", "local_ms_p99.Produce", "local_ms_p99.FetchConsumer"):
            line = LineOfTime(span)
            line.take(read_decision(json.dumps(decision(T_MS, api=api, gateway="b", instance="b-2-0a1b2c3d")).encode()))
            said.append([each.signal for each in line.ended([said_by("broker", **{slow_part: 900.0})]).brokers])
    of_writes, of_reads = "disk (99 % of writes take up to 900 ms)", "disk (99 % of reads take up to 900 ms)"
    assert said == [[""], [""], [of_reads], [of_writes], [of_writes], [""]]


def test_a_broker_that_was_busy_before_the_client_began_is_no_cause() -> None:
    line = LineOfTime(Span(T_MS - 600_000, T_MS + 60_000))
    line.take(read_decision(json.dumps(decision(T_MS, gateway="b", instance="b-2-0a1b2c3d")).encode()))
    before = msgspec.structs.replace(said_by("broker", log_flush_ms_p99=900.0), at_ms=T_MS - 300_000)
    evidence = line.ended([before, said_by("broker", log_flush_ms_p99=1.0)])
    assert [(each.busy, each.signal) for each in evidence.brokers] == [(0.0, "")]
    assert evidence.seen_ms <= 60_000 + line.step


def test_a_busy_broker_is_no_cause_of_a_time_that_is_ten_times_its_own() -> None:
    disk = Broker("broker 2", 0.9, "disk")
    times = [(180.0, 20.0), (180.0, 10.0), (50.0, 1.0)]
    found = [Evidence(600_000, (), 0, [disk], Own(latency_ms=took, broker_ms=of_it)) for took, of_it in times]
    assert [cause(each) for each in found] == [Cause.BROKER, Cause.NETWORK, Cause.BROKER]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([said_by("client", **PAUSES)], "not by the cluster: the consumer polled every 9.0 s"),
        (
            [said_by("client", **{"consumer.poll.idle.ratio.avg": 0.03})],
            "the consumer's own work takes 97 % of its time",
        ),
        ([said_by("client", **REBALANCES)], "its group rebalanced 0.1 times a minute, 15 % of the time"),
        ([said_by("client", **MANY)], "its group rebalanced 2.0 times a minute, 1 % of the time"),
        ([said_by("client", **SHORT)], "its group rebalanced 2.0 times a minute, less than 1 % of the time"),
        ([said_by("client", **MANY_OF_LIBRDKAFKA)] * 20, "its group rebalanced 2.0 times a minute, 1 % of the time"),
        ([said_by("broker", request_queue_ms_p99=640.0)], "not by quotas: broker 2's request queue (99 % wait up to"),
        ([said_by("broker", log_flush_ms_p99=900.0)], "broker 2's disk (99 % of writes take up to 900 ms)"),
        (
            [said_by("client", **{"producer.request.latency.avg": 180.0}), said_by("broker", **NEAR)],
            "not by quotas or brokers: a request takes 180 ms, of which the broker has 4 ms",
        ),
    ],
)
def test_the_page_says_what_client_and_brokers_saw(here: Path, records: list[Telemetry], said: str) -> None:
    tables = write_tables(here, [LIMIT], throttled(60, 0.0), T - timedelta(days=1))
    page = SlowPage(Recorded(tables, str(here / "overrides")))
    for each in records:
        page.heard.take(None, msgspec.json.encode(each))
    page.heard.take(None, b"garbage")
    facts = replace(facts_of(clock=lambda: T_MS + 600_000), slow=page)

    shown = Pages(facts).page("slow", {"user": "alice", "client_id": "app"}, "")

    assert said in shown.replace("&#39;", "'")


@pytest.mark.parametrize(
    ("metrics", "saw"),
    [
        (PAUSES, "polled every 9.0 s, own work 98 %"),
        ({"consumer.poll.idle.ratio.avg": 0.0}, "own work 100 %"),
        (MANY, "rebalanced"),
        ({"producer.produce.throttle.time.avg": 0.0, "producer.request.latency.avg": 9.0}, "latency 9 ms"),
    ],
)
def test_a_row_has_what_the_client_saw(metrics: dict[str, float], saw: str) -> None:
    line = LineOfTime(Span(T_MS, T_MS + 60_000))
    line.ended([said_by("client", **metrics)])
    assert [cells(row, line.step)[-2] for row in line.rows[:2]] == [saw, "—"]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name[:20]))
def test_a_name_can_neither_act_on_the_page_nor_leave_its_place_in_the_query(here: Path, name: str) -> None:
    tables = write_tables(here, [LIMIT], [produces(1)], T - timedelta(days=1))
    page = SlowPage(Recorded(tables, str(here / "overrides")))
    facts = replace(facts_of(clock=lambda: T_MS + 600_000), slow=page)
    for asked in (name, f"{name}' OR '1'='1"):
        shown = Pages(facts).page("slow", {"user": asked, "client_id": asked}, "")
        assert "no request and no telemetry of it is known" in shown
        assert "<script>document" not in shown
        assert "<img" not in shown.partition("<main>")[2]


def test_an_answer_is_kept_for_a_moment_as_a_page_is_renewed_each_second(here: Path) -> None:
    tables = write_tables(here, [LIMIT, member("shop", user="alice")], throttled(60, 0.9), T - timedelta(days=1))
    page = SlowPage(Recorded(tables, str(here / "overrides")))
    asked = page.of({"user": "alice"}, T_MS + 60_000)["answer"]

    assert page.of({"user": "alice"}, T_MS + 60_000 + KEPT_MS - 1)["answer"] is asked
    assert page.of({"user": "alice"}, T_MS + 60_000 + KEPT_MS)["answer"] is not asked
    assert isinstance(asked, SlowReport)
    assert asked.client.tenant == "shop"


def test_answers_and_telemetry_are_kept_within_their_bounds(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_TELEMETRY", 3)
    asked = Mock(wraps=slow_client)
    monkeypatch.setattr("sluice_insight.console.slow.slow_client", asked)
    page = SlowPage(Recorded(Tables(str(here / "none"), str(here / "none"), {}), str(here / "none")))
    for number in range(150):
        page.heard.take(None, msgspec.json.encode(said_by("client", number=float(number))))
        assert "nothing is recorded yet" in str(page.of({"user": f"u{number}"}, T_MS)["trouble"])

    for number, calls in ((149, 150), (50, 150), (49, 151)):
        page.of({"user": f"u{number}"}, T_MS)
        assert asked.call_count == calls, "100 answers are kept"
    assert [each.metrics["number"] for each in page.heard.within(Span(0, 2 * T_MS))] == [147.0, 148.0, 149.0]


def test_brokers_that_take_a_tenth_of_a_second_are_not_said_to_be_no_cause() -> None:
    """A client of a busy broker whose queue gave no signal was sent to its network: 352 ms were three times 116."""
    times = [(352.0, 116.0), (352.0, 99.0), (1_200.0, 116.0)]
    found = [Evidence(600_000, (), 0, [], Own(latency_ms=took, broker_ms=of_it)) for took, of_it in times]

    assert [cause(each) for each in found] == [Cause.BROKER, Cause.NETWORK, Cause.NETWORK]
