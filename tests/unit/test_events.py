"""Bad events become dead letters with field and reason; good ones get the contract's defaults."""

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.contract.records import MAX_TIMESTAMP_MS, AppliedWait, CountedEntity
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.parsing import _BOUNDED, EventLimits, parse_request
from sluice.streaming.enforce.pipeline import Simulation, plan
from sluice.streaming.enforce.planning import PipelineSettings
from sluice.streaming.enforce.wire import ChargeRow, OutputRecord, Source, decode_page_batch
from tests.unit.test_decisions import DEFAULTS, Json

NOW_MS = 1_700_000_000_000
SOURCE = Source("quota-requests", 2, 17, NOW_MS)
LIMITS = EventLimits(
    max_event_bytes=1_048_576, max_future_ms=60_000, max_past_ms=DEFAULTS.enforce.max_past_ms, max_charges=50
)
WEEK_MS = 7 * 86_400_000
SHARE: Json = {"quota": "producer_byte_rate", "entity": {"user": "alice"}, "limit": 10.5, "share": 5.5}
SHARE |= {"charged": 4.5, "throttle_ms": 7}
HEARTBEAT = {"staleness_ms": 12, "counters": 3}


def heartbeat_of(*shares: Json, **changed: object) -> bytes:
    return event("GatewayHeartbeat", instance="g-1", heartbeat=HEARTBEAT | {"shares": shares} | changed)


def event(api: str = "Fetch", **fields: object) -> bytes:
    return json.dumps({"api": api} | fields).encode()


def waited(**changed: object) -> bytes:
    """An event with one wait in line, in which this is changed."""
    return event(throttled_by=[WAIT | changed])


def loaded(load: object) -> bytes:
    """A heartbeat with this load."""
    return heartbeat_of(load=load)


LONG = "x" * 32_768
LOG_DIR = {"path": "/data", "free_bytes": 1, "total_bytes": 2}
WAIT: Json = {"quota": "q", "entity": {"user": "a"}, "ms": 1}
TOUCHED = {"topic": "t", "partition": 0}
MUTATION = {"topic": "t", "partitions": 1}

BAD = {
    "null": (None, "value", "is null"),
    "empty": (b"", "value", "is not JSON"),
    "not JSON": (b"{api: Produce}", "value", "is not JSON"),
    "cut short": (b'{"api": "Produce"', "value", "is not JSON"),
    "two objects": (b'{"api": "Produce"} {}', "value", "is not JSON"),
    "not UTF-8": (b'{"api": "Produce", "user": "\xff"}', "value", "is not UTF-8"),
    "half a surrogate": (b'{"api": "\\ud800"}', "value", "has half of a surrogate pair"),
    "the second half of a surrogate": (b'{"api": "Fetch", "\\udc00": 1}', "value", "has half of a surrogate pair"),
    "the same half twice": (b'{"api": "Fetch", "x": ["\\uD83D\\ud83d"]}', "value", "has half of a surrogate pair"),
    "half a surrogate, cut short": (b'{"api": "\\ud800", ', "value", "is not JSON"),
    "a whole surrogate, cut short": (b'{"api": "\\ud83d\\ude00", ', "value", "is not JSON"),
    "a list": (b"[1]", "value", "is of type array"),
    "no api": (b"{}", "api", "is missing"),
    "empty api": (event(""), "api", "is empty"),
    "api is a number": (b'{"api": 3}', "api", "is of type int"),
    "user is a number": (event(user=5), "user", "is of type int"),
    "timestamp is a string": (event(timestamp_ms="5"), "timestamp_ms", "is of type str"),
    "timestamp is a float": (event(timestamp_ms=5.0), "timestamp_ms", "is of type float"),
    "timestamp is negative": (event(timestamp_ms=-1), "timestamp_ms", "is -1"),
    "timestamp is huge": (event(timestamp_ms=99_999_999_999_999_999_999), "timestamp_ms", "is 9999"),
    "far future": (event(timestamp_ms=NOW_MS + 60_001), "timestamp_ms", "lies 60001 ms ahead"),
    "far past": (event(timestamp_ms=NOW_MS - WEEK_MS - 1), "timestamp_ms", "lies 604800001 ms before"),
    "NaN": (b'{"api": "Fetch", "request_time_ns": NaN}', "value", "is not JSON"),
    "beyond a double": (b'{"api": "Fetch", "request_time_ns": 1e400}', "request_time_ns", "can't be read"),
    "negative bytes": (event(topic_partitions=[TOUCHED | {"bytes": -1}]), "topic_partitions[0].bytes", "is -1"),
    "partitions missing": (event("CreateTopics", mutations=[{"topic": "t"}]), "mutations[0].partitions", "is missing"),
    "partitions huge": (
        event("CreateTopics", mutations=[MUTATION | {"partitions": 2**31}]),
        *("mutations[0].partitions", "is 2147483648"),
    ),
    "topic empty": (event("CreateTopics", mutations=[MUTATION | {"topic": ""}]), "mutations[0].topic", "is empty"),
    "flag is a string": (event("CreateTopics", validate_only="no"), "validate_only", "is of type str"),
    "too large": (event(user="x" * 1_048_576), "value", "has 10486"),
    "name too long": (event(user=LONG), "user", "has 32768 characters"),
    "nested too deeply": (b'{"api": "Fetch", "more": ' + b"[" * 100_000, "value", "is nested too deeply"),
    "no request": (event("Requests", requests=0), "requests", "is 0"),
    "requests huge": (event("Requests", requests=2**31), "requests", "is 2147483648"),
    "bytes negative": (event(bytes=-1), "bytes", "is -1"),
    "bytes huge": (event(bytes=2**53 + 1), "bytes", "is 9007199254740993"),
    "bytes of neither": (event("Metadata", bytes=1), "bytes", "comes with api 'Metadata'"),
    "bytes twice": (event(bytes=1, topic_partitions=[TOUCHED]), "bytes", "is 1 with topic_partitions"),
    "withheld is a string": (event(withheld="no"), "withheld", "is of type str"),
    "executed negative": (event("CreateTopics", mutations_charged=-1), "mutations_charged", "is -1"),
    "executed and to decide": (
        event("CreateTopics", mutations_charged=1, mutations=[MUTATION]),
        *("mutations_charged", "comes with mutations"),
    ),
    "instance too long": (event(instance=LONG), "instance", "has 32768"),
    "a wait of no quota": (waited(quota=""), "throttled_by[0].quota", "is empty"),
    "a wait of no entity": (waited(entity={}), "throttled_by[0].entity", "names nobody"),
    "a wait of a negative partition": (
        waited(entity=TOUCHED | {"partition": -1}),
        *("throttled_by[0].entity.partition", "is -1"),
    ),
    "a negative wait": (waited(ms=-1), "throttled_by[0].ms", "is -1"),
    "a wait of a fraction": (waited(ms=0.5), "throttled_by[0].ms", "is of type float"),
    "too many waits": (event(throttled_by=[WAIT] * 65), "throttled_by", "has 65 entries"),
    "a wait of a long name": (waited(entity={"user": LONG}), "throttled_by[0].entity.user", "has 32768"),
    "a heartbeat of a client": (event(heartbeat=HEARTBEAT), "heartbeat", "comes with api 'Fetch'"),
    "a heartbeat from the future": (heartbeat_of(staleness_ms=-1), "heartbeat.staleness_ms", "is -1"),
    "a heartbeat without counters": (
        event("GatewayHeartbeat", heartbeat={"staleness_ms": 1}),
        *("heartbeat.counters", "is missing"),
    ),
    "threads that can't be": (heartbeat_of(threads_down=-1), "heartbeat.threads_down", "is -1"),
    "a load that is none": (loaded(7), "heartbeat.load", "is of type int"),
    "a load of a negative broker": (loaded({"broker_id": -1}), "heartbeat.load.broker_id", "is -1"),
    "a load of a text": (loaded({"handler_idle": "0.5"}), "heartbeat.load.handler_idle", "is of type str"),
    "a load of more than all": (loaded({"network_idle": 1.5}), "heartbeat.load.network_idle", "is 1.5"),
    "a negative load": (loaded({"bytes_in_per_s": -1.0}), "heartbeat.load.bytes_in_per_s", "is -1.0"),
    "a huge load": (loaded({"queue_wait_ms": 1e31}), "heartbeat.load.queue_wait_ms", "is 1e+31"),
    "an endless load": (
        loaded({"queue_used": 0.125}).replace(b"0.125", b"1e400"),
        *("heartbeat.load.queue_used", "can't be read"),
    ),
    "a load of NaN": (loaded({"queue_used": 0.125}).replace(b"0.125", b"NaN"), "value", "is not JSON"),
    "too many log directories": (loaded({"log_dirs": [LOG_DIR] * 101}), "heartbeat.load.log_dirs", "has 101 entries"),
    "a log directory without a path": (
        loaded({"log_dirs": [LOG_DIR | {"path": ""}]}),
        *("heartbeat.load.log_dirs[0].path", "is empty"),
    ),
    "a log directory of a long path": (
        loaded({"log_dirs": [LOG_DIR | {"path": LONG}]}),
        *("heartbeat.load.log_dirs[0].path", "has 32768"),
    ),
    "a disk with less than nothing": (
        loaded({"log_dirs": [LOG_DIR | {"free_bytes": -1}]}),
        *("heartbeat.load.log_dirs[0].free_bytes", "is -1"),
    ),
    "an endless disk": (
        loaded({"log_dirs": [LOG_DIR, LOG_DIR | {"total_bytes": 2**53 + 1}]}),
        *("heartbeat.load.log_dirs[1].total_bytes", "is 9007199254740993"),
    ),
    "a negative share": (heartbeat_of({**SHARE, "share": -0.5}), "heartbeat.shares[0].share", "is -0.5"),
    "an endless limit": (
        heartbeat_of(SHARE).replace(b"10.5", b"1e400"),
        *("heartbeat.shares[0].limit", "can't be read"),
    ),
    "too many shares": (heartbeat_of(*[SHARE] * 21), "heartbeat.shares", "has 21 entries"),
    "too many mutations": (event("DeleteTopics", mutations=[MUTATION] * 1_001), "mutations", "has 1001 entries"),
    "too many topic-partitions": (
        event("Produce", topic_partitions=[TOUCHED] * 51),
        *("topic_partitions", "has 51 entries"),
    ),
}


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

    assert (request.request_id, request.timestamp_ms) == ("quota-requests-2-17", NOW_MS)
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
    """Whoever writes a record sets its time: -1 is Kafka's for none, and a far future would freeze a bucket."""
    with pytest.raises(InvalidRequestError, match=rf"timestamp_ms: is missing, and its record's time is {at_ms};"):
        parse_request(b'{"api": "Whatever"}', Source("quota-requests", 2, 17, at_ms), LIMITS)


def test_an_old_event_is_decided_at_its_own_time() -> None:
    """Late events are welcome: the bucket takes back the time, as Kafka's does when the clock steps back."""
    old = event(timestamp_ms=NOW_MS - WEEK_MS)

    assert parse_request(old, SOURCE, LIMITS).timestamp_ms == NOW_MS - WEEK_MS


def test_simulated_events_may_be_of_any_time() -> None:
    """An event's own time stands for its record's."""
    events = [event(timestamp_ms=at_ms) for at_ms in (NOW_MS, 0, NOW_MS)]

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
        _BOUNDED.decode(beyond)
    with pytest.raises(InvalidRequestError) as error:
        parse_request(beyond, SOURCE, LIMITS)
    assert error.value.field == field


def test_as_many_charges_as_are_allowed_are_decided() -> None:
    wide = event("Produce", topic_partitions=[{"topic": "t", "partition": number} for number in range(50)])

    assert len(parse_request(wide, SOURCE, LIMITS).topic_partitions) == 50


@given(st.one_of(st.none(), st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_bytes_can_stop_the_parser(value: bytes | None) -> None:
    """Whatever comes, it is a request or an InvalidRequestError."""
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
