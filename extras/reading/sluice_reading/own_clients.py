"""Clients of Sluice itself, among those that a cluster has."""

from collections.abc import Mapping

from sluice.kafka_io.client import principal_of


def is_own_login(kafka: Mapping[str, str], user: str | None) -> bool:
    """True for the user of the login of these properties, as far as `principal_of` knows it."""
    return bool(user) and principal_of(kafka) == f"User:{user}"


def is_own_client_id(kafka: Mapping[str, str], client_id: str | None) -> bool:
    """True for the client-ids of the clients that have these properties.

    >>> is_own_client_id({"client.id": "quotas"}, "quotas-sums")
    True
    """
    own = kafka.get("client.id", "sluice")
    return client_id == own or (client_id or "").startswith(f"{own}-")
