"""Holds and tightening in the row of a counter: who is stopped until when, and the limit in force."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

from sluice.process.format import moment
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.quotas.entity import Tags, bounded_name
from sluice.state.quotas.kinds import Family, QuotaKind
from sluice.state.quotas.limits import LimitsView
from sluice.state.quotas.overrides import bound_of_share, overrides_now
from sluice.state.quotas.resolution import Quotas
from sluice.state.quotas.tenants import Tenants
from sluice_insight.live import CounterId
from sluice_reading.format import amount, short

_PRODUCERS = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.TOPIC_PRODUCER_BYTE_RATE)


class RowMark(NamedTuple):
    """Words on the overrides of a counter; "" without one."""

    held: str = ""
    """The hold that stops all clients of the counter, with its end and its reason."""
    limit: str = ""
    """The limit in force, where it is another than the row's."""

    @property
    def words(self) -> str:
        """Both in brackets, for the end of a limit.

        >>> RowMark("held", "about 1 MB/s in force, tightened").words, RowMark().words
        (' (about 1 MB/s in force, tightened; held)', '')
        """
        words = "; ".join(word for word in (self.limit, self.held) if word)
        return f" ({words})" if words else ""


class RowMarks:
    """The marks of rows at a time, by what deciders `said` last. `gateways` are the processes heard lately."""

    def __init__(
        self, said: Mapping[str, Overrides], quotas: Quotas | None, gateways: Collection[str], now_ms: int
    ) -> None:
        self._overrides = [each for _, each in overrides_now(said, now_ms)]
        self._quotas = quotas
        self._gateways = gateways

    @classmethod
    def of_limits(cls, limits: LimitsView, gateways: Collection[str], now_ms: int) -> Self:
        """The marks by the limits topic."""
        quotas = None if limits.in_force is None else limits.in_force.enforced
        return cls(limits.overrides, quotas, gateways, now_ms)

    def of(self, key: CounterId, limit: float | None) -> RowMark:
        """The mark of a counter with this limit."""
        if key.shadow or not self._overrides:
            return RowMark()
        tenants = Tenants() if self._quotas is None else self._quotas.tenants
        tenant = key.tenant or (tenants.of(key.user, key.client_id) if key.topic is None else "")
        held = next((each for each in self._overrides if _stops(each, key, tenant)), None)
        return RowMark("" if held is None else held_text(held), self._limit_text(key, limit))

    def of_client(self, user: str, client_id: str, tenant: str = "") -> str:
        """The hold that stops a client, or a user or tenant with all its clients, else its byte rates that give way."""
        found = []
        for kind in (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE) if self._overrides else ():
            limit = None
            if self._quotas is not None and not tenant:
                limit = self._quotas.resolve_client(kind, user, client_id).limit
            mark = self.of(CounterId(kind, False, user, client_id, None, -1, tenant), limit)
            if mark.held:
                return mark.held
            found += [f"{kind} {amount(kind, limit)} ({mark.limit})"] if mark.limit and limit is not None else []
        return ", ".join(found)

    def _limit_text(self, key: CounterId, limit: float | None) -> str:
        if limit is None or key.topic is not None or key.kind.family is not Family.BYTES:
            return ""
        tight = {each.gateway: each.factor for each in self._overrides if each.kind == "tighten"}
        if not tight:
            return ""
        quotas = None if key.tenant else self._quotas
        found = None if quotas is None else quotas.resolve_client(key.kind, key.user, key.client_id)
        reservation = None if found is None else found.reservation
        bounds = [bound_of_share(factor, limit, reservation) for factor in tight.values()]
        others = len({*self._gateways} - {*tight})
        mean = (sum(bounds) + others) / (len(bounds) + others)
        return f"about {amount(key.kind, limit * mean)} in force, tightened"


def held_text(hold: Override) -> str:
    """The end of a hold and its reason.

    >>> held_text(Override("hold", reason="eve: it floods", until_ms=5_000)), held_text(Override("hold"))
    ('held until 00:00:05 UTC (eve: it floods)', 'held')
    """
    until = "" if hold.until_ms is None else f" until {moment(hold.until_ms)[-8:]} UTC"
    return f"held{until}" + (f" ({short(hold.reason, 60)})" if hold.reason else "")


def _stops(hold: Override, key: CounterId, tenant: str) -> bool:
    is_moved = key.kind.family is Family.BYTES and (hold.consumers or key.kind in _PRODUCERS)
    is_all = hold.entity is None or key.topic is None
    return is_moved and is_all and stops(hold, Tags(key.user, key.client_id, tenant=tenant))


def stops(override: Override, client: Tags) -> bool:
    """True if an override stops all clients of these names; "" is an unknown name, which matches none of a hold.

    Long names are compared as counters have them:

    >>> from sluice.state.contract.records import CountedEntity
    >>> hold = Override("hold", entity=CountedEntity(user="x" * 257))
    >>> stops(hold, Tags("x" * 257)), stops(hold, Tags(bounded_name("x" * 257))), stops(hold, Tags("y" * 257))
    (True, True, False)
    """
    if override.kind != "hold":
        return False
    if (names := override.entity) is None:
        return True
    pairs = (names.user, client.user), (names.client_id, client.client_id), (names.tenant, client.tenant)
    return all(name is None or bounded_name(name) == bounded_name(own) for name, own in pairs)
