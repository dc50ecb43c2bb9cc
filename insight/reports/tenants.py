"""Tenants of clients in reports."""

from sluice.state.quotas.tenants import Tenants

NO_TENANT = "(none)"
"""The tenant of clients that are in none."""


def tenant_name(tenants: Tenants, user: str, client_id: str) -> str:
    """The tenant of a client, or NO_TENANT."""
    return tenants.of(user, client_id) or NO_TENANT
