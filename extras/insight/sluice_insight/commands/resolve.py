"""`sluice quotas resolve` and `sluice tenants resolve`: limits of a request, and the tenant of a client or a topic."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import typer

from sluice.cli.errors import UsageError
from sluice.process.texts import counter_text
from sluice.state.contract.records import NO_LOGIN
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.entry import Mode, QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, PROXY_KINDS, TOPIC_KINDS, QuotaKind, StorageKey
from sluice.state.quotas.resolution import (
    PRECEDENCE_LEVELS,
    TENANT_LEVELS,
    TOPIC_LEVELS,
    PrecedenceLevel,
    Quotas,
    Resolution,
    bounded_entity,
    entity_at,
)
from sluice.state.quotas.tenants import member_text
from sluice_reading.options import ClientIdOption, JsonOption, TableOptions, UserOption, as_written, grouped
from sluice_reading.output import print_json, print_lines
from sluice_reading.quota_text import entry_json
from sluice_reading.texts import entity_text, java_double, strict_text, value_text


class Explanation(NamedTuple):
    """The quotas of one kind and mode that match a request.

    `configured` are the matching levels that have a quota, the one that applies first. `counter` is None while no quota
    of the kind is set anywhere, because then nothing is counted. `reservation` is the one in force.
    """

    kind: QuotaKind
    mode: Mode
    configured: list[tuple[PrecedenceLevel, QuotaEntry]]
    counter: Tags | None
    reservation: float | None = None

    def lines(self, strict: str | None = None) -> list[str]:
        """Text for people: what applies, then what was passed over; and why limits don't give way."""
        apart = "apart " if self.mode is Mode.SHADOW else ""
        counted = f"counted {apart}for {_counter_text(self.counter)}" if self.counter else "not counted"
        counted += ", held by Kafka proxies alone" if self.kind in PROXY_KINDS else ""
        if not self.configured:
            return [f"{self.kind}: unlimited, {counted}"]
        (_, applied), *passed_over = self.configured
        return [
            f"{self.kind}: {value_text(applied)}{reservation_text(self.reservation, strict)} from"
            f" {entity_text(applied.entity)}, {counted}",
            *(f"  passed over {entity_text(entry.entity)}: {value_text(entry)}" for _, entry in passed_over),
        ]

    def to_mapping(self) -> dict[str, Any]:
        """JSON for machines: the same, with the names of the levels as in decisions (`matched`)."""
        quotas = [
            {"matched": level, "entity": entry.entity.to_mapping(), **(entry_json(entry) or {})}
            for level, entry in self.configured
        ]
        return {
            "quota": self.kind,
            "mode": self.mode,
            "applies": quotas[0] if quotas else None,
            "reservation": self.reservation,
            "counter": _counter_mapping(self.counter) if self.counter else None,
            "passed_over": quotas[1:],
        }


def explain(
    entries: Iterable[QuotaEntry], user: str, client_id: str, topic: str | None = None
) -> Iterator[Explanation]:
    """Resolve each client quota for this user and client-id, and each topic quota for `topic` if given.

    After a kind's enforced quotas come those of the client's tenant, then its shadow quotas, if they apply. Kinds that
    proxies alone hold are left out while none is set.
    """
    entries = list(entries)
    quotas = Quotas(entries)
    set_on = {(entry.kind, entry.mode, bounded_entity(entry.entity)): entry for entry in entries}

    def explained(kind: QuotaKind, mode: Mode, found: Resolution, levels: Iterable[PrecedenceLevel]) -> Explanation:
        names = user, client_id, topic, found.tags.tenant
        keys = ((level, (kind, mode, bounded_entity(entity_at(level, *names)))) for level in levels)
        configured = [(level, set_on[key]) for level, key in keys if key in set_on]
        return Explanation(kind, mode, configured, found.tags, found.reservation)

    for kind in (*CLIENT_KINDS, *(TOPIC_KINDS if topic is not None else ())):
        for of_mode in (quotas,) if quotas.shadow is None else (quotas, quotas.shadow):
            if kind in TOPIC_KINDS:
                is_counted, found = of_mode.enabled(kind), of_mode.resolve_topic(kind, str(topic), -1)
            else:
                is_counted, found = bool(of_mode.client_limits(kind)), of_mode.resolve_client(kind, user, client_id)
            own = explained(kind, of_mode.mode, found, TOPIC_LEVELS if kind in TOPIC_KINDS else PRECEDENCE_LEVELS)
            if own.configured or (of_mode is quotas and (kind not in PROXY_KINDS or quotas.enabled(kind))):
                yield own if is_counted else own._replace(counter=None)
            of_tenant = of_mode.resolve_tenant(kind, quotas.tenants.of(user, client_id))
            if of_tenant is not None:
                yield explained(kind, of_mode.mode, of_tenant, TENANT_LEVELS)


def _counter_text(counter: Tags) -> str:
    if counter.topic is not None:
        return f"each partition of topic '{counter.topic}'"
    if not counter.user and not counter.client_id and not counter.tenant:
        return "requests without a client-id, of all users"
    return counter_text(counter) + ("" if counter.user or counter.tenant else " of all users")


def _counter_mapping(counter: Tags) -> dict[str, str | int]:
    return {"topic": counter.topic} if counter.topic is not None else counter.to_mapping()


@grouped
def resolve_quotas(
    table: TableOptions,
    user: Annotated[
        str,
        typer.Option("--user", help="The request's user; without a login it is ANONYMOUS.", callback=as_written),
    ] = "",
    client: Annotated[
        str, typer.Option("--client-id", "--client", help="The request's client-id.", callback=as_written)
    ] = "",
    topic: Annotated[str | None, typer.Option("--topic", help="A topic that the request touches.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Show the limits of a request: the entity and counter of each, and the quotas passed over."""
    if not user and not client and topic is None:
        raise UsageError("no request; give --user, --client-id, --topic or several of them")
    quotas_table = table.quotas_table()
    version = quotas_table.version()
    entries = quotas_table.entries(version)
    explanations = list(explain(entries, user or NO_LOGIN, client, topic))
    if json_output:
        print_json(
            {"version": version, "quotas": [explanation.to_mapping() for explanation in explanations]}, indent=True
        )
    else:
        strict = strict_text(Quotas(entries), gives_way=table.gives_way())
        print_lines(line for explanation in explanations for line in explanation.lines(strict))


@grouped
def resolve_tenant(
    table: TableOptions,
    user: UserOption = None,
    client_id: ClientIdOption = None,
    topic: Annotated[str | None, typer.Option("--topic", help="A topic that a tenant stores.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Show the tenant of a client or a topic, by which member, and other members that match.

    Of a client also the tenant's limits, and of both its budget, stored_bytes.
    """
    if (topic is None) == (user is None and client_id is None):
        raise UsageError("give --user, --client-id or both for a client, or --topic for a topic")
    entries = table.quotas_table().entries()
    quotas = Quotas(entries)
    client = (user or "", client_id or "")
    members = quotas.tenants.members_of(*client) if topic is None else quotas.tenants.members_of_topic(topic)
    resolved = explain(entries, *client) if topic is None else ()
    limits = [each for each in resolved if each.counter and each.counter.tenant]
    budget = quotas.storage_budgets().get(str(members[0].tenant)) if members else None
    if json_output:
        print_json(
            {
                "tenant": members[0].tenant if members else None,
                "members": [member.to_mapping() for member in members],
                "quotas": [each.to_mapping() for each in limits],
                "stored_bytes": budget,
            },
            indent=True,
        )
        return
    first = [f"tenant '{member.tenant}', by {member_text(member)}" for member in members]
    print_lines([*first[:1], *(f"  passed over {line}" for line in first[1:])] or ["in no tenant"])
    print_lines(line for each in limits for line in each.lines())
    if budget is not None:
        whose = f"of all topics of tenant '{members[0].tenant}'"
        print_lines([f"{StorageKey.STORED_BYTES}: {java_double(budget)}, {whose}"])


def reservation_text(reservation: float | None, strict: str | None = None) -> str:
    """The reservation beside a limit, nothing without one.

    >>> reservation_text(512.0), reservation_text(None)
    (' (reservation 512.0)', '')
    >>> reservation_text(512.0, strict_text(Quotas(), gives_way=False))
    ' (reservation 512.0, not in force: elastic.limits is strict)'
    """
    return "" if reservation is None else f" (reservation {java_double(reservation)}{f', {strict}' if strict else ''})"
