"""Finding the limit of a request: what was found before is kept, and never outlives a change of the quotas."""

import json
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

import pytest

from sluice.state.decisions.waits import counters_of
from sluice.state.quotas import name_cache
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags, bounded_name, sanitize
from sluice.state.quotas.kinds import ElasticKey, QuotaKind
from sluice.state.quotas.name_cache import NameCache
from sluice.state.quotas.resolution import PrecedenceLevel, Quotas
from tests.builders import member, quota

KIND = QuotaKind.PRODUCER_BYTE_RATE
TOPIC_KIND = QuotaKind.TOPIC_PRODUCER_BYTE_RATE
ORDERS = QuotaEntity(topic="orders")


def test_what_was_resolved_before_gets_the_changed_limit() -> None:
    by_default = [quota(KIND, 1.0, user=DEFAULT), quota(TOPIC_KIND, 1.0, topic=DEFAULT)]
    own = [quota(KIND, 2.0), quota(TOPIC_KIND, 2.0, ORDERS)]

    for entries, limit, level in (
        (by_default, 1.0, PrecedenceLevel.DEFAULT_USER),
        ([*by_default, *own], 2.0, PrecedenceLevel.USER),
        (by_default, 1.0, PrecedenceLevel.DEFAULT_USER),
    ):
        quotas = Quotas(entries)
        for _ in range(2):
            found = quotas.resolve_client(KIND, "alice", "app")
            assert (found.level, found.limit) == (level, limit)
            assert quotas.resolve_topic(TOPIC_KIND, "orders", 3).limit == limit


def test_more_clients_than_are_cached_are_resolved_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's memory doesn't grow with the clients it has seen."""
    monkeypatch.setattr(name_cache, "MAX_CACHED", 2)
    limits = {user: float(number) for number, user in enumerate("abcdef", 1)}
    quotas = Quotas(quota(KIND, limit, user=user) for user, limit in limits.items())

    first, again = ({user: quotas.resolve_client(KIND, user, "app") for user in limits} for _ in range(2))

    assert {user: one.limit for user, one in first.items()} == limits
    assert first == again
    assert quotas.resolve_client(KIND, "f", "app") is again["f"]
    assert not any(again[user] is first[user] for user in limits), "they were forgotten"


def test_a_client_with_a_giant_name_is_resolved_and_not_cached() -> None:
    """A client that sends a new giant name with each request must not fill the workers' memory."""
    quotas = Quotas([quota(KIND, 1.0, user=DEFAULT)])

    names = [("alice", "app" * 10_000), ("x" * 30_000, "app"), ("alice", "app")]
    (first, again) = ([quotas.resolve_client(KIND, *each) for each in names] for _ in range(2))

    assert [each.limit for each in first] == [1.0] * 3
    assert first[1].key == f"{sanitize(bounded_name('x' * 30_000))}|"
    assert [one is other for one, other in zip(first, again, strict=True)] == [False, False, True]


VECTORS = json.loads((Path(__file__).parents[1] / "data" / "bounded-names.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{vector['times']} of {vector['part']!r}" for vector in VECTORS])
def test_a_hash_stands_for_a_long_name_in_tags(vector: dict[str, Any]) -> None:
    """tests/integration/test_broker_plugin_core.py holds the broker plugin to the same examples."""
    name = vector["part"] * vector["times"]
    assert bounded_name(name) == (name if vector["bounded"] is None else vector["bounded"])


def test_a_limit_on_a_long_name_is_found_by_it_and_by_its_tags() -> None:
    name = "CN=" + "x" * 300
    of_user, of_topic = QuotaEntity(user=name), QuotaEntity(topic=name)
    quotas = Quotas([quota(KIND, 1.0, of_user), quota(TOPIC_KIND, 2.0, of_topic)])

    found = quotas.resolve_client(KIND, name, "app")
    assert (found.tags, found.limit) == (Tags(bounded_name(name)), 1.0)
    assert quotas.resolve_client(KIND, found.tags.user, "app") == found
    assert quotas.limit_of(KIND, found.tags) == 1.0
    assert quotas.client_limits(KIND).entities() == {(bounded_name(name), None, None, None)}
    assert quotas.resolve_topic(TOPIC_KIND, name, 0).tags.topic == bounded_name(name)
    assert quotas.limit_of(TOPIC_KIND, Tags(topic=bounded_name(name), partition=0)) == 2.0
    assert (TOPIC_KIND, Tags(topic=bounded_name(name), partition=0)) in counters_of(
        quotas, "u", "c", "Produce", [(name, 0)]
    )


def test_names_that_are_cached_take_a_bounded_number_of_bytes() -> None:
    """An invented name of foxes is URL-encoded to twelve times its length: the cache counts bytes, not names."""
    cache, kept = NameCache[str, object](4096 * 40), WeakSet[object]()

    def keep(name: str, size: int = 40) -> None:
        value = partial(str, name)  # it is in `kept` while it is in the cache
        kept.add(value)
        cache.keep(name, value, size)

    for number in range(4096):
        keep(f"client-{number}")
    keep("giant", 41)
    assert len(cache) == len(kept) == 4096, "a value of more than its part isn't kept; all others have room"

    for number in range(4096):
        keep(f"newer-{number}")
    used = ref(cache["client-7"])
    for number in range(20_000):
        keep(f"newest-{number}")
        assert len(kept) <= 2 * 4096
    assert used() is None


def test_a_name_that_is_used_stays_in_the_cache_whatever_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a worker with more clients than places would find the plans of all of them anew, in waves."""
    monkeypatch.setattr(name_cache, "MAX_CACHED", 10)
    cache = NameCache[str, int](1 << 20)
    cache.keep("used", 1, size=40)
    for number in range(1_000):
        cache.keep(f"other-{number}", number, size=40)
        assert cache["used"] == 1
        assert len(cache) <= 10


class EmptiedMeanwhile(NameCache[str, int]):
    """A cache that another thread finds full in the same moment, and empties."""

    def copy(self) -> dict[str, int]:
        values = super().copy()
        self.clear()
        return values


def test_threads_share_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a gateway are resolved in the threads that serve them."""
    monkeypatch.setattr(name_cache, "MAX_CACHED", 2)
    cache = EmptiedMeanwhile(1 << 20)
    for number, name in enumerate("abc"):
        cache.keep(name, number, size=40)

    assert [cache[name] for name in "abc"] == [0, 1, 2]


def test_each_mode_is_resolved_on_its_own() -> None:
    """A more specific shadow quota doesn't hide the enforced one, and its counter has a key of its own."""
    of_topic = [quota(TOPIC_KIND, 2.0, ORDERS), quota(TOPIC_KIND, 1.0, ORDERS, shadow=True)]
    quotas = Quotas([quota(KIND, 2.0), quota(KIND, 1.0, user="alice", client_id="app", shadow=True), *of_topic])
    assert quotas.shadow is not None

    enforced, shadow = (each.resolve_client(KIND, "alice", "app") for each in (quotas, quotas.shadow))
    on_topic = quotas.shadow.resolve_topic(TOPIC_KIND, "orders", 3)

    assert (enforced.limit, enforced.level, enforced.key) == (2.0, PrecedenceLevel.USER, "alice|")
    assert (shadow.limit, shadow.level) == (1.0, PrecedenceLevel.USER_CLIENT)
    assert (enforced.shadow, shadow.shadow) == (False, True)
    assert (shadow.tags, shadow.key) == (Tags("alice", "app"), "shadow:alice|app")
    assert quotas.limit_of(KIND, Tags("alice")) == 2.0
    assert quotas.limit_of(KIND, Tags("alice", "app")) is None
    assert quotas.resolve_topic(TOPIC_KIND, "orders", 3).limit == 2.0
    assert (on_topic.limit, on_topic.key) == (1.0, "shadow:topic:orders|3")


def test_a_limit_carries_the_reservation_of_its_own_entity() -> None:
    shop = QuotaEntity(tenant="shop")
    quotas = Quotas(
        [
            quota(KIND, 100.0, user=DEFAULT),
            quota(ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 40.0),
            quota(KIND, 200.0),
            quota(KIND, 1000.0, shop),
            quota(ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 700.0, shop),
            member(tenant="shop", user="alice"),
        ]
    )

    alice, of_shop = quotas.resolve_all(KIND, "alice", "app")
    (bob,) = quotas.resolve_all(KIND, "bob", "app")
    assert [(found.reservation, found.limit) for found in (alice, bob, of_shop)] == [
        (40.0, 200.0),
        (None, 100.0),
        (700.0, 1000.0),
    ]


def test_a_mirrored_limit_may_move_below_its_reservation() -> None:
    def found(*limits: float) -> tuple[float | None, float | None]:
        reservation = quota(ElasticKey.PRODUCER_BYTE_RATE_RESERVATION, 40.0)
        resolved = Quotas([reservation, *(quota(KIND, limit) for limit in limits)]).resolve_client(KIND, "alice", "app")
        return resolved.reservation, resolved.limit

    assert [found(10.0), found(500.0), found()] == [(10.0, 10.0), (40.0, 500.0), (None, None)]


def test_a_kind_with_shadow_quotas_alone_is_not_enabled() -> None:
    """Else every client would get a counter for it, as in Kafka, that the trial doesn't need."""
    quotas = Quotas([quota(KIND, 1.0, shadow=True)])

    assert not quotas.enabled(KIND)
    assert quotas.shadow is not None
    assert quotas.shadow.enabled(KIND)
    assert Quotas([quota(KIND, 1.0)]).shadow is None


def test_a_quota_in_both_modes_charges_two_counters() -> None:
    enforced, shadow = quota(KIND, 2.0), quota(KIND, 1.0, shadow=True)

    assert Quotas([enforced]).charges_one_entity()
    assert Quotas([shadow]).charges_one_entity()
    assert not Quotas([enforced, shadow]).charges_one_entity()
    assert not Quotas([quota(TOPIC_KIND, 1.0, ORDERS, shadow=True)]).charges_one_entity()


@pytest.mark.parametrize("tags", [Tags("shadow:alice"), Tags("shadow", "alice"), Tags(topic="shadow:t", partition=0)])
def test_no_name_leads_to_the_counter_of_a_shadow_quota(tags: Tags) -> None:
    assert not tags.key().startswith("shadow:")
