"""The charges of requests and the decisions that they make, through `simulate`'s path (the job's code)."""

import json
from base64 import b64decode
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.configs.settings import load_settings
from sluice.state.arithmetic.counter import EntityCounters, Outcome
from sluice.state.contract.records import ChargeResult, CountedEntity, Decision, Verdict
from sluice.state.decisions.charge_plan import COUNTED_APIS
from sluice.state.decisions.decision import Waits, request_outcome
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import (
    CLIENT_KINDS,
    TOPIC_KINDS,
    Coexistence,
    QuotaKind,
    QuotaSettings,
    RequestPolicy,
    Window,
)
from sluice.state.quotas.resolution import Quotas
from sluice.state.store.codec import decode
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.planning import Planned, Planner, read_event
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.enforce.wire import OutputRecord, Source
from tests.builders import DEFAULTS, T0, Json, changed, creates, decide, moves, part_of, quota, unlimited_of, works
from tests.micro_batches import MicroBatches
from tests.strategies import events, quota_entries, quota_settings

ANY_CLIENT, ANY_TOPIC = QuotaEntity(client_id=DEFAULT), QuotaEntity(topic=DEFAULT)


MUTATIONS = [quota(QuotaKind.CONTROLLER_MUTATION_RATE, 5.0)]
KIP_599 = QuotaSettings(controller_window=Window(100, 1000))


def test_the_proposals_example() -> None:
    """KIP-599: a burst of 560 is allowed and leaves -60; the next waits 12 000 ms, and is admitted after them."""
    burst, refused, admitted = decide(
        MUTATIONS, creates(*[80] * 7), creates(1), creates(1, timestamp_ms=T0 + 12_000), settings=KIP_599
    )

    assert (burst["verdict"], burst["charges"][0]["tokens"]) == ("ALLOW", -60.0)
    assert (refused["verdict"], refused["throttle_time_ms"], refused["error_code"]) == ("REJECT", 12_000, 89)
    assert refused["mute_until_ms"] == T0 + 12_000
    assert admitted["verdict"] == "ALLOW"


def test_one_refused_topic_does_not_stop_an_answer_for_the_others() -> None:
    """Burst 55: 50 and 10 are admitted one after the other, then tokens are below 0 and the third is refused."""
    (decision,) = decide(MUTATIONS, creates(50, 10, 1))

    assert [result["error_code"] for result in decision["topic_results"]] == [0, 0, 89]
    assert decision["topic_results"][2]["error_message"] == "The throttling quota has been exceeded."
    assert (decision["verdict"], decision["error_code"], decision["throttle_time_ms"]) == ("THROTTLE", 0, 1000)
    assert decision["charges"][0]["value"] == 60.0


@pytest.mark.parametrize(("api", "oldest_strict"), [("CreateTopics", 6), ("DeleteTopics", 5), ("CreatePartitions", 3)])
def test_old_versions_are_always_admitted_and_wait(api: str, oldest_strict: int) -> None:
    """KIP-599, "Handling of old Clients": charged, never refused, told to wait; from the bumped version on refused."""
    over = {**creates(60), "api": api}
    for version, verdict in ((oldest_strict - 1, "THROTTLE"), (oldest_strict, "ALLOW")):
        first, second = decide(MUTATIONS, {**over, "api_version": version}, {**over, "api_version": version})

        assert (first["verdict"], first["throttle_time_ms"]) == (verdict, 1000 if verdict == "THROTTLE" else 0)
        assert second["verdict"] == ("THROTTLE" if verdict == "THROTTLE" else "REJECT")
        assert second["throttle_time_ms"] == (13_000 if verdict == "THROTTLE" else 1000)


class Case(NamedTuple):
    """Quotas, events, and what the decision on the last of them says."""

    quotas: list[QuotaEntry]
    events: list[Json]
    last: Json
    settings: QuotaSettings = QuotaSettings()


BYTES, FETCHED = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE
TIME, PARTITION = QuotaKind.REQUEST_PERCENTAGE, QuotaKind.TOPIC_PRODUCER_BYTE_RATE
BOTH = [quota(BYTES, 1000), quota(TIME, 1)]
BY_CLIENT_ID = quota(TIME, 1, ANY_CLIENT)
OF_FETCHES = [quota(FETCHED, 1000)]
TRIAL = quota(QuotaKind.CONTROLLER_MUTATION_RATE, 5, shadow=True)
SEQUENTIAL = QuotaSettings(coexistence=Coexistence.SEQUENTIAL)
EIGHT_THREADS = QuotaSettings(policy=RequestPolicy.KIP124_DRAFT, num_io_threads=8)
EXEMPT_WITH_AUTHORISATION = (
    *("StopReplica", "ControlledShutdown", "LeaderAndIsr", "UpdateMetadata"),  # KIP-124
    *("WriteTxnMarkers", "AlterPartition"),  # shipped Kafka
)


def timed(size: int) -> list[Json]:
    """A Produce of so many bytes that takes 200 ms of a handler."""
    return [moves("Produce", size, request_time_ns=200_000_000)]


CASES = {
    "unlimited is the default": Case([], [creates(10**6)], {"verdict": "ALLOW", "charges": [], "quota_version": 7}),
    # Q=3, 1 token missing, 0.33 ms left: shipped Kafka announces 0, which reads like success.
    "a refusal never carries a wait of zero": Case(
        [quota(QuotaKind.CONTROLLER_MUTATION_RATE, 3.0)],
        [creates(34), creates(1, timestamp_ms=T0 + 333)],
        {"verdict": "REJECT", "throttle_time_ms": 1},
    ),
    # KIP-599: controller throttle time - waiting time in the purgatory.
    "time in purgatory counts as waited": Case(
        MUTATIONS, [creates(60), creates(1, purgatory_ms=400)], {"throttle_time_ms": 600}
    ),
    # Shipped Kafka wraps it to a negative number; 109.9999 tokens at 1e-5 a second are 127 days.
    "a wait longer than an int is clamped": Case(
        [quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1e-5)],
        [creates(110), creates(110)],
        {"throttle_time_ms": 2_147_483_647},
    ),
    # With a quota of the kind set for someone else, Kafka counts everyone.
    "an unmatched client is metered without a limit": Case(
        [quota(BYTES, 5, user="bob")],
        [moves("Produce", 100)],
        {"charges": {0: {"matched": "none", "limit": None, "rate": 10.0}}},
    ),
    # 30 000 bytes over 10 s are 3000 a second; Q=2000: (3000-2000)/2000*10 s. No cap.
    "bytes over the quota wait until the rate is down": Case(
        [quota(BYTES, 2000)],
        [moves("Produce", 30_000)],
        {"verdict": "THROTTLE", "throttle_time_ms": 5000, "decided_by": "producer_byte_rate"},
    ),
    # They were written: the next one waits on. 20 000 and 10 bytes over 10 s are 2001 a second; Q=1000.
    "a throttled produce keeps its bytes": Case(
        BOTH[:1], [moves("Produce", 20_000), moves("Produce", 10)], {"throttle_time_ms": 10_010}
    ),
    "the bytes of a fetch that was delivered stay charged though it is throttled": Case(
        OF_FETCHES, [moves("Fetch", 20_000), moves("Fetch", 10)], {"throttle_time_ms": 10_010}
    ),
    # KIP-219: its wait is that of its bytes, though they are taken back.
    "a fetch that is answered empty waits as long as one that was delivered": Case(
        OF_FETCHES, [moves("Fetch", 20_000, withheld=True)], {"throttle_time_ms": 10_000}
    ),
    # The gateway's own share may hold back what the whole quota allows.
    "withheld bytes are taken back though nothing throttles": Case(
        OF_FETCHES, [moves("Fetch", 5_000, withheld=True), moves("Fetch", 10)], {"charges": {0: {"rate": 1.0}}}
    ),
    # Written bytes stay written.
    "only a fetch can be withheld": Case(
        BOTH[:1], [moves("Produce", 20_000, withheld=True), moves("Produce", 10)], {"charges": {0: {"rate": 2001.0}}}
    ),
    # A proxy meters both: the sum of a client's requests, and the sum of each partition's records.
    "bytes of partitions whose client has another event are charged to the partitions alone": Case(
        [quota(BYTES, 100, ANY_CLIENT), quota(PARTITION, 100, topic="orders")],
        [moves("Produce", 2000, bytes=0)],
        {"charges": [{"entity": {"topic": "orders", "partition": 0}}], "decided_by": "producer.byte.rate"},
    ),
    # KIP-124: "The maximum delay applied will be the quota window size".
    "request time waits at most one window": Case(BOTH[1:], [works(60_000)], {"throttle_time_ms": 1000}),
    # It never throttles its own request, only the ones after it.
    "network time is added without a check to its own request": Case(
        BOTH[1:], [works(0, network_time_ns=200_000_000)], {"verdict": "ALLOW"}
    ),
    "network time throttles the next request": Case(
        BOTH[1:],
        [works(0, network_time_ns=200_000_000), works(1)],
        {"verdict": "THROTTLE", "charges": {0: {"rate": pytest.approx(2.01)}}},
    ),
    # KIP-124: "will be throttled only if authorization for ClusterAction fails".
    **{
        f"{api} is exempt only with cluster authorisation, {is_exempt}": Case(
            BOTH[1:], [works(500, api, cluster_action=is_exempt)], {"verdict": "ALLOW" if is_exempt else "THROTTLE"}
        )
        for api in EXEMPT_WITH_AUTHORISATION
        for is_exempt in (True, False)
    },
    # KIP-124: "but will be throttled on quota violation if used at any other time".
    "a SASL handshake is exempt while authenticating": Case(
        BOTH[1:], [works(500, "SaslHandshake", authenticating=True)], {"verdict": "ALLOW"}
    ),
    "a SASL handshake is not exempt at another time": Case(
        BOTH[1:], [works(500, "SaslHandshake")], {"verdict": "THROTTLE"}
    ),
    # 1 percent of 8 threads: 80 ms a second; 800 ms over 10 s are the limit, 801 ms are over it.
    "the earlier draft takes a share of all threads": Case(BOTH[1:], [works(800)], {"verdict": "ALLOW"}, EIGHT_THREADS),
    "more than the share of all threads": Case(
        BOTH[1:], [works(800), works(1)], {"verdict": "THROTTLE"}, EIGHT_THREADS
    ),
    # Shipped Kafka: max(bandwidth, request).
    "the longest wait counts and the charges tell each": Case(
        BOTH,
        timed(20_000),
        {"throttle_time_ms": 10_000, "decided_by": "producer_byte_rate"}
        | {"charges": {0: {"throttle_ms": 10_000}, 1: {"throttle_ms": 1000}}},
    ),
    "a tie goes to the request quota": Case(
        BOTH,
        timed(11_000),
        {"decided_by": "request_percentage", "charges": {0: {"throttle_ms": 1000}, 1: {"throttle_ms": 1000}}},
    ),
    # KIP-124: 200 ms of handler time are 2 % now; after a byte delay of 500 ms still over, so 1000 ms are added.
    "sequential checks request time again after the byte delay": Case(
        BOTH, timed(10_500), {"throttle_time_ms": 1500}, SEQUENTIAL
    ),
    # After 11 s the request's sample is outdated: "perhaps no longer violated".
    "sequential adds nothing when the byte delay was long enough": Case(
        BOTH, timed(21_000), {"throttle_time_ms": 11_000}, SEQUENTIAL
    ),
    # The byte quota counts by user, the request quota by client-id: the same total.
    "sequential works across counters": Case(
        [BOTH[0], BY_CLIENT_ID],
        timed(10_500),
        {"throttle_time_ms": 1500, "charges": {0: {"entity": {"user": "alice"}}, 1: {"entity": {"client_id": "app"}}}},
        SEQUENTIAL,
    ),
    # Either may throttle: here the client's wait is the longer one.
    "client and partition limits both apply": Case(
        [quota(BYTES, 100), quota(PARTITION, 400, topic="orders")],
        [moves("Produce", 5000)],
        {"throttle_time_ms": 40_000}
        | {"charges": [{"quota": BYTES, "throttle_ms": 40_000}, {"quota": PARTITION, "throttle_ms": 2500}]},
    ),
    # KIP-1010: "Regardless of whether the topic-partition quota is enabled or not".
    "partitions are reported even where no quota is set": Case(
        [], [moves("Produce", 5000)], {"charges": [{"quota": PARTITION, "value": 5000.0, "matched": "none"}]}
    ),
    # Its charge shows the wait it would ask for.
    "a shadow quota reports and never throttles": Case(
        [quota(BYTES, 2000, shadow=True)],
        [moves("Produce", 30_000)],
        {"verdict": "ALLOW", "throttle_time_ms": 0, "decided_by": None}
        | {"charges": {0: {"mode": "shadow", "throttle_ms": 5000, "violated": True}}},
    ),
    # Would-be refusals are charges that are violated; every topic is admitted.
    "a shadow mutation quota refuses nothing": Case(
        [TRIAL],
        [creates(60), creates(1)],
        {"topic_results": [{"topic": "t0", "error_code": 0, "error_message": None}], "verdict": "ALLOW"}
        | {"charges": {0: {"throttle_ms": 1000}}},
    ),
    "a shadow quota of a partition is charged and the enforced amount only reported": Case(
        [quota(PARTITION, 1.0, topic="orders", shadow=True)],
        [moves("Produce", 5000)],
        {"verdict": "ALLOW"}
        | {"charges": [{"mode": "shadow", "limit": 1.0, "rate": 500.0}, {"mode": None, "limit": None, "rate": None}]},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_decision_says(case: Case) -> None:
    *_, last = decide(case.quotas, *case.events, settings=case.settings)

    assert part_of(last, case.last) == case.last


def test_withheld_bytes_are_taken_back_from_the_counters_of_other_tags_too() -> None:
    """By user, by client-id for request time, by partition and in shadow: one Fetch, four counters."""
    trial, partition = (
        quota(FETCHED, 1, ANY_CLIENT, shadow=True),
        quota(QuotaKind.TOPIC_CONSUMER_BYTE_RATE, 1, ANY_TOPIC),
    )
    entries = [*OF_FETCHES, trial, partition, BY_CLIENT_ID]
    first, second = decide(entries, moves("Fetch", 20_000, request_time_ns=5_000_000, withheld=True), moves("Fetch", 0))

    assert [charge["rate"] for charge in first["charges"]].count(2000.0) == 3
    assert [charge["rate"] for charge in second["charges"]] == [0.0, 0.0, 0.0]


def test_validating_only_costs_nothing_unless_set_so() -> None:
    """The proposal exempts it; shipped Kafka charges it; `validate_only_exempt` decides."""
    dry_run = creates(60, validate_only=True)

    (exempt,) = decide(MUTATIONS, dry_run)
    (charged,) = decide(MUTATIONS, dry_run, settings=QuotaSettings(validate_only_exempt=False))

    assert exempt["charges"] == []
    assert charged["charges"][0]["tokens"] == -5.0


def test_bytes_of_unknown_partitions_are_charged_to_the_client_alone() -> None:
    """A quota on topics can't be, so no partition is charged or reported."""
    entries = [
        quota(QuotaKind.PRODUCER_BYTE_RATE, 1000),
        quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1, QuotaEntity(topic=DEFAULT)),
    ]

    produced, fetched, replicated = decide(
        [*entries, quota(QuotaKind.CONSUMER_BYTE_RATE, 1000)],
        {"api": "Produce", "bytes": 20_000},
        {"api": "Fetch", "bytes": 30_000},
        {"api": "Fetch", "bytes": 30_000, "cluster_action": True},
    )

    assert [(charge["quota"], charge["value"]) for charge in produced["charges"]] == [("producer_byte_rate", 20_000)]
    assert produced["throttle_time_ms"] == 10_000
    assert [(charge["quota"], charge["value"]) for charge in fetched["charges"]] == [("consumer_byte_rate", 30_000)]
    assert replicated["charges"] == []


@pytest.mark.parametrize(("api", "kind"), COUNTED_APIS.items())
def test_requests_of_an_api_are_counted_where_a_proxy_holds_them(api: str, kind: QuotaKind) -> None:
    """30 requests in a fresh window of 10 s are 3 a second: (3 - 2) / 2 of 10 s is the wait."""
    summed, other = decide([quota(kind, 2.0)], {"api": api, "requests": 30}, {"api": "Metadata", "requests": 30})

    assert [(charge["quota"], charge["value"]) for charge in summed["charges"]] == [(kind, 30.0)]
    assert (summed["decided_by"], summed["throttle_time_ms"]) == (kind, 5_000)
    assert other["charges"] == []


def test_mutations_that_were_executed_are_charged_and_never_refused() -> None:
    """Burst 55: 60 leave -5; 10 more are charged all the same, where a request that asks first is refused."""
    executed = [{"api": api, "mutations_charged": 10, "validate_only": True} for api in ("CreateTopics", "Requests")]

    _, *charged, asked = decide(MUTATIONS, creates(60), *executed, creates(1))

    assert [(each["verdict"], each["throttle_time_ms"], each["error_code"]) for each in charged] == [
        ("THROTTLE", 3_000, 0),
        ("THROTTLE", 5_000, 0),
    ]
    assert [each["charges"][0]["tokens"] for each in charged] == [-15.0, -25.0]
    assert [each["topic_results"] for each in charged] == [[], []]
    assert asked["verdict"] == "REJECT"


def test_a_sum_of_requests_is_one_charge_of_the_sum() -> None:
    entries = [quota(QuotaKind.PRODUCER_BYTE_RATE, 1000), quota(QuotaKind.REQUEST_PERCENTAGE, 100)]
    summed = [moves("Produce", 20_000, requests=4), {"api": "Requests", "request_time_ns": 10**9, "requests": 9}]

    assert [(charge["quota"], charge["value"]) for each in decide(entries, *summed) for charge in each["charges"]] == [
        ("producer_byte_rate", 20_000.0),
        ("producer.byte.rate", 20_000.0),
        ("request_percentage", 100.0),
    ]


def test_a_heartbeat_is_charged_nothing_and_repeated() -> None:
    """Not even its request time, whoever it says sent it."""
    share = {"quota": "producer_byte_rate", "entity": {"user": "alice"}, "limit": 9.0, "share": 4.5, "charged": 1.5}
    heartbeat = {"staleness_ms": 12, "counters": 3, "shares": [share | {"throttle_ms": 4}], "threads_down": 1}
    heartbeat["metrics_seen"] = False
    log_dirs = [{"path": "/data", "free_bytes": 1, "total_bytes": 2}]
    heartbeat["load"] = {"broker_id": 3, "handler_idle": 0.5, "log_dirs": log_dirs}
    heartbeat["unlimited"] = [unlimited_of()]
    heartbeat |= {"command": 7, "release": "0.2.0"}
    heartbeat["not_exempt"] = [{"principal": "User:sluice", "client_id": "sluice-1-sums"}]
    entries = [quota(QuotaKind.REQUEST_PERCENTAGE, 1, ANY_CLIENT), *MUTATIONS]

    (decision,) = decide(
        entries,
        {"api": "GatewayHeartbeat", "gateway": "g", "instance": "g-1", "heartbeat": heartbeat}
        | {"request_time_ns": 10**9, "mutations_charged": 9},
    )

    assert (decision["verdict"], decision["charges"]) == ("ALLOW", [])
    assert (decision["api"], decision["gateway"], decision["instance"]) == ("GatewayHeartbeat", "g", "g-1")
    assert decision["heartbeat"] == heartbeat


def test_replica_fetches_are_not_charged_to_clients() -> None:
    """They have the replication quota, and are exempt from request time."""
    entries = [quota(QuotaKind.CONSUMER_BYTE_RATE, 1), quota(QuotaKind.REQUEST_PERCENTAGE, 1)]

    (decision,) = decide(entries, moves("Fetch", 10**9, cluster_action=True, request_time_ns=10**9))

    assert decision["verdict"] == "ALLOW"
    assert [charge["quota"] for charge in decision["charges"]] == ["exempt-request-time"]
    assert decision["charges"][0]["value"] == 100.0


def test_the_earlier_draft_exempts_the_timing_sensitive_requests() -> None:
    """Heartbeat and the group requests, whoever sends them; LeaderAndIsr is not on its list."""
    entries = [quota(QuotaKind.REQUEST_PERCENTAGE, 1)]
    draft = QuotaSettings(policy=RequestPolicy.KIP124_DRAFT)
    exempt = ("StopReplica", "ControlledShutdown", "Heartbeat", "JoinGroup", "LeaveGroup", "SyncGroup")

    verdicts = [decide(entries, works(2000, api), settings=draft)[0]["verdict"] for api in (*exempt, "LeaderAndIsr")]

    assert verdicts == ["ALLOW"] * 6 + ["THROTTLE"]


def test_each_partition_is_metered_on_its_own_under_its_topics_limit() -> None:
    """KIP-1010: partition 0 is over, partition 1 of the same topic is not."""
    entries = [quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 100, QuotaEntity(topic="orders"))]
    written = [{"topic": "orders", "partition": number, "bytes": size} for number, size in ((0, 2000), (1, 500))]

    (decision,) = decide(entries, {"api": "Produce", "topic_partitions": written})

    assert [charge["entity"] for charge in decision["charges"]] == [
        {"topic": "orders", "partition": 0},
        {"topic": "orders", "partition": 1},
    ]
    assert [charge["throttle_ms"] for charge in decision["charges"]] == [10_000, 0]
    assert decision["throttle_time_ms"] == 10_000


def test_the_default_topic_limits_topics_without_their_own() -> None:
    """KIP-1010: `<default>`, overridden for specific topics."""
    entries = [
        quota(QuotaKind.TOPIC_CONSUMER_BYTE_RATE, 100, QuotaEntity(topic=DEFAULT)),
        quota(QuotaKind.TOPIC_CONSUMER_BYTE_RATE, 10_000, QuotaEntity(topic="orders")),
    ]

    own, default = decide(entries, moves("Fetch", 5000), moves("Fetch", 5000, topic="clicks"))

    assert (own["charges"][0]["matched"], own["verdict"]) == ("topic", "ALLOW")
    assert (default["charges"][0]["matched"], default["verdict"]) == ("default topic", "THROTTLE")


def test_a_lower_limit_is_tried_in_shadow_with_the_live_one() -> None:
    """30 000 bytes in a fresh window of 10 s are 3 000 a second: within 4 000, over 2 000."""
    (decision,) = decide([quota(BYTES, 4000), quota(BYTES, 2000, shadow=True)], moves("Produce", 30_000))

    assert (decision["verdict"], decision["throttle_time_ms"]) == ("ALLOW", 0)
    live, trial, partition = decision["charges"]
    assert (live["quota"], live["limit"], live["rate"], live["throttle_ms"]) == (BYTES, 4000.0, 3000.0, 0)
    assert "mode" not in live
    assert (trial["quota"], trial["limit"], trial["rate"], trial["throttle_ms"]) == (BYTES, 2000.0, 3000.0, 5000)
    assert (trial["mode"], trial["entity"], trial["matched"]) == ("shadow", {"user": "alice"}, "user")
    assert partition["quota"] == "producer.byte.rate"


def test_a_more_specific_shadow_quota_leaves_the_enforced_one_and_its_counter() -> None:
    """Each mode is resolved on its own: the trial counts alice's app, the live quota all of alice."""
    trial = quota(BYTES, 500, QuotaEntity(user="alice", client_id="app"), shadow=True)
    other, own = decide([quota(BYTES, 1000), trial], moves("Produce", 5000, client_id="other"), moves("Produce", 6000))

    assert [charge.get("mode") for charge in other["charges"]] == [None, None]
    live, tried, _ = own["charges"]
    assert (live["entity"], live["rate"]) == ({"user": "alice"}, 1100.0)
    assert (tried["entity"], tried["rate"]) == ({"user": "alice", "client_id": "app"}, 600.0)
    assert (own["verdict"], own["decided_by"], own["throttle_time_ms"]) == ("THROTTLE", BYTES, live["throttle_ms"])


def test_what_no_shadow_quota_matches_is_not_charged_in_shadow() -> None:
    """A trial on one user costs other users nothing."""
    trial = quota(BYTES, 1.0, QuotaEntity(user="bob"), shadow=True)
    with_trial, without = (decide(entries, moves("Produce", 5000)) for entries in ([trial], []))

    assert with_trial == without


@given(quota_entries, quota_settings, st.lists(events(), max_size=8))
def test_quotas_that_charge_one_counter_never_charge_two(
    entries: list[QuotaEntry], settings: QuotaSettings, values: list[bytes]
) -> None:
    """In either mode; else the job would leave out the step that combines the parts of decisions."""
    quotas, chosen = Quotas(entries), PipelineSettings.of(replace(DEFAULTS, quota=settings))
    if quotas.charges_one_entity():
        planner = Planner(quotas, chosen)
        for offset, value in enumerate(values):
            planned = plan(planner, chosen, value, Source("q", 0, offset, T0))
            assert sum(not isinstance(each, OutputRecord) for each in planned) <= 1


@given(quota_entries, quota_settings, st.lists(st.lists(events(), max_size=8), max_size=4))
def test_shadow_quotas_change_nothing_for_enforced_ones(
    entries: list[QuotaEntry], settings: QuotaSettings, batches: list[list[bytes]]
) -> None:
    """Every decision, and every counter of an enforced quota, is equal to the last bit with and without them."""
    chosen = PipelineSettings.of(replace(DEFAULTS, quota=settings))
    enforced = [entry for entry in entries if not entry.shadow]
    (decided, counters), (expected, expected_counters) = (
        _decided(batches, chosen, Quotas(some)) for some in (entries, enforced)
    )

    assert [_enforced_part(decision, enforced) for decision in decided] == expected
    assert {key: state for key, state in counters.items() if not key.startswith("shadow:")} == expected_counters


def _decided(
    batches: list[list[bytes]], settings: PipelineSettings, quotas: Quotas
) -> tuple[list[Json], dict[str, Any]]:
    """The decisions and dead letters in the order of their events, and what each counter holds in the end."""
    job = MicroBatches(settings)
    offset = 0
    decided: list[Json] = []
    for batch in batches:
        planned = [(value, Source("q", 0, offset + number, T0)) for number, value in enumerate(batch)]
        offset += len(batch)
        decided += [json.loads(record.value) for record in job.run(planned, quotas)]
    counters: dict[str, Any] = {}
    for payload in job.state.values():
        for key, one in decode(payload, settings.pages).items():
            rates = {
                kind: (rate.values, rate.starts_ms, rate.last_events_ms, rate.current)
                for kind, rate in one.rates.items()
            }
            bucket = one.bucket and (one.bucket.tokens, one.bucket.last_ms)
            counters[key] = (bucket, one.mutation_limit, rates, one.last_event_ms)
    return sorted(decided, key=_offset), counters


def _offset(answer: Json) -> int:
    """The offset of the event that a decision or dead letter answers."""
    if "source" in answer:
        return int(answer["source"]["offset"])
    return int(answer["decision_id"].rpartition("-")[2])


def _enforced_part(decision: Json, enforced: list[QuotaEntry]) -> Json:
    """The decision without its shadow charges, and without exempt time that only a shadow quota made known."""
    if "charges" not in decision:
        return decision
    timed = any(entry.kind is QuotaKind.REQUEST_PERCENTAGE for entry in enforced)
    charges = [
        charge
        for charge in decision["charges"]
        if "mode" not in charge and (timed or charge["quota"] != "exempt-request-time")
    ]
    return decision | {"charges": charges}


def test_unlimited_use_does_not_spoil_a_later_quota() -> None:
    """Kafka: an unlimited bucket is clipped to a full burst when a real quota arrives."""
    job, source = MicroBatches(PipelineSettings.of(DEFAULTS)), Source("requests", 0, 0, T0)
    event = json.dumps({"user": "alice", "timestamp_ms": T0, **creates(1000)}).encode()
    job.run([(event, source)], Quotas([quota(QuotaKind.CONTROLLER_MUTATION_RATE, 10, QuotaEntity(user="bob"))]))

    limited = Quotas([quota(QuotaKind.CONTROLLER_MUTATION_RATE, 10)])
    (record,) = job.run([(event.replace(b"1000", b"110"), source)], limited)

    assert json.loads(record.value)["charges"][0]["tokens"] == 0.0


@pytest.mark.parametrize("name", ["a|b", "<default>", "two words", "🦊", 'quo"te', "new\nline", "a%7Cb", ""])
def test_any_name_is_decided_under_its_own_counter(name: str) -> None:
    """Nothing in a name can reach another entity's counter or break the decision."""
    entries = [quota(QuotaKind.CONTROLLER_MUTATION_RATE, 5, QuotaEntity(user=DEFAULT))]

    first, other, second = decide(entries, creates(60, user=name), creates(1, user=name + "x"), creates(1, user=name))

    assert (first["user"], first["charges"][0]["tokens"]) == (name, -5.0)
    assert (other["verdict"], second["verdict"]) == ("ALLOW", "REJECT")


def test_a_user_named_default_is_not_the_default_user() -> None:
    """The default entity is null; the name is a name."""
    entries = [quota(QuotaKind.CONTROLLER_MUTATION_RATE, 5, QuotaEntity(user="<default>"))]

    (named,) = decide(entries, creates(1, user="<default>"))
    (alice,) = decide(entries, creates(1))

    assert (named["charges"][0]["matched"], alice["charges"][0]["matched"]) == ("user", "none")


AMOUNTS = {
    "request_time_ns": 5,
    "network_time_ns": 6,
    "topic_partitions": [{"topic": "orders", "partition": 0, "bytes": 7}],
    "api_version": 9,
    "cluster_action": True,
    "authenticating": True,
    "purgatory_ms": 8,
    "withheld": True,
    "requests": 3,
}


@pytest.mark.parametrize(
    "amounts",
    [
        AMOUNTS,
        {"bytes": 0, "request_time_ns": 0},
        {"mutations": [{"topic": "t", "partitions": 1}], "validate_only": True},
        {"mutations_charged": 4},
    ],
)
def test_a_decision_repeats_what_the_event_said_so_that_it_can_be_decided_again(amounts: Json) -> None:
    """Charged on one counter, on several and on none."""
    several = [quota(QuotaKind.CONSUMER_BYTE_RATE, 1), quota(QuotaKind.REQUEST_PERCENTAGE, 1, ANY_CLIENT)]
    for entries in ([], several, [*MUTATIONS, *several]):
        (decision,) = decide(entries, {"api": "Fetch", **amounts})

        assert decision["amounts"] == amounts
        assert decide(entries, {"api": "Fetch", **decision["amounts"]}) == [decision]


def test_the_decision_on_the_widest_event_fits_into_a_record_of_the_topic() -> None:
    """10 000 topic-partitions, each charged twice, and as long names as the event can have."""
    wide = changed(DEFAULTS, "enforce", max_charges_per_event=10_000)
    entries = [
        quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1.0, QuotaEntity(topic=DEFAULT), shadow) for shadow in (False, True)
    ]
    touched = [{"topic": f"{number:040}", "partition": number, "bytes": 10**9} for number in range(10_000)]
    event = json.dumps({"api": "Produce", "timestamp_ms": T0, "topic_partitions": touched}).encode()

    (record,) = Simulation(Quotas(entries), wide).decide([event])

    assert DEFAULTS.enforce.max_event_bytes * 0.9 < len(event) < DEFAULTS.enforce.max_event_bytes
    assert record.topic == DEFAULTS.topics.decisions
    assert len(record.value) < DEFAULTS.topics.max_message_bytes * 0.9


SMALL = changed(DEFAULTS, "topics", max_message_bytes=20_000)
"""Settings of topics that take records of 20 kB."""


@pytest.mark.parametrize("charges", [0, 1, 2])
def test_a_decision_that_its_topic_does_not_take_becomes_a_dead_letter_and_stays_charged(charges: int) -> None:
    """One such record would end the query at each attempt; with any number of counters."""
    client = quota(QuotaKind.PRODUCER_BYTE_RATE, 1.0)
    entries = [client, quota(QuotaKind.REQUEST_PERCENTAGE, 1.0, QuotaEntity(user="bob"))][:charges]
    wide = {"topic_partitions": [{"topic": f"{number:040}", "partition": 0, "bytes": 9} for number in range(200)]}
    event = {"api": "Produce", "user": "alice", "timestamp_ms": T0, **AMOUNTS}
    simulation = Simulation(Quotas(entries), changed(SMALL, "enforce", max_charges_per_event=200))

    records = [*simulation.decide(json.dumps(each).encode() for each in (event | wide, event))]

    assert [record.topic for record in records] == [SMALL.topics.dead_letters, SMALL.topics.decisions]
    letter = json.loads(records[0].value)
    assert letter["source"] == {"topic": "quota-requests", "partition": 0, "offset": 0, "topic_id": None}
    assert (letter["error"]["field"], letter["error"]["expected"]) == ("value", "at most 20000")
    assert letter["error"]["problem"].startswith("has a decision of ")
    if charges:
        assert json.loads(records[1].value)["verdict"] == "THROTTLE"


@pytest.mark.parametrize("bytes_", [20_000, 8192])
def test_a_dead_letter_is_cut_to_what_its_topic_takes(bytes_: int) -> None:
    """Also where next to nothing is left of the event."""
    event = b"x" * 1_000_000

    (record,) = Simulation(Quotas([]), changed(SMALL, "topics", max_message_bytes=bytes_)).decide([event])

    assert 4000 < len(record.value) < bytes_
    letter = json.loads(record.value)
    assert letter["value_bytes"] == len(event)
    assert event.startswith(b64decode(letter["value"]))


def test_a_decision_on_an_event_that_said_nothing_repeats_nothing() -> None:
    """Defaults that are written out are nothing said either."""
    (decision,) = decide([], {"api": "Fetch", "requests": 1, "mutations": [], "withheld": False, "bytes": None})

    assert not decision.keys() & {"amounts", "throttled_by", "heartbeat"}
    assert decision["instance"] is None


def test_a_decision_repeats_the_gateways_process_and_the_waits_it_applied() -> None:
    waits = [{"quota": "producer_byte_rate", "entity": {"user": "alice"}, "ms": 5}]
    partition = [{"quota": "producer.byte.rate", "entity": {"topic": "orders", "partition": 0}, "ms": 0}]

    for applied in ([], waits, partition):
        (decision,) = decide([], {"api": "Produce", "instance": "a-1", "throttled_by": applied})

        assert (decision["instance"], decision["throttled_by"]) == ("a-1", applied)


@given(quota_entries, quota_settings, st.lists(events(), max_size=20), st.sampled_from([1, 20]))
def test_a_decision_is_to_the_byte_the_contracts_record_of_the_scalar_rule(
    entries: list[QuotaEntry], settings: QuotaSettings, sent: list[bytes], at_once: int
) -> None:
    """The job's rows travel as bytes, by page; here the same decision is made charge by charge."""
    chosen = PipelineSettings.of(load_settings(environment={}))._replace(quota=settings, job_id="job", pages=1)
    quotas, job = Quotas(entries, version=3), MicroBatches(chosen)
    sources = [(event, Source("requests", 0, offset, 10**13)) for offset, event in enumerate(sent)]

    made = [
        record
        for first in range(0, len(sources), at_once)
        for record in job.run(sources[first : first + at_once], quotas, decided_at_ms=7)
    ]

    planner, counters = Planner(quotas, chosen), dict[str, EntityCounters]()
    expected = [decided_by_objects(plan(planner, chosen, *source), counters, settings) for source in sources]
    assert sorted(record.value for record in made) == sorted(expected)


def test_a_decision_of_many_entities_is_to_the_byte_that_of_the_scalar_rule() -> None:
    """With every kind of charge, some refused and some waiting for minutes."""
    settings = QuotaSettings()
    chosen = PipelineSettings.of(DEFAULTS)._replace(pages=1)
    entries = [quota(kind, 3.0, QuotaEntity(user=DEFAULT)) for kind in CLIENT_KINDS]
    entries += [quota(kind, 1e9, QuotaEntity(topic=DEFAULT), shadow=True) for kind in TOPIC_KINDS]
    apis = [moves("Produce", 30), moves("Fetch", 10), creates(60), creates(8), creates(2, api_version=1), creates(1, 2)]
    sources = []
    for offset in range(600):
        several_topics = offset // 100 == 5 and offset % 2
        event = apis[5 if several_topics else offset // 100 % 5] | {
            "user": f"user-{offset % 100}",
            "request_time_ns": 10**6 * offset,
        }
        event |= {"timestamp_ms": T0 + offset * 7, "network_time_ns": offset, "withheld": offset % 3 == 0}
        sources.append((json.dumps(event).encode(), Source("requests", 0, offset, T0)))

    made = MicroBatches(chosen).run(sources, Quotas(entries), decided_at_ms=7)

    planner, counters = Planner(Quotas(entries), chosen), dict[str, EntityCounters]()
    expected = [decided_by_objects(plan(planner, chosen, *source), counters, settings) for source in sources]
    assert sorted(record.value for record in made) == sorted(expected)
    assert {json.loads(value)["verdict"] for value in expected} == {"ALLOW", "THROTTLE", "REJECT"}


def test_clients_with_limits_of_their_own_are_charged_together_by_their_own_limits() -> None:
    """Each has a shape of its own, and some are charged two kinds and others three, in any order."""
    chosen = PipelineSettings.of(DEFAULTS)._replace(pages=1)
    users = [QuotaEntity(user=f"user-{number}") for number in range(100)]
    kinds = (QuotaKind.REQUEST_PERCENTAGE, QuotaKind.PRODUCER_BYTE_RATE)
    entries = [quota(kind, 1.0 + number, user) for number, user in enumerate(users) for kind in kinds]
    entries += [quota(BYTES, 2.0 + number, user, shadow=True) for number, user in enumerate(users) if number % 3]
    sources = [
        (
            json.dumps(moves("Produce", 300) | {"user": f"user-{offset * 7 % 100}", **amounts}).encode(),
            Source("requests", 0, offset, T0),
        )
        for offset in range(300)
        for amounts in [{"request_time_ns": 10**8} if offset % 2 else {}]
    ]

    made = MicroBatches(chosen).run(sources, Quotas(entries), decided_at_ms=7)

    planner, counters = Planner(Quotas(entries), chosen), dict[str, EntityCounters]()
    expected = [decided_by_objects(plan(planner, chosen, *source), counters, chosen.quota) for source in sources]
    assert sorted(record.value for record in made) == sorted(expected)
    limits = {charge["limit"] for value in expected for charge in json.loads(value)["charges"]}
    assert limits == {None, *(1.0 + number for number in range(100))}


def plan(planner: Planner, settings: PipelineSettings, value: bytes, source: Source, decided_at_ms: int = 7) -> Planned:
    """The charge rows of an event, or its record."""
    event = read_event(value, source, settings, decided_at_ms)
    if isinstance(event, OutputRecord):
        return [event]
    return planner.plan(event, source, planner.batch_fields(decided_at_ms))


def decided_by_objects(planned: Planned, counters: dict[str, EntityCounters], settings: QuotaSettings) -> bytes:
    """The record of an event with these charge rows, made of the contract's objects."""
    rows = [each[1] for each in planned if not isinstance(each, OutputRecord)]
    if not rows:
        return next(each.value for each in planned if isinstance(each, OutputRecord))
    decision = msgspec.json.decode(rows[0].decision, type=Decision)
    charges, waits = [], Waits()
    for row in rows:
        counter = counters.setdefault(row.key, EntityCounters())
        outcomes = counter.charge_request(row.charges(), row.timestamp_ms, settings)
        charges += [charge_result(outcome, row.entity) for outcome in outcomes]
        waits.join(Waits.of(outcomes))
    decision.charges = charges + decision.charges
    answer = request_outcome(waits, rows[0].purgatory_ms, decision.timestamp_ms, settings)
    decision.verdict, decision.throttle_time_ms = answer.verdict, answer.throttle_ms
    if answer.throttle_ms:
        decision.mute_until_ms = decision.timestamp_ms + answer.throttle_ms
        decision.decided_by = answer.decided_by
    if answer.verdict is Verdict.REJECT:
        decision.error_code = 89
    for result, is_refused in zip(decision.topic_results, waits.refused, strict=False):
        if is_refused:
            result.error_code, result.error_message = 89, "The throttling quota has been exceeded."
    encoded: bytes = msgspec.json.encode(decision)
    return encoded


def charge_result(outcome: Outcome, entity: bytes) -> ChargeResult:
    """The contract's record of a charge."""
    charge = outcome.charge
    waited_ms = max(min(outcome.wait_ms, 2**31 - 1), 1 if any(outcome.refused) else 0) if outcome.violated else 0
    result = ChargeResult(
        charge.kind, msgspec.json.decode(entity, type=CountedEntity), charge.level, charge.limit, outcome.value
    )
    result.rate, result.throttle_ms, result.violated = outcome.rate, waited_ms, outcome.violated
    if charge.kind is QuotaKind.CONTROLLER_MUTATION_RATE:
        result.tokens = outcome.tokens
    if charge.shadow:
        result.mode = "shadow"
    return result
