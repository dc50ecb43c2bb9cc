"""`sluice balance`: the counters of a client after the job's last micro-batch.

Modules that read checkpoints are imported in the command: numpy and pyarrow would double the start of every command.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import ConfigOption, job_settings
from sluice.configs.settings import Settings
from sluice.process.clock import now_ms
from sluice.process.texts import counter_text
from sluice_reading.format import figure, short
from sluice_reading.options import ClientIdOption, UserOption, quotas_in_force
from sluice_reading.output import print_json, print_lines
from sluice_reading.text_tables import MAX_NAME, table_lines, terminal_width
from sluice_reading.texts import client_text

if TYPE_CHECKING:
    from sluice_toolbox.client_balances import Balance, Client

COLUMNS = ("counter", "quota", "rate", "limit", "tokens", "wait ms", "last charged s before")


def balance(
    user: UserOption = None,
    client_id: ClientIdOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    config: ConfigOption = None,
) -> None:
    """Show the rates and tokens of a client's counters after the job's last committed micro-batch.

    Reads the checkpoint, for which it needs Java; a running job goes on undisturbed. One name means all counters with
    that name, both mean those that requests of that client may be charged to; that of its tenant is shown too. A name
    that no user's counter has is looked for among client-ids, and the other way, and standard error says so.
    """
    if not user and not client_id:
        raise UsageError("give --user, --client-id or both")
    settings = job_settings(config)
    from sluice.state.quotas.entity import bounded_name
    from sluice_reading.times import from_ms
    from sluice_toolbox.client_balances import Client

    wanted = Client(bounded_name(user or "") or None, bounded_name(client_id or "") or None)
    micro_batch, version, now_ms, found, of = _read(settings, wanted)
    if of != wanted:
        sought, found_of = client_text(wanted.user, wanted.client_id), client_text(of.user, of.client_id)
        typer.echo(f"sluice: no counter has the {sought}; these have the {found_of}", err=True)
    if json_output:
        answer = {"micro_batch": micro_batch, "quota_version": version, "at_ms": now_ms}
        print_json({**answer, "counters": [_mapping(one) for one in found]})
        return
    where = "imported balances, nothing charged yet" if micro_batch < 0 else f"state after micro-batch {micro_batch}"
    of_version = "" if version is None else f", version {version} of the quotas"
    typer.echo(f"{where}, as of {from_ms(now_ms).isoformat(timespec='seconds')}{of_version}")
    if not found:
        typer.echo("no counters: nothing was charged lately, so the whole of each limit is left")
        return
    rows = (_row(one, now_ms) for one in found)
    print_lines(table_lines(COLUMNS, rows, terminal_width(), ("last charged s before", "tokens"), COLUMNS[:1]))


def _read(settings: Settings, wanted: "Client") -> tuple[int, int | None, int, "list[Balance]", "Client"]:
    """The micro-batch, the newest version of the quotas that the job knows, None without one, the time, the balances.

    The last is whose they are: the client wanted, or, if it has none, that with its one name as the other kind.

    The time is that before the state is read, which takes seconds: decisions of that time are missing, and a later time
    would make a busy client look idle.
    """
    from sluice.state.quotas.resolution import Quotas
    from sluice.state.quotas.tenants import Tenants
    from sluice.streaming.checkpoint.folder import Checkpoint
    from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
    from sluice_toolbox.client_balances import Client, balances
    from sluice_toolbox.extract import committed_pages  # which other commands don't need

    at_ms = now_ms()
    snapshots = QuotaSnapshots(Checkpoint(settings.enforce.checkpoint))
    newest = next(reversed(snapshots.kept()), None)
    if newest is not None:
        quotas: Quotas | None = snapshots.load(newest.version, newest.digest)
    else:  # balances that were just imported: no job has made a snapshot of the table yet
        entries = quotas_in_force(settings)
        quotas = Quotas(entries) if entries else None
    tenants = Tenants() if quotas is None else quotas.tenants
    other = Client(wanted.client_id, wanted.user)
    clients = [
        client._replace(tenant=tenants.of(client.user or "", client.client_id or ""))
        for client in ([wanted] if wanted.user and wanted.client_id else [wanted, other])
    ]
    parts = [part for client in clients for part in client.parts_of_keys()]
    origin, micro_batch, pages = committed_pages(settings, parts)
    found = {each: balances(pages.values(), origin.pages, each, quotas, settings.quota, at_ms) for each in clients}
    of = next((each for each in clients if any(not one.tags.tenant for one in found[each])), clients[0])
    return micro_batch, newest and newest.version, at_ms, found[of], of._replace(tenant="")


def _row(one: "Balance", now_ms: int) -> tuple[str, ...]:
    return (
        short(counter_text(one.tags), 2 * MAX_NAME),
        f"{one.kind} (shadow)" if one.shadow else one.kind,
        figure(one.rate),
        figure(one.limit),
        figure(one.tokens),
        str(one.throttle_ms),
        f"{(now_ms - one.last_event_ms) / 1000:.1f}",
    )


def _mapping(one: "Balance") -> dict[str, Any]:
    """The names are those of a charge in a decision."""
    return {
        "entity": one.tags.to_mapping(),
        "quota": one.kind,
        "mode": "shadow" if one.shadow else "enforce",
        "limit": one.limit,
        "rate": one.rate,
        "tokens": one.tokens,
        "throttle_ms": one.throttle_ms,
        "last_event_ms": one.last_event_ms,
    }
