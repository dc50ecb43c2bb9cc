"""The command `sluice advise`: limits proposed from recorded usage, as a quota file."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import ConfigOption, job_settings
from sluice.kafka_io.client import principal_of
from sluice.process.format import printable
from sluice.state.contract.records import NO_LOGIN
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, UNLIMITED, QuotaKind
from sluice_insight.commands.errors import NO_TENANT
from sluice_insight.commands.span_options import ToOption, from_option
from sluice_insight.commands.whatif import report_lines
from sluice_insight.reports.left_out import LeftOut
from sluice_insight.reports.span import Span, read_span
from sluice_insight.whatif.whose import Whose, whose_of
from sluice_reading.options import quotas_in_force
from sluice_reading.output import time_text
from sluice_reading.quota_lists import merged
from sluice_reading.quota_text import quotas_yaml, write_out
from sluice_reading.texts import entity_text
from sluice_reading.times import duration, from_ms

if TYPE_CHECKING:
    from sluice_insight.whatif.advice import Proposal
    from sluice_insight.whatif.replay import ClientName
    from sluice_insight.whatif.run import Replayed


def advise(
    start: Annotated[str | None, from_option("7 days")] = None,
    end: ToOption = None,
    headroom: Annotated[float, typer.Option(help="Factor between the rate and the limit.", min=1, max=1000)] = 1.3,
    percentile: Annotated[float, typer.Option(help="Percent of the requests within the rate.", min=1, max=100)] = 99.9,
    quota: Annotated[str | None, typer.Option("--quota", help="Propose this quota only.")] = None,
    by: Annotated[
        Whose | None,
        typer.Option(help="Entity of the limits.", show_default="those that most quotas in force are set on"),
    ] = None,
    defaults: Annotated[bool, typer.Option("--defaults", help="One limit for the default entity instead.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the quota file here.")] = None,
    processes: Annotated[int, typer.Option(help="Most processes.", min=1)] = min(os.cpu_count() or 1, 4),
    config: ConfigOption = None,
) -> None:
    """Propose a limit for each client from recorded decisions, and print a quota file for `sluice quotas apply`.

    A limit is a percentile of the client's rate, in the job's own arithmetic, times the headroom. Comments have the
    confidence of each, and the requests that the limits would have throttled, beside the quotas in force.
    """
    settings = job_settings(config)
    kinds = _kinds(quota)
    span = read_span(start, end, now=datetime.now(UTC), default=timedelta(days=7))
    from sluice_insight.reports.recorded_waits import wait_ends
    from sluice_insight.whatif.advice import pooled, proposals  # pyarrow takes half a second to import
    from sluice_insight.whatif.run import Task, rates_seen, replay
    from sluice_reading.query import Tables

    delta, in_force = settings.delta, quotas_in_force(settings, "the proposal is replayed alone")
    entities = [by] if by else whose_of(in_force)
    members = [entry for entry in in_force if entry.entity.is_member]
    if by is Whose.TENANT and not members:
        raise UsageError(NO_TENANT)
    idle_expiry_ms = settings.state.idle_expiry_s * 1000
    ends = wait_ends(Tables(delta.decisions, delta.quotas, delta.storage_options), span)
    task = Task(delta.decisions, delta.storage_options, span, [], settings.quota, idle_expiry_ms, ends=ends)
    own = [QuotaEntry(QuotaEntity(user=name), kind, UNLIMITED) for name in _logins(settings.kafka) for kind in kinds]
    sent = replay(replace(task, scenarios=[[]]), processes)  # of all who may have a limit, and how much they sent
    without = sent.left_out(settings.kafka)
    proposed: list[Proposal] = []
    nobodys: set[QuotaEntity] = set()
    for whose in entities:
        others = [*members, *own]
        if whose is Whose.CLIENT_ID and len(entities) > 1:  # of a user with a limit, that on the client-id won't count
            known = [*in_force, *(each.entry for each in proposed)]
            others += [entry for entry in known if entry.kind in kinds and _is_on_user(entry)]
        seen = rates_seen(task, whose, kinds, processes, others)
        if defaults:  # they hold everybody
            seen = pooled(seen.items(), whose)
        nobodys |= {entity for entity, _ in seen if entity.user == NO_LOGIN}
        clients = [name for name in sent.clients[0] if not without.has(name)]
        kept = ((key, rates) for key, rates in seen.items() if key[0] not in nobodys and _is_of(key[0], clients))
        proposed += proposals(kept, percentile, headroom)
    entries = [proposal.entry for proposal in proposed]
    scenario = merged(in_force, entries)
    replayed = replay(replace(task, scenarios=[in_force, scenario]), processes).without(without)
    evidence = _evidence(proposed, span) if proposed else [_nothing(entities, replayed.clients[-1])]
    unlimited = [f"{_name(entity)} gets no limit: it is of all clients without a login" for entity in nobodys]
    lines = [_heading(span, percentile, headroom), *evidence, *unlimited, *_effect(replayed, [scenario], without)]
    text = "".join(f"# {line}".rstrip() + "\n" for line in lines) + (quotas_yaml(entries) if entries else "")
    if out is None:
        typer.echo(text, nl=False)
        return
    write_out(out, text)
    typer.echo("\n".join(lines))


def _logins(kafka: Mapping[str, str]) -> list[str]:
    principal = principal_of(kafka)
    return [] if principal is None else [principal.removeprefix("User:")]


def _is_of(entity: QuotaEntity, clients: "Iterable[ClientName]") -> bool:
    """True for the entity of one of these clients, and for one of many."""
    names = entity.user, entity.client_id
    return not any(isinstance(name, str) for name in names) or any(
        all(name in (None, own) for name, own in zip(names, client, strict=True)) for client in clients
    )


def _is_on_user(entry: QuotaEntry) -> bool:
    """True for an enforced quota on a user with all its client-ids."""
    return entry.entity.user is not None and entry.entity.client_id is None and not entry.shadow


def _name(entity: QuotaEntity) -> str:
    return printable(entity_text(entity))


def _kinds(quota: str | None) -> Sequence[QuotaKind]:
    """The quota kinds to propose. Raises UsageError."""
    kinds = [kind for kind in CLIENT_KINDS if quota in (None, kind.value)]
    if not kinds:
        raise UsageError(f"--quota is {quota!r}; expected one of {', '.join(CLIENT_KINDS)}")
    return kinds


def _heading(span: Span, percentile: float, headroom: float) -> str:
    return (
        f"Proposed from {time_text(from_ms(span.start_ms))} to {time_text(from_ms(span.end_ms))}:"
        f" the rate that {percentile:g} % of the requests didn't exceed, times {headroom:g}."
    )


def _evidence(proposed: "Sequence[Proposal]", span: Span) -> Iterator[str]:
    """A line for each limit: its rate, requests and confidence. Requests are counted by hours of the clock."""
    for entry, rate, highest, seen in proposed:
        within_ms = min(seen.active_ms, span.length_ms)
        clients = f" of {seen.clients} clients" if seen.clients != 1 else ""
        cut = ""
        if seen.waits.throttled:
            minutes = seen.waits.waited_ms / 60_000
            cut = f"; {seen.waits.throttled} of them waited, {minutes:.1f} minutes: demand was cut, it may need more"
        yield (
            f"{_name(entry.entity)}: {entry.kind} {entry.value:.15g} from {rate:.15g} "
            f"(highest {highest:.15g}); {seen.waits.requests} requests{clients} within {duration(within_ms)} "
            f"on {_counted(seen.days, 'day')}{cut}; confidence {seen.confidence}"
        )


def _nothing(entities: Sequence[Whose], clients: "Iterable[ClientName]") -> str:
    """The reason why there is no limit to propose: perhaps clients have another name than that asked for."""
    by, *others = entities
    if by is Whose.TENANT:
        return "No member of a tenant used anything that these quotas limit."
    other = Whose.USER if by is Whose.CLIENT_ID else Whose.CLIENT_ID
    named = len({name for client in clients if (name := client[0 if other is Whose.USER else 1])})
    if named and not others:
        return (
            f"No {by} used anything that these quotas limit; the requests have"
            f" {_counted(named, str(other))}: --by {other} proposes limits for those."
        )
    return "No client used anything that these quotas limit."


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _effect(replayed: "Replayed", scenarios: Sequence[Sequence[QuotaEntry]], without: LeftOut) -> Iterator[str]:
    yield "What would have been throttled with these limits beside the other quotas in force:"
    yield from report_lines(replayed, scenarios, without)
