"""`sluice quotas hold` and `release`: stop a client now, and let it go on. Neither starts Spark."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import Command, command_app
from sluice.kafka_io.client import principal_of
from sluice.kafka_io.properties import has_layer
from sluice.process.clock import now_ms
from sluice.process.format import printable
from sluice.process.texts import counter_text
from sluice.state.contract.records import NO_LOGIN
from sluice.state.quotas.entity import MAX_TAG_LENGTH, Tags, bounded_name
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.resolution import Quotas
from sluice_reading.operator_holds import MAX_LASTING_MS, MAX_REASON, OperatorHold, holds_at, last_commands
from sluice_reading.options import TableOptions, grouped
from sluice_reading.own_clients import is_own_client_id, is_own_login
from sluice_reading.times import read_length
from sluice_toolbox.operator_holds import MAX_HOLDS
from sluice_toolbox.quota_options import AuthorOption, EntityOptions, YesOption, ask, changed_from

TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds to wait until gateways have it.", min=0)]

_PURPOSES = ("sums", "limits", "requests")
"""Ends of the client-ids of gateways."""


class ClientCommand(Command):
    """A command of one client by its name: its help leaves out the options of EntityOptions that it refuses."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As a command of Typer."""
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if parameter.name == "entity_type":
                parameter.metavar = "<users|clients|tenants>"
            elif parameter.name in ("entity_default", "topic") or str(parameter.name).endswith("_defaults"):
                parameter.hidden = True  # type: ignore[attr-defined] # all of them are options


@grouped
def hold_client(
    ctx: typer.Context,
    entity: EntityOptions,
    table: TableOptions,
    author: AuthorOption,
    reason: Annotated[str, typer.Option("--reason", help="Why; consoles, logs and alerts show it.")],
    length: Annotated[str, typer.Option("--for", "--duration", help="How long: 90s, 10m, 2h, 1d; at most 7d.")] = "10m",
    timeout_s: TimeoutOption = 10,
    yes: YesOption = False,
) -> None:
    """Stop a client now: within seconds its producers and consumers get nothing, whatever its quotas are.

    A broker reads each request of a producer before it can make it wait, so each connection still gets one through in
    10 s, and it stops no share consumer, which would lose records. Quotas stay as they are. The same command again sets
    another end. It asks about a name that no decision and no quota has. It returns when the hold is in force at all
    gateways; exit 1 says where it isn't.
    """
    held = _client(ctx, entity)
    if not reason.strip() or len(reason) > MAX_REASON:
        raise UsageError(f"--reason has {len(reason)} characters; expected 1 to {MAX_REASON}")
    lasting_ms = read_length(length)
    if lasting_ms > MAX_LASTING_MS:
        longest = f"{MAX_LASTING_MS // 86_400_000}d"
        raise UsageError(f"--for {length} is longer than {longest}; lower the client's quotas, or hold it again")
    kafka = table.settings.kafka
    commands = _commands(table)
    entries = table.quotas_table().entries()
    if _is_own(kafka, held) or held.tenant in _own_tenants(kafka, entries):
        raise UsageError(
            f"Sluice itself works as {counter_text(held)}: brokers exempt it, or the hold would stop Sluice"
            "; name one client-id, or a login of others"
        )
    if held.tenant and held.tenant not in {entry.entity.tenant for entry in entries}:
        raise UsageError(f"there is no tenant {held.tenant!r}; `sluice tenants describe` prints all")
    others = {hold.client for hold in holds_at(commands, now_ms())} - {held}
    if len(others) >= MAX_HOLDS:
        raise UsageError(f"{len(others)} clients are held; expected at most {MAX_HOLDS}: release some, or lower quotas")
    for unknown in () if yes else _unknown_names(table, held, entries):
        ask(f"{printable(unknown)}. Hold it?")
    where = _put_in_force(table, author, held, timeout_s, lasting_ms, reason.strip())
    name = printable(counter_text(held))
    typer.echo(f"Holding {name} for {length}, in force at {where}; `sluice quotas release` ends it.")


@grouped
def release_client(
    ctx: typer.Context, entity: EntityOptions, table: TableOptions, author: AuthorOption, timeout_s: TimeoutOption = 10
) -> None:
    """Let a client go on that was stopped by `hold`: within 10 s, the wait that a broker asked for last.

    It returns when all gateways know; exit 1 says which don't.
    """
    held, commands = _client(ctx, entity), _commands(table)
    last = last_commands(commands).get(held)
    if last is None or not last.lasting_ms:  # one that has ended by this clock may not have by the job's
        known = ", ".join(counter_text(hold.client) for hold in holds_at(commands, now_ms())) or "nobody"
        lost = f"; if its table was lost, a job may still hold {counter_text(held)}: hold it, then release it"
        raise UsageError(f"nothing holds {counter_text(held)}; held now: {printable(known)}{'' if commands else lost}")
    where = _put_in_force(table, author, held, timeout_s)
    typer.echo(f"Released {printable(counter_text(held))}, in force at {where}.")


hold, release = command_app(hold_client, ClientCommand), command_app(release_client, ClientCommand)


def _client(ctx: typer.Context, entity: EntityOptions) -> Tags:
    """The user, client-id or tenant given. Raises UsageError for others, and for names that counters don't have."""
    named = entity.entity(ctx, one_of="--user, --client, both, or --tenant")
    if "topic" in named or None in named.values():
        raise UsageError("a hold is of a user, a client-id, both, or a tenant, each by its name")
    if longest := max((name for name in named.values() if name and len(name) > MAX_TAG_LENGTH), key=len, default=None):
        known_as = (
            f"; give the name that counters have for it, {bounded_name(longest)}" if "tenant" not in named else ""
        )
        raise UsageError(f"a name has {len(longest)} characters; expected at most {MAX_TAG_LENGTH}{known_as}")
    return Tags(named.get("user") or "", named.get("client-id") or "", tenant=named.get("tenant") or "")


def _is_own(kafka: Mapping[str, str], client: Tags) -> bool:
    """True for the client that Sluice is by these settings: without a login its user is that of all such clients."""
    is_all = client.user == NO_LOGIN and not (has_layer(kafka, "SASL") or has_layer(kafka, "SSL"))
    if client.user and not is_all:
        return is_own_login(kafka, client.user)
    return is_own_client_id(kafka, client.client_id) if client.client_id else is_all


def _commands(table: TableOptions) -> list[OperatorHold]:
    table.quotas_table().version()  # says what to do where no job has run
    return table.holds_table().commands()


def _own_tenants(kafka: Mapping[str, str], entries: Sequence[QuotaEntry]) -> set[str]:
    """The tenants that Sluice's own clients are in, whose names end with their place and purpose."""
    tenants, own = Quotas(entries).tenants, kafka.get("client.id", "sluice")
    has_login = has_layer(kafka, "SASL") or has_layer(kafka, "SSL")
    user = (principal_of(kafka) or "").removeprefix("User:") if has_login else NO_LOGIN
    named = [name for entry in entries if isinstance(name := entry.entity.client_id, str)]
    client_ids = [own, *(f"{own}-{purpose}" for purpose in _PURPOSES), *filter(partial(is_own_client_id, kafka), named)]
    return {tenants.of(user, client_id) for client_id in client_ids} - {""}


def _unknown_names(table: TableOptions, client: Tags, entries: Sequence[QuotaEntry]) -> Iterator[str]:
    """A line for each name that nobody has been seen with; none while the table of decisions is behind."""
    from sluice_reading.query import Tables  # Delta's library is slow to import
    from sluice_toolbox.nobody import nobody_text

    delta = table.settings.delta
    tables = Tables(delta.decisions, delta.quotas, delta.storage_options)
    for user, client_id in ((client.user or None, None), (None, client.client_id or None)):
        if line := nobody_text(tables, user, client_id, entries, datetime.now(UTC)):
            yield line


def _put_in_force(
    table: TableOptions, author: AuthorOption, client: Tags, timeout_s: float, lasting_ms: int = 0, reason: str = ""
) -> str:
    """Write a command, and return where it is in force. Raises NotInForceError, QuotasTableError."""
    from sluice_toolbox.in_force import InForceWatch  # Kafka's client is slow to import

    names, origin = (client.user, client.client_id, client.tenant), changed_from(table.settings)
    command = OperatorHold(*names, 0, now_ms(), lasting_ms, reason, author.name(), *origin)
    with InForceWatch(table.settings) as watch:
        return watch.wait_for(table.holds_table().append(command), timeout_s, holds=bool(lasting_ms))
