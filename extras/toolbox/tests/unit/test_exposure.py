"""The exposure of a cluster's own quotas: the brokers of each, and what its owner may not know."""

from collections.abc import Mapping

import pytest
from msgspec import structs

from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice_toolbox import cluster_facts
from sluice_toolbox.cluster import ClusterQuota, RawEntity
from sluice_toolbox.exposure import ClusterFacts, exposed, shadowed
from sluice_toolbox.exposure_command import quotas_exposure
from tests.builders import quota

PRODUCER, CONSUMER = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE
FACTS = ClusterFacts(
    brokers=frozenset({1, 2, 3, 4}),
    leaders=frozenset({1, 2, 3}),
    users=frozenset({"alice", "bob"}),
    written={"alice": frozenset({1, 2})},
    read={"alice": frozenset({3})},
    fetched={"app": frozenset({2})},
)


@pytest.mark.parametrize(
    ("kind", "names", "brokers"),
    [
        (PRODUCER, {"user": "alice"}, 2),
        (CONSUMER, {"user": "alice"}, 1),
        (PRODUCER, {"user": "eve"}, 3),
        (PRODUCER, {"user": DEFAULT}, 3),
        (PRODUCER, {"client_id": "app"}, 3),
        (CONSUMER, {"client_id": "app"}, 1),
        (CONSUMER, {"user": DEFAULT, "client_id": "app"}, 1),
        (PRODUCER, {"user": "alice", "client_id": "app"}, 2),
        (QuotaKind.REQUEST_PERCENTAGE, {"user": "alice"}, 4),
        (QuotaKind.CONTROLLER_MUTATION_RATE, {"user": "alice"}, 1),
    ],
)
def test_a_quota_counts_once_for_each_broker_that_serves_its_clients(
    kind: QuotaKind, names: Mapping[str, object], brokers: int
) -> None:
    [found] = exposed([quota(kind, 1e6, QuotaEntity(**names))], FACTS)  # type: ignore[arg-type] # names or DEFAULT

    assert (found.times, found.possible) == (brokers, brokers * 1e6)


@pytest.mark.parametrize(("sharing", "times"), [((), 3), ((1,), 3), ((1, 2), 2), ((1, 2, 3, 4), 1), ((4,), 3)])
def test_brokers_that_share_a_quota_count_once(sharing: tuple[int, ...], times: int) -> None:
    facts = structs.replace(FACTS, sharing=frozenset(sharing))
    [found] = exposed([quota(PRODUCER, 1e6, QuotaEntity(user=DEFAULT))], facts)

    assert found.times == times


PARTS = (DEFAULT, "a", None)
ENTITIES = [QuotaEntity(user, client_id) for user in PARTS for client_id in PARTS if user or client_id]


@pytest.mark.parametrize("over", ENTITIES)
@pytest.mark.parametrize("under", ENTITIES)
def test_a_quota_is_never_used_exactly_where_no_client_finds_it(over: QuotaEntity, under: QuotaEntity) -> None:
    """Against what resolves requests, for clients with the names of the entities and with others."""
    if over == under:
        return
    entries = [quota(PRODUCER, 1.0, over), quota(PRODUCER, 2.0, under)]
    quotas = Quotas(entries)
    found = {quotas.resolve_client(PRODUCER, user, client).limit for user in ("a", "z") for client in ("a", "z")}

    assert (2.0 not in found) == ((entries[1], entries[0]) in shadowed(entries))


def test_it_says_what_is_possible_and_what_nobody_may_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster: list[tuple[RawEntity, dict[str, float]]] = [
        ({"user": "alice"}, {"producer_byte_rate": 1e6}),
        ({"user": "CN%3Deve"}, {"producer_byte_rate": 2e6}),
        ({"client-id": "app"}, {"consumer_byte_rate": 1e6}),
        ({"user": None}, {"consumer_byte_rate": 5e6}),
        ({"user": "bob"}, {"newer_key": 1.0}),
    ]
    quotas = [ClusterQuota(*each) for each in cluster]
    monkeypatch.setattr(cluster_facts, "read_cluster", lambda *_: (quotas, FACTS))

    quotas_exposure("b1:9092", None, False)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 of 4 brokers lead partitions; each enforces a quota alone"
    [alice] = [line.split("  ") for line in lines if line.startswith("user-principal 'alice'")]
    assert [cell.strip() for cell in alice if cell] == [
        "user-principal 'alice'",
        "producer_byte_rate",
        "1 MB/s",
        "2 MB/s",
        "2",
        "topics that it has rights on",
    ]
    assert lines[6:] == [
        "never used: consumer_byte_rate of client-id 'app'; the default user-principal comes before it for all of its"
        " clients",
        "matches nobody, it seems: user-principal 'CN%3Deve' has no SCRAM login and no right on a topic",
        "is this meant? user-principal 'CN%3Deve': 'CN%3Deve' looks percent-encoded, and requests have names as they"
        " are; if 'CN=eve' is meant, set it on that name",
        "no producer_byte_rate: bob, unless by a client-id",
        next(line for line in lines if line.startswith("not looked at: newer_key of user 'bob': unknown quota key")),
    ]
