"""Storage budgets: a tenant whose topics take all of its bytes is throttled until they take nine tenths. Pure.

The bytes are those of all replicas, which fill the disks. The disk guard throttles in the same way.
"""

from collections.abc import Callable, Mapping
from itertools import accumulate

import msgspec

from sluice.state.contract.gateway_topics import Measured, Override
from sluice.state.contract.records import CountedEntity
from sluice.state.overrides.decider import DecidedOverrides, Decider
from sluice.state.quotas.kinds import StorageKey
from sluice.state.quotas.resolution import Quotas
from sluice.state.quotas.tenants import Tenants
from sluice_elastic.log_dirs import FRESH_MS, Disks

RELEASED_AT = 0.9
"""Part of the budget at which a tenant is released: retention deletes whole segments, so one at its budget would else
be throttled and released with each of them."""

MAX_TENANTS = 1_000
"""Most tenants in a record, those nearest to their budgets: it has to fit into a Kafka record."""

MAX_BYTES = 1_000_000
"""Most bytes of these tenants as JSON, below the 1 MiB of a record: a name of 256 characters can take 1.5 kB, twice."""


class StorageBudgets(Decider):
    """Decides which tenants are throttled. After a start a tenant is throttled again at its whole budget alone."""

    name = StorageKey.STORED_BYTES.value
    fresh_ms = FRESH_MS
    tells_measured = True

    def __init__(self, quotas: Callable[[], Quotas], disks: Callable[[], Disks]) -> None:
        self._quotas = quotas
        self._disks = disks
        self._held: frozenset[str] = frozenset()
        self._of: Disks | None = None
        self._decided = DecidedOverrides()

    def decide(self, now_ms: int) -> DecidedOverrides:
        """Decide anew when brokers have said something new of their disks; when that is old, nobody is throttled."""
        disks = self._disks().now(now_ms)
        if disks is None:
            return DecidedOverrides()
        if disks is not self._of:
            quotas, self._of = self._quotas(), disks
            self._decided = self.of_sizes(disks.stored, quotas.tenants, quotas.storage_budgets())
        return self._decided

    def of_sizes(self, by_topic: Mapping[str, int], tenants: Tenants, budgets: Mapping[str, float]) -> DecidedOverrides:
        """The decision on the bytes of all topics: of the tenants with a budget, those nearest to it first.

        >>> from sluice.state.quotas.entity import QuotaEntity
        >>> rule, shop = StorageBudgets(Quotas, Disks), Tenants([QuotaEntity(tenant="shop", topic="shop.*")])
        >>> [len(rule.of_sizes({"shop.a": stored}, shop, {"shop": 100.0}).overrides) for stored in (99, 100, 91, 90)]
        [0, 1, 1, 0]
        """
        stored = dict.fromkeys(budgets, 0)
        for topic, size in by_topic.items():
            tenant = tenants.of_topic(topic)
            if tenant in stored:
                stored[tenant] += size
        self._held = frozenset(
            tenant
            for tenant, budget in budgets.items()
            if stored[tenant] >= budget or (tenant in self._held and stored[tenant] > RELEASED_AT * budget)
        )
        nearest = sorted(
            budgets, key=lambda tenant: (tenant not in self._held, -stored[tenant] / budgets[tenant], tenant)
        )
        found = [
            (self._hold(tenant), Measured(tenant, stored[tenant], budgets[tenant])) for tenant in nearest[:MAX_TENANTS]
        ]
        sizes = accumulate(len(msgspec.json.encode(each)) for each in found)
        fitting = [each for each, size in zip(found, sizes, strict=False) if size <= MAX_BYTES]
        holds = [hold for hold, _ in fitting if hold is not None]
        return DecidedOverrides(holds, [measured for _, measured in fitting])

    def _hold(self, tenant: str) -> Override | None:
        reason = "its topics take all of its stored_bytes"
        return Override("hold", entity=CountedEntity(tenant=tenant), reason=reason) if tenant in self._held else None
