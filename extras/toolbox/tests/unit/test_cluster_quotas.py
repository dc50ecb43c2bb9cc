"""The client quotas of a cluster that Sluice can take."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, PROXY_KINDS, QuotaKind
from sluice_toolbox.cluster import ClusterQuota, RawEntity, client_quotas

KIND = QuotaKind.PRODUCER_BYTE_RATE
ALICE: RawEntity = {"user": "alice"}


def test_all_eight_levels_are_mirrored() -> None:
    levels: list[RawEntity] = [
        {"user": "alice", "client-id": "app"},
        {"user": "alice", "client-id": None},
        {"user": "alice"},
        {"user": None, "client-id": "app"},
        {"client-id": None, "user": None},
        {"user": None},
        {"client-id": "app"},
        {"client-id": None},
    ]

    found = client_quotas(ClusterQuota(entity, {"producer_byte_rate": 1024.0}) for entity in levels)

    assert [(entry.entity.user, entry.entity.client_id) for entry in found.entries] == [
        ("alice", "app"),
        ("alice", DEFAULT),
        ("alice", None),
        (DEFAULT, "app"),
        (DEFAULT, DEFAULT),
        (DEFAULT, None),
        (None, "app"),
        (None, DEFAULT),
    ]
    assert found.left_out == []


@given(st.text(min_size=1))
def test_a_name_may_be_any_text(name: str) -> None:
    """A user who is called `<default>` is not the default user."""
    (entry,) = client_quotas([ClusterQuota({"user": name}, {"request_percentage": 50.0})]).entries

    assert entry.entity == QuotaEntity(user=name)


def test_all_keys_and_kafkas_doubles_are_taken_as_they_are() -> None:
    """A long quota may have a fraction of at most 1e-6, which Kafka keeps."""
    kinds = [kind.value for kind in CLIENT_KINDS if kind not in PROXY_KINDS]
    values = dict(zip(kinds, (1024.0000001, 2.0**63, 0.1, 5e-324), strict=True))

    assert [entry.value for entry in client_quotas([ClusterQuota(ALICE, values)]).entries] == list(values.values())


@pytest.mark.parametrize(
    ("entity", "key", "value", "said"),
    [
        (ALICE, "fetch_rate", 1.0, "fetch_rate of user 'alice': unknown quota key 'fetch_rate'"),
        (ALICE, "connection_creation_rate", 1.0, "unknown quota key 'connection_creation_rate'"),
        (ALICE, "request_percentage", math.nan, "request_percentage is nan; expected a finite number"),
        (ALICE, "request_percentage", 0.0, "request_percentage is 0; expected a number > 0"),
        (ALICE, "consumer_byte_rate", 1.5, "consumer_byte_rate is 1.5; expected a whole number"),
        ({"user": ""}, "request_percentage", 1.0, "an entity name is empty"),
        ({"topic": "orders"}, "producer.byte.rate", 1.0, "unknown entity type topic; expected user, client-id or both"),
        ({"group": "g", "user": "alice"}, "request_percentage", 1.0, "unknown entity type group"),
    ],
)
def test_what_cannot_be_taken_is_left_out_with_the_reason(entity: RawEntity, key: str, value: float, said: str) -> None:
    """The other quotas, also those of the same entity, are taken."""
    good = ClusterQuota(ALICE, {"producer_byte_rate": 1024.0})

    found = client_quotas([ClusterQuota(entity, {key: value}), good])

    assert found.entries == [QuotaEntry(QuotaEntity(user="alice"), KIND, 1024.0)]
    (line,) = found.left_out
    assert said in line


def test_quotas_of_ips_are_none_of_sluices() -> None:
    assert client_quotas([ClusterQuota({"ip": "10.0.0.1"}, {"connection_creation_rate": 5.0})]) == ([], [])
