"""Tenants: who is in which one, and that its own limit and its tenant's throttle a request."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sluice.configs.quotas import load_quotas_file
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Coexistence, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.state.quotas.tenants import Tenants, check_members, is_glob, matches
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.simulation import Simulation
from sluice_reading.quota_lists import merged
from sluice_reading.quota_text import quotas_yaml
from tests.builders import DEFAULTS, Json, file_of, member, quota
from tests.strategies import CLIENTS, START_MS, USERS, client_and_topic_entries, events, tenant_entries

PRODUCE, MUTATIONS = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONTROLLER_MUTATION_RATE
T0 = START_MS


def of_tenant(tenant: Any, value: float, kind: QuotaKind = PRODUCE, shadow: bool = False) -> QuotaEntry:
    return quota(kind, value, tenant=tenant, shadow=shadow)


def of_user(user: str, value: float, kind: QuotaKind = PRODUCE) -> QuotaEntry:
    return quota(kind, value, user=user)


def produce(user: str, size: int, at_ms: int = T0, client_id: str = "app") -> bytes:
    event = {"api": "Produce", "user": user, "client_id": client_id, "bytes": size, "timestamp_ms": at_ms}
    return json.dumps(event).encode()


def decided(entries: list[QuotaEntry], stream: list[bytes], settings: QuotaSettings | None = None) -> list[Json]:
    chosen = replace(DEFAULTS, quota=settings or DEFAULTS.quota)
    return [json.loads(record.value) for record in Simulation(Quotas(entries), chosen).decide(stream)]


# --- who is in which tenant ---


@pytest.mark.parametrize(
    ("user", "client_id", "tenant"),
    [
        ("alice", "etl", "pair"),
        ("alice", "app", "name"),
        ("alina", "app", "longer glob"),
        ("alex", "app", "glob"),
        ("eve", "etl", "client-id"),
        ("eve", "app", ""),
        ("", "etl", "client-id"),
    ],
)
def test_the_most_specific_member_that_matches_counts(user: str, client_id: str, tenant: str) -> None:
    """A user with a client-id before a user, a user before a client-id, a name before a glob, then the longer glob."""
    tenants = Tenants(
        entry.entity
        for entry in (
            member("client-id", client_id="etl"),
            member("glob", user="al*"),
            member("longer glob", user="ali*"),
            member("name", user="alice"),
            member("pair", user="a*", client_id="etl"),
        )
    )

    assert tenants.of(user, client_id) == tenant


def test_of_globs_that_are_alike_the_tenant_that_sorts_first_counts() -> None:
    for order in ([0, 1], [1, 0]):
        some = [member("b", user="x-*").entity, member("a", user="*-y").entity]

        assert Tenants(some[number] for number in order).of("x-y", "") == "a"


_globs = st.sampled_from(["alice", "al*", "*", "a?ice", "bob|x", "🦊*", "app", "app two", "*two"])


@given(st.lists(st.tuples(st.sampled_from("abc"), _globs | st.none(), _globs | st.none()), max_size=12))
def test_an_index_finds_whom_a_search_of_all_members_finds(members: list[tuple[str, str | None, str | None]]) -> None:
    entities = [QuotaEntity(tenant=t, user=u, client_id=c) for t, u, c in members if u or c]
    tenants = Tenants(entities)
    for user in USERS:
        for client_id in CLIENTS:
            wanted = {
                each
                for each in entities
                if (each.user is None or matches(str(each.user), user))
                and (each.client_id is None or matches(str(each.client_id), client_id))
            }
            assert set(tenants.members_of(user, client_id)) == wanted
            assert tenants.of(user, client_id) in ({each.tenant for each in wanted} or {""})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"user": "alice"}, {"user": "alice"}),
        ({"user": "alice"}, {"user": "al*"}),
        ({"user": "al*"}, {"user": "al*"}),
        ({"client_id": "etl"}, {"client_id": "?tl"}),
        ({"user": "al*", "client_id": "etl"}, {"user": "alice", "client_id": "e*"}),
    ],
)
def test_a_member_of_two_tenants_is_refused_with_both_names(one: Json, other: Json) -> None:
    for first, second in ((one, other), (other, one)):
        with pytest.raises(InvalidQuotaError, match="'shop'") as error:
            check_members([member("shop", **first), member("bank", **second)])

        assert "'bank'" in str(error.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"user": "alice"}, {"client_id": "alice"}),
        ({"user": "a*"}, {"user": "*b"}),
        ({"user": "alice", "client_id": "etl"}, {"user": "alice"}),
        ({"user": "alice", "client_id": "etl"}, {"user": "alice", "client_id": "app"}),
    ],
)
def test_what_two_tenants_may_have_in_common_is_left_to_the_order(one: Json, other: Json) -> None:
    check_members([member("shop", **one), member("bank", **other)])


def test_a_long_name_made_against_a_glob_costs_little() -> None:
    """Clients choose their client-ids, of up to 32 767 characters."""
    tenants = Tenants([member("t", client_id="*a*a*a*a*a*b").entity])
    start = time.process_time()

    assert tenants.of("", "a" * 32_767) == ""
    assert time.process_time() - start < 2


def test_ten_thousand_topics_and_a_thousand_globs_that_begin_with_a_wildcard_take_no_second() -> None:
    """The job asks for the tenants of all topics every 10 s while any tenant has a budget."""
    ends = [QuotaEntity(tenant=f"t{number}", topic=f"*.t{number}") for number in range(1_000)]
    tenants = Tenants([*ends, QuotaEntity(tenant="middle", topic="*orders*")])
    topics = [f"{name}.t{number}" for name in ("clicks", "x") for number in range(5_000)]
    start = time.process_time()

    found = [tenants.of_topic(topic) for topic in topics]

    assert time.process_time() - start < 1
    assert found == [f"t{number}" if number < 1_000 else "" for _ in ("clicks", "x") for number in range(5_000)]
    assert tenants.of_topic("a-orders-b") == "middle"


# --- both limits hold ---


def test_the_longer_wait_counts_and_the_decision_names_both_counters() -> None:
    """Bursts of 11 s: 22 000 bytes at 1 000 bytes/s wait 11 s and more, at 500 twice that."""
    entries = [member("shop", user="a*"), of_tenant("shop", 500.0), of_user("alice", 1000.0)]

    (decision,) = decided(entries, [produce("alice", 21_000)])

    own, tenants = decision["charges"]
    assert own["entity"] == {"user": "alice"}
    assert (tenants["entity"], tenants["matched"], tenants["limit"]) == ({"tenant": "shop"}, "tenant", 500.0)
    assert tenants["throttle_ms"] > own["throttle_ms"] > 0
    assert decision["throttle_time_ms"] == tenants["throttle_ms"]
    assert decision["decided_by"] == "producer_byte_rate"


def test_members_are_held_together_and_others_are_not() -> None:
    entries = [member("shop", user="shop-*"), of_tenant("shop", 1000.0)]
    stream = [produce(f"shop-{number}", 1000) for number in range(12)] + [produce("other", 1_000_000)]

    decisions = decided(entries, stream)

    waits = [decision["throttle_time_ms"] for decision in decisions]
    assert waits[:10] == [0] * 10
    assert waits[11] > 0, "12 000 bytes of 12 users that nobody had named"
    assert decisions[-1]["charges"] == [], "no quota of the kind is set on clients, so no counter is kept of them"


def test_each_tenant_without_a_limit_of_its_own_has_the_default_one() -> None:
    entries = [
        *(member(name, user=name) for name in ("shop", "bank", "<default>")),
        of_tenant(DEFAULT, 100.0),
        of_tenant("bank", 1e6),
    ]

    decisions = decided(entries, [produce(name, 5000) for name in ("shop", "bank", "<default>", "nobody")])

    charges = [decision["charges"] for decision in decisions]
    assert [(of["matched"], of["entity"]) for (of,) in charges[:3]] == [
        ("default tenant", {"tenant": "shop"}),
        ("tenant", {"tenant": "bank"}),
        ("default tenant", {"tenant": "<default>"}),
    ]
    assert charges[3] == []


def test_a_topic_is_refused_if_the_clients_bucket_or_the_tenants_is_empty() -> None:
    """Burst of the tenant 11: bob's 12 leave -1, so alice's next topic is refused though her own bucket is full."""
    entries = [
        member("shop", user="*"),
        of_tenant("shop", 1.0, MUTATIONS),
        of_user("alice", 100.0, MUTATIONS),
        of_user("bob", 100.0, MUTATIONS),
    ]

    def creates(user: str, *partitions: int) -> bytes:
        topics = [{"topic": f"t{number}", "partitions": count} for number, count in enumerate(partitions)]
        return json.dumps({"api": "CreateTopics", "user": user, "mutations": topics, "timestamp_ms": T0}).encode()

    bob, alice = decided(entries, [creates("bob", 12), creates("alice", 1)])

    assert (bob["verdict"], alice["verdict"]) == ("ALLOW", "REJECT")
    assert alice["topic_results"][0]["error_code"] == 89
    assert alice["throttle_time_ms"] == 1000
    assert [of["violated"] for of in alice["charges"]] == [False, True]


def test_a_tenants_shadow_limit_throttles_nobody() -> None:
    entries = [member("shop", user="a*"), of_tenant("shop", 1.0, shadow=True), of_user("alice", 1e9)]

    (decision,) = decided(entries, [produce("alice", 21_000)])

    assert (decision["verdict"], decision["throttle_time_ms"]) == ("ALLOW", 0)
    assert decision["charges"][1]["mode"] == "shadow"
    assert decision["charges"][1]["violated"]


@given(client_and_topic_entries, tenant_entries, st.lists(events(), max_size=12))
def test_a_tenant_leaves_the_charges_of_its_members_as_they_are_and_the_wait_is_the_longer_one(
    clients: list[QuotaEntry], tenants: list[QuotaEntry], stream: list[bytes]
) -> None:
    settings = QuotaSettings(coexistence=Coexistence.MAX)
    alone, above = decided(clients, stream, settings), decided(tenants, stream, settings)

    for one, other, both in zip(alone, above, decided([*clients, *tenants], stream, settings), strict=True):
        if "charges" not in one:
            assert both == one, "a dead letter"
            continue
        of_tenants = [charge for charge in both["charges"] if "tenant" in charge["entity"]]
        own = [charge for charge in both["charges"] if "tenant" not in charge["entity"]]
        assert of_tenants == [charge for charge in other["charges"] if "tenant" in charge["entity"]]
        exempt = [charge for charge in own if charge["quota"] == "exempt-request-time"]
        assert [each for each in own if each not in exempt] == [each for each in one["charges"] if each not in exempt]
        assert both["throttle_time_ms"] == max(one["throttle_time_ms"], other["throttle_time_ms"])
        results = zip(one["topic_results"], other["topic_results"], strict=True)
        refused = [max(own["error_code"], tenants_["error_code"]) for own, tenants_ in results]
        assert [result["error_code"] for result in both["topic_results"]] == refused


@given(client_and_topic_entries, st.lists(events(), max_size=12))
def test_members_without_a_limit_change_nothing(clients: list[QuotaEntry], stream: list[bytes]) -> None:
    members = [member("shop", user="*"), member("bank", client_id="app")]

    assert decided([*clients, *members], stream) == decided(clients, stream)


def test_sequential_checks_the_request_time_of_both_again() -> None:
    """The byte wait comes first; at its end the tenant's request quota still asks for a window."""
    time_kind = QuotaKind.REQUEST_PERCENTAGE
    clients = [of_user("alice", 5000.0), of_user("alice", 50.0, time_kind)]
    tenants = [member("shop", user="alice"), of_tenant("shop", 1.0, time_kind)]
    event = {"api": "Produce", "user": "alice", "bytes": 55_000, "request_time_ns": 600_000_000, "timestamp_ms": T0}
    sequential = QuotaSettings(coexistence=Coexistence.SEQUENTIAL)

    for entries, wait_ms in ((clients, 1000), ([*clients, *tenants], 2000)):
        (decision,) = decided(entries, [json.dumps(event).encode()], sequential)

        assert decision["throttle_time_ms"] == wait_ms


def test_an_unmuted_tenant_counts_from_nothing_and_its_members_go_on() -> None:
    entries = [member("shop", user="a*"), of_tenant("shop", 500.0), of_user("alice", 1000.0)]
    unmute = {"control": "unmute", "entity": {"tenant": "shop"}}

    _, answer, after = decided(entries, [produce("alice", 21_000), json.dumps(unmute).encode(), produce("alice", 1)])

    assert [charge["entity"] for charge in answer["charges"]] == [{"tenant": "shop"}]
    assert [charge["violated"] for charge in after["charges"]] == [True, False]


# --- kept and shown ---


ENTRIES = [
    member("shop", user="shop-*"),
    member("shop", client_id="shop web"),
    member("bank", user="b*", client_id="etl"),
    of_tenant("shop", 1000.0),
    of_tenant("shop", 500.0, shadow=True),
    of_tenant(DEFAULT, 50.0, QuotaKind.REQUEST_PERCENTAGE),
]


def test_an_export_gives_tenants_back(tmp_path: Path) -> None:
    file = file_of(tmp_path / "quotas.yaml", quotas_yaml([*ENTRIES, of_user("alice", 5.0)]))

    assert set(load_quotas_file(file)) == {*ENTRIES, of_user("alice", 5.0)}


def test_a_tenant_that_was_written_as_one_entry_is_exported_as_one(tmp_path: Path) -> None:
    file, entry = (
        tmp_path / "quotas.yaml",
        "{tenant: shop, users: [shop-*], topics: [shop.*], quotas: {request_percentage: 5}}",
    )
    file.write_text(f"[{entry}]")

    assert yaml.safe_load(quotas_yaml(load_quotas_file(file))) == [yaml.safe_load(entry)]


def test_a_snapshot_keeps_tenants(tmp_path: Path) -> None:
    snapshots = QuotaSnapshots(Checkpoint(str(tmp_path)))
    snapshots.save(3, ENTRIES)

    quotas = snapshots.load(3)

    assert snapshots.entries(3) == ENTRIES
    assert quotas.tenants.of("shop-1", "") == "shop"
    assert quotas.limit_of(PRODUCE, Tags(tenant="shop")) == 1000.0
    assert quotas.limit_of(QuotaKind.REQUEST_PERCENTAGE, Tags(tenant="bank")) == 50.0


def test_globs_and_names_are_told_apart() -> None:
    assert [is_glob(text) for text in ("a*", "a?", "[a]", "a")] == [True, True, False, False]


def test_merged_members_stay_beside_quotas() -> None:
    assert set(merged(ENTRIES, [member("shop", user="new")])) == {*ENTRIES, member("shop", user="new")}
