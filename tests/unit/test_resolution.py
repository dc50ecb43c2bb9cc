"""Finding the limit of a request: what was found before is kept, and never outlives a change of the quotas."""

import pytest

from state import resolution
from state.entity import DEFAULT, QuotaEntity
from state.quota import QuotaKind
from state.quota_entry import QuotaEntry
from state.resolution import Quotas, Rung

KIND = QuotaKind.PRODUCER_BYTE_RATE
TOPIC_KIND = QuotaKind.TOPIC_PRODUCER_BYTE_RATE
ALICE = QuotaEntity(user="alice")
ORDERS = QuotaEntity(topic="orders")


def test_a_client_resolved_before_gets_the_changed_limit() -> None:
    quotas = Quotas([QuotaEntry(QuotaEntity(user=DEFAULT), KIND, 1.0)])
    assert quotas.resolve(KIND, "alice", "app").limit == 1.0

    quotas.set(QuotaEntry(ALICE, KIND, 2.0))
    assert (quotas.resolve(KIND, "alice", "app").rung, quotas.resolve(KIND, "alice", "app").limit) == (Rung.USER, 2.0)

    quotas.remove(ALICE, KIND)
    assert quotas.resolve(KIND, "alice", "app").limit == 1.0


def test_a_topic_resolved_before_gets_the_changed_limit() -> None:
    quotas = Quotas([QuotaEntry(QuotaEntity(topic=DEFAULT), TOPIC_KIND, 1.0)])
    assert quotas.resolve_topic(TOPIC_KIND, "orders", 3).limit == 1.0

    quotas.set(QuotaEntry(ORDERS, TOPIC_KIND, 2.0))
    assert quotas.resolve_topic(TOPIC_KIND, "orders", 3).limit == 2.0

    quotas.remove(ORDERS, TOPIC_KIND)
    assert quotas.resolve_topic(TOPIC_KIND, "orders", 3).limit == 1.0


def test_more_clients_than_are_remembered_are_resolved_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's memory doesn't grow with the clients it has seen."""
    monkeypatch.setattr(resolution, "MOST_REMEMBERED", 2)
    limits = {"a": 1.0, "b": 2.0, "c": 3.0}
    quotas = Quotas(QuotaEntry(QuotaEntity(user=user), KIND, limit) for user, limit in limits.items())

    found = [(user, quotas.resolve(KIND, user, "app")) for user in "abcabc"]

    assert [one.limit for _, one in found] == [1.0, 2.0, 3.0] * 2
    assert [one.key for _, one in found] == [f"{user}|" for user, _ in found]
    assert len(quotas.client_limits(KIND)._resolved) <= 2


def test_a_client_with_a_giant_name_is_resolved_and_not_remembered() -> None:
    """Whoever sends a new giant name with each request must not fill the workers' memory."""
    quotas = Quotas([QuotaEntry(QuotaEntity(user=DEFAULT), KIND, 1.0)])

    assert quotas.resolve(KIND, "alice", "app" * 10_000).limit == 1.0
    assert quotas.resolve(KIND, "x" * 30_000, "app").key == "x" * 30_000 + "|"

    assert not quotas.client_limits(KIND)._resolved
