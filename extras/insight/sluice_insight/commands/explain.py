"""The command `sluice explain`: the reasons of a decision, from the tables, without Java."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import ConfigOption, job_settings
from sluice.process.format import percent, printable
from sluice.process.texts import counter_text
from sluice.state.contract.decision_id import DecisionId
from sluice.state.contract.instances import server_text
from sluice.state.contract.records import REFUSED_API, CountedEntity, Verdict
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice_insight.commands.freshness import say_no_rows, say_of_then
from sluice_insight.commands.resolve import explain as resolve
from sluice_insight.texts import quota_amount, tightened_text
from sluice_reading.format import figure, short
from sluice_reading.options import ClientIdOption, UserOption, quotas_in_force
from sluice_reading.output import print_json
from sluice_reading.quota_text import no_members_text
from sluice_reading.text_tables import MAX_NAME
from sluice_reading.texts import client_text, entity_text, value_text
from sluice_reading.times import duration

if TYPE_CHECKING:
    from sluice_reading.query import Tables


def explain(
    decision_id: Annotated[
        str | None, typer.Argument(help="A decision's id: topic-partition-offset of the request.", show_default=False)
    ] = None,
    user: UserOption = None,
    client_id: ClientIdOption = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Tenant for whose limits the requests waited, in place of a client.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Time after the last throttled requests (ISO 8601, UTC); else now.")
    ] = None,
    count: Annotated[int, typer.Option("--count", help="Most requests to explain, the newest first.", min=1)] = 1,
    slow: Annotated[
        bool, typer.Option("--slow", help="Explain why the client is slow, with its line of time, whatever the cause.")
    ] = False,
    since: Annotated[str, typer.Option("--since", help="Length of the line of --slow, such as 90s, 10m, 2h.")] = "10m",
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object for each decision.")] = False,
    config: ConfigOption = None,
) -> None:
    """Explain a decision, or the last throttled requests of a client or a tenant: charges, limits, waits, authors.

    Without an id and a name it is the last throttled request of anybody. A name that no user has is looked for among
    client-ids, and the other way, and standard error says so; it also says of which client there is no decision, and
    what would limit it. With --slow it is the cause of a client's last slow minutes: its waits, holds, busy brokers,
    and what it saw itself if it sends telemetry. Needs the Delta tables, which follow the decisions by a micro-batch of
    the audit query or more. Exit code 1 if there is no such decision.
    """
    _check_usage(decision_id, user, client_id, tenant, at, slow=slow)
    settings = job_settings(config)
    delta = settings.delta
    if slow:
        from sluice_insight.commands.slow import explain_slow

        explain_slow(settings, user or "", client_id or "", at, since, json_output=json_output)
        return
    # pyarrow takes half a second to import, and few commands need it
    from sluice_insight.reports.explained import decisions_by_id, last_throttled_of_tenant
    from sluice_insight.reports.explained import explain as explain_decision
    from sluice_insight.reports.span import read_time
    from sluice_reading.query import Tables

    now = datetime.now(UTC)
    tables = Tables(delta.decisions, delta.quotas, delta.storage_options)
    before = now if at is None else read_time(at, now)
    if decision_id is not None:
        decisions = decisions_by_id(tables, decision_id)
    elif tenant is not None:
        decisions = last_throttled_of_tenant(tables, tenant, before, count)
        if not decisions:
            _say_none_of(tenant, quotas_in_force(settings))
    else:
        decisions = _throttled(tables, user, client_id, before, count)
    if not decisions:
        asked, requests = None if decision_id is None else DecisionId.of(decision_id), settings.topics.requests
        if asked is not None and asked.topic != requests:
            told = f"no decision {decision_id}: this job's requests are in topic {requests}"
            typer.echo(f"sluice: {printable(told)}", err=True)
        else:
            say_no_rows(delta, delta.decisions)
        raise typer.Exit(1)
    _print([explain_decision(tables, decision) for decision in decisions], json_output=json_output)
    if decision_id is None:
        say_of_then(delta, before)


def _check_usage(
    decision_id: str | None, user: str | None, client_id: str | None, tenant: str | None, at: str | None, *, slow: bool
) -> None:
    """Raise UsageError for options that don't go together."""
    is_named = user is not None or client_id is not None
    if (decision_id is not None) + is_named + (tenant is not None) > 1:
        raise UsageError("give a decision's id, or --user, --client-id or both, or --tenant")
    if decision_id is not None and DecisionId.of(decision_id) is None:
        raise UsageError(
            f"{decision_id!r} is no decision id; expected topic-partition-offset of the request: quota-requests-0-1"
        )
    if decision_id is not None and at is not None:
        raise UsageError("--at goes with --user, --client-id and --tenant; a decision's id names one request")
    if slow and not is_named:
        raise UsageError("--slow needs --user, --client-id or both")


def _print(explained: Sequence[dict[str, Any]], *, json_output: bool) -> None:
    for position, each in enumerate(explained):
        if json_output:
            print_json(each)
        else:
            lines = [*([""] if position else []), *explained_lines(each)]
            typer.echo("\n".join(printable(line) for line in lines))


def _throttled(
    tables: "Tables", user: str | None, client_id: str | None, before: datetime, count: int
) -> list[dict[str, Any]]:
    """The decisions on a client's last throttled requests.

    Standard error says if they are of a client of the other kind, and if there are none, what else is known of it.
    """
    from sluice_insight.reports.explained import last_throttled

    clients = [(user, client_id)]
    if (user is None) != (client_id is None):
        clients.append((client_id, user))
    for client in clients:
        if found := last_throttled(tables, *client, before, count):
            if client != clients[0]:
                told = f"no {client_text(*clients[0])} was throttled; these are requests of {client_text(*client)}"
                typer.echo(f"sluice: {told}", err=True)
            return found
    if user is not None or client_id is not None:
        say_known(tables, clients, before, "was not throttled")
    return []


def say_known(tables: "Tables", clients: Sequence[tuple[str | None, str | None]], before: datetime, what: str) -> None:
    """Say on standard error what is known of the first of these clients that has a decision, else of the first."""
    from sluice.sinks.errors import QuotasTableError
    from sluice.sinks.tables.quotas import QuotasTable
    from sluice_reading.last_decisions import last_seen_ms

    for client in clients:
        if (seen_ms := last_seen_ms(tables, *client, before)) is not None:
            known = f"{client_text(*client)} {what}; the last request is of {_time(seen_ms)}"
            break
    else:
        try:
            known = unknown_text(*clients[0], QuotasTable(tables.quotas, tables.storage_options).entries())
        except QuotasTableError as error:
            known = f"no decision names {client_text(*clients[0])}; the quotas can't be read: {error}"
    typer.echo(f"sluice: {printable(known)}", err=True)


def _say_none_of(tenant: str, entries: Sequence[QuotaEntry]) -> None:
    """Say on standard error that no request waited for a tenant's limits, and if nobody is in the tenant."""
    typer.echo(f"sluice: no request waited for a limit of tenant '{short(tenant, MAX_NAME)}'", err=True)
    if entries and (hint := no_members_text(tenant, entries)) is not None:
        typer.echo(f"sluice: {hint}", err=True)


def unknown_text(user: str | None, client_id: str | None, entries: Iterable[QuotaEntry]) -> str:
    """The sentence for a client of which there is no decision, with those of the quotas in force that would limit it.

    >>> unknown_text("nobody", None, [])
    "no decision names user 'nobody', and no quota would limit its requests"
    """
    resolved = resolve(entries, user or "", client_id or "")
    applied = [explanation.configured[0][1] for explanation in resolved if explanation.configured]
    limits = [f"{entry.kind}={value_text(entry)} of {entity_text(entry.entity)}" for entry in applied]
    unknown = f"no decision names {client_text(user, client_id)}"
    if not limits:
        return f"{unknown}, and no quota would limit its requests"
    return f"{unknown}; its requests would get {', '.join(limits)}"


def explained_lines(decision: dict[str, Any]) -> Iterator[str]:
    """The explained decision in words: first the wait of its client, then the reasons."""
    wait_ms = decision["throttle_time_ms"] or 0
    until = f" until {_time(decision['mute_until_ms'])}" if wait_ms else ""
    yield f"{decision['decision_id']}: {_felt(decision)}; the job: {decision['verdict']}{until}"
    whose = client_text(decision["user"], decision["client_id"])
    yield f"  request: {decision['api']} of {whose} at {_time(decision['timestamp_ms'])}{_through(decision)}"
    by = f", because of {decision['decided_by']}" if decision["decided_by"] else ""
    version = f"under version {decision['quota_version']} of the quotas"
    if decision.get("source_topic_id"):
        yield f"  topic of requests: the one with the id {decision['source_topic_id']}"
    yield f"  decided: at {_time(decision['decided_at_ms'])} {version}{by}"
    if decision.get("elastic"):
        yield f"  limits gave way: {_elastic_text(decision['elastic'], _server(decision))}"
    for wait in decision.get("throttled_by") or []:
        yield f"  applied inline: {duration(wait['ms'])} for {wait['quota']} of {_counter(wait['entity'])}"
    for hold in decision["holds"]:
        yield f"  stopped: {hold}"
    if not decision["charges"]:
        is_refused = decision["api"] == REFUSED_API
        yield f"  charges: none; {'what is refused counts nowhere' if is_refused else 'no quota counts such a request'}"
    for charge in decision["charges"]:
        yield from _charge_lines(charge)
    if decision["quotas_trouble"]:
        yield f"  the quotas can't be read: {decision['quotas_trouble']}"


def _felt(decision: dict[str, Any]) -> str:
    """The wait of the client, by what its gateway applied inline, or else by the decision."""
    gateway, wait_ms, quota = _server(decision) or "its gateway", decision["throttle_time_ms"], decision["decided_by"]
    if inline := decision.get("throttled_by"):
        longest = max(inline, key=lambda wait: wait["ms"])
        refused = "refused" if decision["api"] == REFUSED_API else f"throttled for {duration(longest['ms'])}"
        return f"{refused} by {gateway} ({longest['quota']})"
    if inline is not None or not wait_ms:
        return "not throttled"
    return f"{'refused' if decision['verdict'] == Verdict.REJECT else 'throttled'} for {duration(wait_ms)} ({quota})"


def _elastic_text(note: dict[str, Any], server: str) -> str:
    """Text of how far limits gave way, and why.

    >>> _elastic_text({"number": 7, "factor": 0.75, "reason": "broker 2: queue wait 34 ms"}, "broker 2")
    'broker 2 was tightened: queue wait 34 ms; 75 % of its shares were admitted (state 7)'
    """
    admitted = f"{percent(note['factor'] or 1.0)} of its shares were admitted"
    return f"{tightened_text(server, note['reason'] or '')}; {admitted} (state {note['number']})"


def _through(decision: dict[str, Any]) -> str:
    if (server := _server(decision)) == (name := decision["gateway"] or ""):
        return f", through gateway '{name}'" if name else ""
    return f", through {server}" + (f" (gateway '{name}')" if name else "")


def _server(decision: dict[str, Any]) -> str:
    """The broker by its node id, or the gateway by its name; "" if the event names none."""
    return server_text(decision.get("instance"), decision["gateway"])


def _charge_lines(charge: dict[str, Any]) -> Iterator[str]:
    mode = f" ({charge['mode']})" if charge.get("mode") else ""
    marks = [
        *(["over the limit"] if charge["violated"] else []),
        *([f"asks for {duration(charge['throttle_ms'])}"] if charge["throttle_ms"] else []),
        *(["decides"] if charge["decides"] else []),
    ]
    quota = charge["quota"]
    whose = f"{quota}{mode} of {_counter(charge['entity'])}"
    yield f"  {'*' if charge['decides'] else '-'} {whose}: {', '.join(marks) or 'no wait'}"
    level = "" if charge.get("tokens") is None else f", {figure(charge['tokens'])} tokens left"
    rate = "" if charge["rate"] is None else f", rate {quota_amount(quota, charge['rate'])}"
    limit = f"limit {quota_amount(quota, charge['limit'])} (level: {charge['matched']})"
    allowed = "no limit" if charge["limit"] is None else limit
    yield f"      charged {quota_amount(quota, charge['value'], per_s=False)}{rate}, {allowed}{level}"
    if (change := charge["quota_set"]) is not None:
        old = "no quota" if change["old"] is None else quota_amount(quota, change["old"])
        version, was = "", ""
        if change["version"] is not None:
            version, was = f" with version {change['version']}", f"{old} -> "
        when = datetime.fromisoformat(change["changed_at"]).isoformat(timespec="seconds")
        yield f"      set by {change['changed_by']} at {when}{version}: {was}{quota_amount(quota, change['new'])}"


def _counter(entity: dict[str, Any] | None) -> str:
    return counter_text(Tags.of(CountedEntity(**(entity or {}))))


def _time(at_ms: int | None) -> str:
    from sluice_reading.times import from_ms

    if at_ms is None:
        return "an unknown time"
    try:
        return from_ms(at_ms).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{at_ms} ms"
