"""Unmuting: a control record among the events resets counters in their order, and is answered by a decision."""

import json
from typing import Any

import pytest

from sluice.state.contract.records import Unmute
from sluice.state.decisions.wait_records import read_wait
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.entity import DEFAULT, Tags
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.parsing import parse_event
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Source
from tests.bad_events import LIMITS, SOURCE
from tests.builders import DEFAULTS, T0, Json, quota
from tests.micro_batches import MicroBatches

ENTRIES = [
    quota(QuotaKind.PRODUCER_BYTE_RATE, 10.0, user="alice"),
    quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, user=DEFAULT, client_id=DEFAULT),
    quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 10.0, topic="orders"),
]
QUOTAS = Quotas(ENTRIES, version=3)
SETTINGS = PipelineSettings.of(DEFAULTS)


def unmute(entity: Json, **more: Any) -> Json:
    return {"control": "unmute", "entity": entity, **more}


ALICE = {"user": "alice", "client_id": "app"}


def produce(size: int, topic: str = "clicks", client_id: str = "app") -> Json:
    partitions = [{"topic": topic, "partition": 0, "bytes": size}]
    return {"api": "Produce", "user": "alice", "client_id": client_id, "topic_partitions": partitions}


def create(partitions: int) -> Json:
    return {"api": "CreateTopics", **ALICE, "mutations": [{"topic": "new", "partitions": partitions}]}


def stream(*events: Json) -> list[tuple[bytes, Source]]:
    """The events, a millisecond apart, in one partition."""
    return [
        (json.dumps(event).encode(), Source("quota-requests", 0, offset, T0 + offset))
        for offset, event in enumerate(events)
    ]


def decide(*events: Json) -> list[Json]:
    """The answers, in the order of the events, of one micro-batch."""
    records = MicroBatches(SETTINGS).run(stream(*events), QUOTAS, decided_at_ms=T0 + len(events))
    answers = [json.loads(record.value) for record in records]
    return sorted(answers, key=lambda answer: int(answer["decision_id"].rpartition("-")[2]))


def charges(answer: Json) -> dict[str, Json]:
    return {charge["quota"]: charge for charge in answer["charges"]}


@pytest.mark.parametrize("named", [None, "connection_count"])
def test_a_limit_of_connections_has_no_counter_to_reset(named: str | None) -> None:
    """It once ended the job, at each attempt: the job counts no connections."""
    quotas = Quotas([*ENTRIES, quota(QuotaKind.CONNECTION_COUNT, 5.0, user="alice")], version=3)

    (answer,) = MicroBatches(SETTINGS).run(stream(unmute(ALICE, quota=named)), quotas, decided_at_ms=T0)

    expected = set() if named else {QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONTROLLER_MUTATION_RATE}
    assert charges(json.loads(answer.value)).keys() == expected


def test_an_unmuted_rate_counts_from_nothing() -> None:
    """And all clients of the user with it: the counter is the user's."""
    muted, answer, after = decide(produce(10_000), unmute(ALICE), produce(100, client_id="other"))

    assert muted["throttle_time_ms"] > 0
    assert (answer["api"], answer["verdict"], answer["throttle_time_ms"], answer["mute_until_ms"]) == (
        *("Unmute", "ALLOW"),
        *(0, None),
    )
    charge = charges(answer)["producer_byte_rate"]
    assert (charge["entity"], charge["throttle_ms"], charge["value"], charge["rate"]) == ({"user": "alice"}, 0, 0, 0)
    assert after["verdict"] == "ALLOW"
    assert charges(after)["producer_byte_rate"]["rate"] == 10.0  # 100 bytes in a fresh window of 10 s


def test_an_unmuted_bucket_is_full() -> None:
    burst, refused, answer, after = decide(create(500), create(1), unmute(ALICE), create(1))

    assert [one["verdict"] for one in (burst, refused, after)] == ["ALLOW", "REJECT", "ALLOW"]
    assert charges(answer)["controller_mutation_rate"]["tokens"] == 11.0
    assert charges(after)["controller_mutation_rate"]["tokens"] == 10.0


def test_one_quota_alone_can_be_reset() -> None:
    _, _, answer, after = decide(produce(10_000), create(500), unmute(ALICE, quota="producer_byte_rate"), create(1))

    assert list(charges(answer)) == ["producer_byte_rate"]
    assert after["verdict"] == "REJECT"


def test_a_topic_partition_is_reset_by_its_name() -> None:
    orders = {"topic": "orders", "partition": 0}
    _, answer, after = decide(produce(5_000, "orders"), unmute(orders), produce(0, "orders"))

    assert charges(answer)["producer.byte.rate"]["entity"] == orders
    assert charges(after)["producer.byte.rate"]["rate"] == 0
    assert charges(after)["producer_byte_rate"]["violated"]


def test_an_entity_without_any_quota_is_answered_too() -> None:
    (answer,) = decide(unmute({"topic": "nobody", "partition": 3}, quota="consumer.byte.rate", request_id="mine"))

    assert (answer["api"], answer["request_id"], answer["charges"]) == ("Unmute", "mine", [])


def test_the_order_of_requests_and_resets_is_that_of_the_topic() -> None:
    """One micro-batch or many, and again after a crash: the state is the same."""
    events = stream(produce(10_000), unmute(ALICE), produce(3_000), create(500), unmute(ALICE), create(3))
    together, singly, again = (MicroBatches(SETTINGS) for _ in range(3))

    expected = together.run(events, QUOTAS, decided_at_ms=T0)
    records = [record for event in events for record in singly.run([event], QUOTAS, decided_at_ms=T0)]

    assert sorted(record.value for record in records) == sorted(record.value for record in expected)
    assert sorted(again.run(events, QUOTAS, decided_at_ms=T0)) == sorted(expected)


def test_resets_among_many_entities_decide_as_one_by_one() -> None:
    events = [{**produce(10_000), "user": f"user-{number}"} for number in range(200)]
    events += [unmute({"user": "user-7"}), produce(10_000), {**produce(5), "user": "user-7"}]
    quotas = Quotas([quota(QuotaKind.PRODUCER_BYTE_RATE, 10.0, user=DEFAULT)])
    settings = SETTINGS._replace(pages=1)

    together = MicroBatches(settings).run(stream(*events), quotas, decided_at_ms=T0)
    batches = MicroBatches(settings)
    singly = [record for event in stream(*events) for record in batches.run([event], quotas, decided_at_ms=T0)]

    assert sorted(record.value for record in together) == sorted(record.value for record in singly)


@pytest.mark.parametrize(
    ("record", "field", "problem"),
    [
        ({"control": "unmut", "entity": {"user": "a"}}, "control", "can't be read"),
        ({"control": None}, "control", "is of type null"),
        ({"control": "unmute"}, "entity", "is missing"),
        ({"control": "unmute", "entity": "alice"}, "entity", "is of type str"),
        ({"control": "unmute", "entity": {}}, "entity", "names nobody"),
        (unmute({"tenant": "shop", "user": "alice"}), "entity.tenant", "comes with another entity"),
        (unmute({"tenant": ""}), "entity.tenant", "has 0 characters"),
        ({"control": "unmute", "entity": {"user": ""}}, "entity.user", "has 0 characters"),
        ({"control": "unmute", "entity": {"usr": "a"}}, "entity", "can't be read"),
        ({"control": "unmute", "entity": {"user": "a"}, "all": True}, "value", "can't be read"),
        ({"control": "unmute", "entity": {"topic": "t"}}, "entity.partition", "is None"),
        ({"control": "unmute", "entity": {"user": "u", "partition": 1}}, "entity.partition", "comes without a topic"),
        ({"control": "unmute", "entity": {"user": "u", "topic": "t"}}, "entity.topic", "comes with a client"),
        ({"control": "unmute", "entity": {"user": "u"}, "quota": "producer.byte.rate"}, "quota", "is 'producer.byte"),
    ],
)
def test_a_wrong_control_record_is_a_dead_letter_that_names_the_field(record: Json, field: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_event(json.dumps(record).encode(), SOURCE, LIMITS)

    assert (raised.value.field, raised.value.problem[: len(problem)]) == (field, problem)


@pytest.mark.parametrize(
    "record",
    [
        b'{"a\x9ci":"LeaderAndIsr","control":null}',
        b'{"control":"unmute","\xff":1}',
        b'{"control":"unmute","entity":{"user":"alice","\xff":1}}',
        b'{"control":"\xff"}',
    ],
)
def test_a_control_record_that_is_no_utf_8_is_a_dead_letter(record: bytes) -> None:
    """The decoder says so by another error than that of a wrong field."""
    with pytest.raises(InvalidRequestError, match="is not UTF-8"):
        parse_event(record, SOURCE, LIMITS)


def test_an_event_that_happens_to_have_the_field_is_an_event() -> None:
    """Gateways may add fields; an event has an api, and a control record has none."""
    event = {"api": "Fetch", "control": "unmute", "entity": {"user": "alice"}}

    assert not isinstance(parse_event(json.dumps(event).encode(), SOURCE, LIMITS), Unmute)


def test_long_waits_go_to_the_waits_topic_once_for_each_counter() -> None:
    """The last one of the micro-batch; a reset ends it, and a short wait needs no record."""
    batches = MicroBatches(SETTINGS)
    events = stream(produce(10_000), produce(10_000), create(12), produce(1, client_id="third"), unmute(ALICE))
    alice = ("producer_byte_rate", Tags(user="alice"))

    batches.run(events[:3], QUOTAS, decided_at_ms=T0)
    ((counter, wait),) = [read_wait(key, value) for key, value in batches.waits]
    assert wait is not None
    assert (counter, wait.offset, wait.limit) == (alice, 1, 10.0)
    assert wait.until_ms == T0 + 1 + wait.throttle_ms

    batches.waits.clear()
    batches.run(events[3:], QUOTAS, decided_at_ms=T0)
    ended = dict(read_wait(key, value) for key, value in batches.waits)
    assert ended[alice] is None
