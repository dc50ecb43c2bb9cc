"""Names of counters and tenants in a table, the same in commands and on pages."""

from sluice.process.format import NOTHING
from sluice.process.texts import NO_NAME
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import ENTRY_KINDS, ElasticKey, Membership, StorageKey
from sluice.state.quotas.tenants import Tenants
from sluice_insight.live import CounterId
from sluice_reading.format import amount, quantity, short

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


def quota_amount(quota: str, value: float | None, *, per_s: bool = True) -> str:
    """An amount in the unit of its quota; a plain number for a quota of a later release.

    >>> quota_amount("producer_byte_rate", 1048576.0), quota_amount("stored_bytes", 2e9), quota_amount("newer", 7.0)
    ('1.05 MB/s', '2 GB', '7')
    """
    kind = ENTRY_KINDS.get(quota)
    if kind is None or isinstance(kind, Membership):
        return NOTHING if value is None else f"{value:.6g}"
    if isinstance(kind, StorageKey):
        return NOTHING if value is None else quantity(value, "B")
    return amount(kind.quota if isinstance(kind, ElasticKey) else kind, value, per_s=per_s)


def tightened_text(server: str, reason: str) -> str:
    """The reason for a wait on a broker or gateway that was tightened by its load.

    >>> tightened_text("broker 2", "broker 2: bytes in 124 % of capacity")
    'broker 2 was tightened: bytes in 124 % of capacity'
    """
    name = server or "the gateway"
    return f"{name} was tightened" + (f": {cause}" if (cause := reason.removeprefix(f"{name}: ")) else "")
