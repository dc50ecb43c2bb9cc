"""The client quotas of a Kafka cluster, as quotas of Sluice."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry, check_value, quota_kind

CLIENT_TYPES = frozenset({"user", "client-id"})

RawEntity = Mapping[str, str | None]
"""An entity as Kafka's protocol names it: type (`user`, `client-id`, ...) to name, None for the default."""


def raw_text(entity: RawEntity) -> str:
    """The entity in words.

    >>> raw_text({"user": None, "client-id": "app"})
    "the default user, client-id 'app'"
    """
    return ", ".join(f"the default {kind}" if name is None else f"{kind} '{name}'" for kind, name in entity.items())


class ClusterQuota(NamedTuple):
    """The quotas of one entity as the cluster returns them: entity type to name, None for the default."""

    entity: RawEntity
    values: Mapping[str, float]


class ClientQuotas(NamedTuple):
    """The cluster's quotas of users and client-ids, and those that are left out: what and why, a line each."""

    entries: list[QuotaEntry]
    left_out: list[str]


def client_quotas(cluster: Iterable[ClusterQuota]) -> ClientQuotas:
    """The quotas of users and client-ids that Sluice can take; those of ips, which limit connections, are not named.

    >>> client_quotas([ClusterQuota({"user": None}, {"request_percentage": 50.0, "xyz": 1.0})]).left_out
    ["xyz of the default user: unknown quota key 'xyz'; expected one of producer_byte_rate, \
consumer_byte_rate, request_percentage, controller_mutation_rate, connection_rate, connection_count on users and \
client-ids"]
    """
    found = ClientQuotas([], [])
    for entity, values in cluster:
        if "ip" not in entity:
            _take(found, entity, values)
    return found


def _take(found: ClientQuotas, entity: RawEntity, values: Mapping[str, float]) -> None:
    """Put the quotas of one entity where they belong."""
    for key, value in values.items():
        try:
            found.entries.append(_entry(entity, key, value))
        except InvalidQuotaError as error:
            found.left_out.append(f"{key} of {raw_text(entity)}: {error}")


def _entry(entity: RawEntity, key: str, value: float) -> QuotaEntry:
    """Raises InvalidQuotaError."""
    if not entity.keys() <= CLIENT_TYPES:
        unknown = ", ".join(sorted(entity.keys() - CLIENT_TYPES))
        raise InvalidQuotaError(
            "unknown_entity_type", f"unknown entity type {unknown}; expected user, client-id or both"
        )
    client = QuotaEntity.from_mapping(entity)
    kind = quota_kind(client, key)
    check_value(kind, value)
    return QuotaEntry(client, kind, value)
