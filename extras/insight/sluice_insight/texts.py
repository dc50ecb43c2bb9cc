"""Names of counters and tenants in a table, the same in commands and on pages."""

from sluice.process.format import short
from sluice.process.texts import NO_NAME
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.tenants import Tenants
from sluice_insight.live import CounterId

NO_TENANT = "(none)"
"""The tenant of clients that are in none."""


def counter_name(counter: CounterId | Tags | CountedEntity) -> str:
    """The name of a counter in a table: `alice / client-id app`, long names cut."""
    if isinstance(counter, CountedEntity):
        counter = Tags.of(counter)
    if counter.topic is not None:
        return f"topic {short(counter.topic)}" + (f", partition {counter.partition}" if counter.partition >= 0 else "")
    names = {"": counter.user, "client-id ": counter.client_id, "tenant ": counter.tenant}
    return " / ".join(f"{part}{short(name)}" for part, name in names.items() if name) or NO_NAME


def tenant_name(tenants: Tenants, user: str, client_id: str) -> str:
    """The tenant of a client, or NO_TENANT."""
    return tenants.of(user, client_id) or NO_TENANT
