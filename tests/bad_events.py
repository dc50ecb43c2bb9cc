"""Events of requests that no job can decide, each with the field that is wrong and what is wrong with it."""

import json

from sluice.state.decisions.checks import EventLimits
from sluice.streaming.enforce.wire import Source
from tests.builders import DEFAULTS, T0, Json, unlimited_of

SOURCE = Source("quota-requests", 2, 17, T0)
LIMITS = EventLimits(
    max_event_bytes=1_048_576, max_future_ms=60_000, max_past_ms=DEFAULTS.enforce.max_past_ms, max_charges=50
)
WEEK_MS = 7 * 86_400_000
SHARE: Json = {"quota": "producer_byte_rate", "entity": {"user": "alice"}, "limit": 10.5, "share": 5.5}
SHARE |= {"charged": 4.5, "throttle_ms": 7}
HEARTBEAT = {"staleness_ms": 12, "counters": 3}
LONG = "x" * 32_768
LOG_DIR = {"path": "/data", "free_bytes": 1, "total_bytes": 2}
WAIT: Json = {"quota": "q", "entity": {"user": "a"}, "ms": 1}
TOUCHED = {"topic": "t", "partition": 0}
MUTATION = {"topic": "t", "partitions": 1}


def event(api: str = "Fetch", **fields: object) -> bytes:
    return json.dumps({"api": api} | fields).encode()


def heartbeat_of(*shares: Json, **changed: object) -> bytes:
    return event("GatewayHeartbeat", instance="g-1", heartbeat=HEARTBEAT | {"shares": shares} | changed)


def waited(**changed: object) -> bytes:
    """An event with one wait in line, in which this is changed."""
    return event(throttled_by=[WAIT | changed])


def loaded(load: object) -> bytes:
    """A heartbeat with this load."""
    return heartbeat_of(load=load)


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
    "far future": (event(timestamp_ms=T0 + 60_001), "timestamp_ms", "lies 60001 ms ahead"),
    "far past": (event(timestamp_ms=T0 - WEEK_MS - 1), "timestamp_ms", "lies 604800001 ms before"),
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
    "a release of a long name": (heartbeat_of(release=LONG), "heartbeat.release", "has 32768"),
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
    "too many without a limit": (
        heartbeat_of(unlimited=[unlimited_of()] * 11),
        "heartbeat.unlimited",
        "has 11 entries",
    ),
    "a negative rate of one without a limit": (
        heartbeat_of(unlimited=[unlimited_of(bytes_out_per_s=-1.0)]),
        "heartbeat.unlimited[0].bytes_out_per_s",
        "is -1.0",
    ),
    "a long name of one without a limit": (
        heartbeat_of(unlimited=[unlimited_of("x" * 32_768)]),
        "heartbeat.unlimited[0].client_id",
        "has 32768 characters",
    ),
    "too many shares": (heartbeat_of(*[SHARE] * 21), "heartbeat.shares", "has 21 entries"),
    "too many mutations": (event("DeleteTopics", mutations=[MUTATION] * 1_001), "mutations", "has 1001 entries"),
    "too many topic-partitions": (
        event("Produce", topic_partitions=[TOUCHED] * 51),
        *("topic_partitions", "has 51 entries"),
    ),
}
