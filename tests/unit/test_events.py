"""Bad events become dead letters with field and reason; good ones get the contract's defaults."""

import base64
import json

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.configs.settings import event_bounds_ms, kept_ms
from sluice.sinks.tables.decisions import decision_rows
from sluice.sinks.tables.faults import Faults, RequestsTopic
from sluice.state.contract.records import MAX_TIMESTAMP_MS, AppliedWait, CountedEntity
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.audit.query import time_bounds
from sluice.streaming.enforce.parsing import BOUNDED, parse_request
from sluice.streaming.enforce.pipeline import plan
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.planning import read_event
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.enforce.wire import ChargeRow, OutputRecord, Source, decode_page_batch
from tests.audit_records import DAY_MS
from tests.bad_events import BAD, LIMITS, SHARE, SOURCE, TOUCHED, WEEK_MS, event, heartbeat_of, waited
from tests.builders import DEFAULTS, T0
from tests.micro_batches import MicroBatches


def planned(value: bytes | None) -> list[tuple[int, ChargeRow | OutputRecord]]:
    """The rows of one event, each with its page."""
    rows: list[tuple[int, ChargeRow | OutputRecord]] = []
    for page_batches in plan([(value, SOURCE)], Quotas(), PipelineSettings.of(DEFAULTS), decided_at_ms=0):
        for page, page_batch in page_batches.items():
            decoded = decode_page_batch(page_batch)
            rows += [(page, row) for row in decoded.charge_rows]
            rows += [(page, record) for record in decoded.records]
    return rows


@pytest.mark.parametrize("name", BAD)
def test_a_bad_event_names_its_field_and_what_is_wrong(name: str) -> None:
    """Field, problem and what would be right."""
    value, field, problem = BAD[name]

    with pytest.raises(InvalidRequestError) as raised:
        parse_request(value, SOURCE, LIMITS)

    assert raised.value.field == field
    assert raised.value.problem.startswith(problem)
    assert raised.value.expected


@pytest.mark.parametrize("name", BAD)
def test_a_bad_event_is_kept_whole_in_its_dead_letter(name: str) -> None:
    """Source, error and the original bytes; the page it travels through exists."""
    value = BAD[name][0]
    settings = PipelineSettings.of(DEFAULTS)

    ((page, record),) = planned(value)

    assert isinstance(record, OutputRecord)
    assert 0 <= page < settings.pages
    letter = json.loads(record.value)
    assert record.topic == "quota-dead-letters"
    assert letter["source"] == {"topic": "quota-requests", "partition": 2, "offset": 17, "topic_id": None}
    assert letter["error"].keys() == {"field", "problem", "expected"}
    assert letter["value_bytes"] == (None if value is None else len(value))
    assert letter["value"] is None if value is None else base64.b64decode(letter["value"]) == value


def test_a_giant_bad_event_keeps_its_beginning() -> None:
    """10 MiB would not fit a Kafka record in base64; its size is in the letter, and its source has the rest."""
    value = b"x" * (10 * 1024 * 1024)

    ((_, record),) = planned(value)

    assert isinstance(record, OutputRecord)
    assert len(record.value) < 8 * 1024 * 1024
    assert json.loads(record.value)["value_bytes"] == len(value)


def test_defaults_come_from_the_kafka_record() -> None:
    """request_id is the record's identity, timestamp_ms its time; unknown fields are ignored."""
    request = parse_request(b'{"api": "Whatever", "colour": "blue"}', SOURCE, LIMITS)

    assert (request.request_id, request.timestamp_ms) == ("quota-requests-2-17", T0)
    assert (request.user, request.client_id, request.validate_only) == (None, None, False)


def test_a_wait_beyond_an_hour_counts_as_an_hour() -> None:
    """The request was served whatever the gateway says of its wait, so the event must be charged."""
    request = parse_request(waited(ms=10**30), SOURCE, LIMITS)
    heartbeat = parse_request(heartbeat_of({**SHARE, "throttle_ms": 10**30}), SOURCE, LIMITS).heartbeat

    assert request.throttled_by == [AppliedWait("q", CountedEntity(user="a"), 3_600_000)]
    assert heartbeat is not None
    assert heartbeat.shares[0].throttle_ms == 3_600_000


def test_no_waits_in_line_are_not_the_same_as_nothing_said() -> None:
    """An empty list says that the gateway charges inline."""
    assert parse_request(event(throttled_by=[]), SOURCE, LIMITS).throttled_by == []
    assert parse_request(event(), SOURCE, LIMITS).throttled_by is None


@pytest.mark.parametrize("at_ms", [-1, -9_000_000_000_000_000, MAX_TIMESTAMP_MS + 1, 9_000_000_000_000_000])
def test_a_records_time_that_no_event_may_have_stands_for_none(at_ms: int) -> None:
    """The writer of a record sets its time: -1 is Kafka's for none, and a far future would freeze a bucket."""
    with pytest.raises(InvalidRequestError, match=rf"timestamp_ms: is missing, and its record's time is {at_ms};"):
        parse_request(b'{"api": "Whatever"}', Source("quota-requests", 2, 17, at_ms), LIMITS)


@pytest.mark.parametrize(
    ("at_ms", "problem"),
    [
        (0, f"lies {T0} ms before the job's time; expected at most {WEEK_MS} ms"),
        (T0 - WEEK_MS - 1, f"lies {WEEK_MS + 1} ms before the job's time; expected at most {WEEK_MS} ms"),
        (T0 + 7_001, "lies 7001 ms ahead of the job's time; expected at most 7000 ms"),
        (MAX_TIMESTAMP_MS, f"lies {MAX_TIMESTAMP_MS - T0} ms ahead of the job's time; expected at most 7000 ms"),
    ],
)
def test_an_event_that_no_table_takes_is_a_dead_letter_though_its_record_is_as_old(at_ms: int, problem: str) -> None:
    """The producer sets its record's time too; the decision was made, and its row was unreadable."""
    settings = PipelineSettings.of(DEFAULTS)
    settings = settings._replace(limits=LIMITS._replace(max_age_ms=WEEK_MS, max_ahead_ms=7_000))
    source = Source("quota-requests", 2, 17, at_ms)

    for value in (event(), event(timestamp_ms=at_ms)):
        letter = read_event(value, source, settings, T0)
        assert isinstance(letter, OutputRecord)
        assert json.loads(letter.value)["error"]["field"] == "timestamp_ms"
        assert problem in "{problem}; expected {expected}".format(**json.loads(letter.value)["error"])


def test_the_bounds_of_the_jobs_time_let_a_backlog_and_clocks_that_are_hours_off_pass() -> None:
    """Tables take what the job decides, also if the answer is read as late as its topic keeps it."""
    age_ms, ahead_ms = event_bounds_ms(DEFAULTS)
    bounds = time_bounds(DEFAULTS)

    assert (age_ms, ahead_ms) == (37 * DAY_MS, DAY_MS + 60_000)
    assert (bounds.past_ms, bounds.future_ms) == (age_ms + 31 * DAY_MS, ahead_ms + DAY_MS)


_EDGES = [T0 + sign * distance for sign in (-1, 1) for distance in (0, 37 * DAY_MS, 38 * DAY_MS, DAY_MS, 2 * DAY_MS)]
_TIMES = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([*_EDGES, -1, 0, MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1])


@given(_TIMES, st.none() | _TIMES, st.integers(0, kept_ms(DEFAULTS.topics.decisions_retention_ms)))
def test_an_event_of_any_time_is_a_dead_letter_or_a_row_of_the_table(
    record_ms: int, own_ms: int | None, read_after_ms: int
) -> None:
    """However late the answer is read, as long as its topic keeps it."""
    settings, (age_ms, ahead_ms) = PipelineSettings.of(DEFAULTS), event_bounds_ms(DEFAULTS)
    settings = settings._replace(limits=settings.limits._replace(max_age_ms=age_ms, max_ahead_ms=ahead_ms))
    value = event() if own_ms is None else event(timestamp_ms=own_ms)

    source = Source("quota-requests", 0, 0, record_ms)
    (answer,) = MicroBatches(settings).run([(value, source)], Quotas(), decided_at_ms=T0)

    if answer.topic != settings.dead_letters_topic:
        records, faults = pa.table({"value": pa.array([answer.value], pa.binary())}), Faults(1)
        decision_rows(records, faults, RequestsTopic("quota-requests", [1]), time_bounds(DEFAULTS), T0 + read_after_ms)
        assert faults.good.all(), answer.value


def test_an_old_event_is_decided_at_its_own_time() -> None:
    """Late events are welcome: the bucket takes back the time, as Kafka's does when the clock steps back."""
    old = event(timestamp_ms=T0 - WEEK_MS)

    assert parse_request(old, SOURCE, LIMITS).timestamp_ms == T0 - WEEK_MS


def test_simulated_events_may_be_of_any_time() -> None:
    """An event's own time stands for its record's."""
    events = [event(timestamp_ms=at_ms) for at_ms in (T0, 0, T0)]

    records = list(Simulation(Quotas(), DEFAULTS).decide(events))

    assert [record.topic for record in records] == ["quota-decisions"] * 3


@pytest.mark.parametrize(
    ("beyond", "field"),
    [
        (event(request_time_ns=2**53 + 1), "request_time_ns"),
        (event(network_time_ns=-1), "network_time_ns"),
        (event(api_version=2**15), "api_version"),
        (event(purgatory_ms=2**31), "purgatory_ms"),
        (event(requests=0), "requests"),
        (event("CreateTopics", mutations=[{"topic": "", "partitions": 1}]), "mutations[0].topic"),
        (event(topic_partitions=[TOUCHED | {"partition": 2**31}]), "topic_partitions[0].partition"),
    ],
)
def test_bounds_are_in_the_decoder_and_an_error_names_them(beyond: bytes, field: str) -> None:
    """One call says that an event is within its bounds; who isn't is decoded again for the error."""
    with pytest.raises(msgspec.ValidationError):
        BOUNDED.decode(beyond)
    with pytest.raises(InvalidRequestError) as error:
        parse_request(beyond, SOURCE, LIMITS)
    assert error.value.field == field


def test_as_many_charges_as_are_allowed_are_decided() -> None:
    wide = event("Produce", topic_partitions=[{"topic": "t", "partition": number} for number in range(50)])

    assert len(parse_request(wide, SOURCE, LIMITS).topic_partitions) == 50


@given(st.one_of(st.none(), st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_bytes_can_stop_the_parser(value: bytes | None) -> None:
    """Any input is a request or an InvalidRequestError."""
    with pytest.raises(InvalidRequestError):
        parse_request(value, SOURCE, LIMITS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)
FIELDS = ("api", "user", "client_id", "timestamp_ms", "topic_partitions", "mutations", "purgatory_ms", "cluster_action")


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_every_object_is_answered_once(said: dict[str, object]) -> None:
    """A decision or a dead letter, never neither and never both."""
    assert len(planned(json.dumps(said).encode())) == 1
