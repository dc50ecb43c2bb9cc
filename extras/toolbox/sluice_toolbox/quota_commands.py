"""The commands `sluice quotas ...` that alter and describe the quotas table. None starts Spark."""

import heapq
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import Command, command_app
from sluice.configs.yaml_file import read_yaml
from sluice.process.format import moment, printable
from sluice.process.texts import counter_text
from sluice.sinks.errors import QuotasTableError
from sluice.state.quotas.entity import QuotaEntity, Tags
from sluice.state.quotas.entry import Mode, QuotaEntry
from sluice.state.quotas.kinds import ENTRY_KINDS, ElasticKey, QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.state.quotas.tenants import check_members
from sluice_reading.operator_holds import OperatorHold
from sluice_reading.options import JsonOption, TableOptions, grouped, quotas_of_file
from sluice_reading.output import print_json, print_lines, time_text
from sluice_reading.quota_lists import Difference, differences, merged
from sluice_reading.quota_text import entry_json, no_members_text, quotas_yaml, writable, write_out
from sluice_reading.texts import strict_text
from sluice_reading.times import from_ms
from sluice_toolbox.alteration import FilterComponent, matches, with_altered
from sluice_toolbox.cluster import RawEntity
from sluice_toolbox.cluster_changes import SLUICES_OWN, is_mirrored
from sluice_toolbox.quota_options import AuthorOption, EntityOptions, YesOption, ask, changed_from
from sluice_toolbox.quota_text import (
    KEY_MEANINGS,
    change_text,
    describe_lines,
    read_configs,
    read_number,
    read_properties,
    refused_alteration,
    refused_edit,
)
from sluice_toolbox.reach import reach_lines

if TYPE_CHECKING:
    from sluice_reading.quotas_admin import QuotaChange

EXIT_FAILED = 1

Change = Callable[[list[QuotaEntry]], list[QuotaEntry]]

ModeOption = Annotated[
    Mode, typer.Option("--mode", help="Mode of the quotas. Shadow quotas are metered, and throttle nobody.")
]

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the changes only.")]


class _AlterCommand(Command):
    """`alter`, whose help says what each key means."""

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        """The keys, one entry for each."""
        with formatter.section("Keys"):
            formatter.write_dl(list(KEY_MEANINGS.items()))


@grouped
def alter_quotas(
    ctx: typer.Context,
    entity: EntityOptions,
    table: TableOptions,
    author: AuthorOption,
    add_config: Annotated[str | None, typer.Option("--add-config", help="key=value,key=value")] = None,
    delete_config: Annotated[str | None, typer.Option("--delete-config", help="key,key")] = None,
    add_config_file: Annotated[Path | None, typer.Option("--add-config-file", help="Properties file.")] = None,
    mode: ModeOption = Mode.ENFORCE,
    _yes: Annotated[bool, typer.Option("--yes", "-y", help="As for other commands; this one never asks.")] = False,
    dry_run: DryRunOption = False,
    json_output: JsonOption = False,
) -> None:
    """Set or remove quotas of one entity, all or none of them."""
    only_removes = add_config is None and add_config_file is None
    target = entity.entity(ctx, literal=only_removes)  # an odd name that is there can be removed
    if add_config is not None and add_config_file is not None:
        raise UsageError("--add-config and --add-config-file are both given; give one")
    configs = read_properties(add_config_file) if add_config_file else read_configs(add_config) if add_config else {}
    deleted = [key.strip() for key in delete_config.split(",")] if delete_config else []
    if not configs and not deleted:
        raise UsageError("nothing to alter; give --add-config, --add-config-file or --delete-config")
    added = {key: read_number(key, value) for key, value in configs.items()}
    change = partial(with_altered, entity=target, added=added, deleted=deleted, shadow=mode is Mode.SHADOW)
    if mode is Mode.ENFORCE and not target.keys() & {"topic", "tenant"} and table.mirrors_a_cluster():
        kept = {key: value for key, value in added.items() if key not in SLUICES_OWN}
        gone = [key for key in deleted if key not in SLUICES_OWN]
        if kept or gone:
            raise UsageError(refused_alteration(table.settings.kafka, target, kept, gone))
    version, before, after = (None, *_preview(table, change)) if dry_run else _commit(table, change, author.name())
    if json_output:
        print_json(
            {"version": version, "changes": [_difference_json(pair) for pair in differences(before, after)]},
            indent=True,
        )
    elif dry_run:
        _print_dry_run(QuotaEntity.from_mapping(target), before, after)
    else:
        typer.echo(_altered_text(*next(iter(target.items()))))
    _say_if_strict(table, added, after)
    if mode is Mode.ENFORCE and (told := _lowered_text(differences(before, after), target)):
        typer.echo(f"sluice: {told}", err=True)
    if added and (tenant := target.get("tenant")) is not None and (hint := no_members_text(tenant, after)):
        typer.echo(f"sluice: {hint}", err=True)


@grouped
def describe_quotas(
    ctx: typer.Context, entity: EntityOptions, table: TableOptions, json_output: JsonOption = False
) -> None:
    """Print the quotas of the entities given, as kafka-configs.sh does; without an entity, all quotas."""
    filters = entity.filters(ctx)
    quotas_table = table.quotas_table()
    version = quotas_table.version()
    all_rows = quotas_table.rows(version)
    rows = [row for row in all_rows if _matches(row.entry.entity, filters)]
    if not json_output:
        print_lines(describe_lines(row.entry for row in rows))
        _say_if_strict(table, (row.entry.kind for row in rows), (row.entry for row in all_rows))
        return
    quotas = [
        {
            "entity": row.entry.entity.to_mapping(),
            "key": row.entry.kind,
            **(entry_json(row.entry) or {}),
            "changed_by": row.changed_by,
            "changed_at": time_text(row.changed_at),
        }
        for row in rows
    ]
    print_json({"version": version, "quotas": quotas}, indent=True)


@grouped
def quotas_history(
    ctx: typer.Context,
    entity: EntityOptions,
    table: TableOptions,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most changes to print.")] = 20,
    json_output: JsonOption = False,
) -> None:
    """Print the changes of quotas, and holds, with author, OS user, host and time, the newest first."""
    filters = entity.filters(ctx)
    changes = (change for change in table.quotas_table().history() if _matches(change.entity, filters))
    holds = [each for each in _holds_told(table) if _matches(_entity(each.client), filters)]
    told: Iterator[tuple[datetime, Any, str]] = heapq.merge(
        ((each.changed_at, _change_json(each), _change_line(each)) for each in changes),
        ((from_ms(each.at_ms), _hold_json(each), _hold_line(each)) for each in holds),
        key=itemgetter(0),
        reverse=True,
    )
    newest = itertools.islice(told, limit)
    if json_output:
        print_json({"changes": [as_json for _, as_json, _ in newest]}, indent=True)
    else:
        print_lines(line for *_, line in newest)


def _holds_told(table: TableOptions) -> list[OperatorHold]:
    """The holds and releases; none if they can't be read, which standard error says: the quotas are still told."""
    try:
        return table.holds_table().commands()
    except QuotasTableError as error:
        typer.echo(f"sluice: holds are left out: {error}", err=True)
        return []


@grouped
def revert_quotas(
    table: TableOptions,
    author: AuthorOption,
    to_version: Annotated[int, typer.Option("--to-version", min=0, help="The version to restore, see `history`.")],
    _yes: Annotated[bool, typer.Option("--yes", "-y", help="As for other commands; this one never asks.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Restore the quotas of an earlier version, as a new version."""
    restored = table.quotas_table().entries(to_version)
    edit(table, lambda _: restored, author, dry_run=dry_run, yes=True)


@grouped
def apply_quotas(
    table: TableOptions,
    author: AuthorOption,
    file: Annotated[Path, typer.Argument(help="Quota YAML, as `export` prints it.", show_default=False)],
    prune: Annotated[bool, typer.Option("--prune", help="Remove all other quotas, and all other tenants.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Set the quotas of a file in one commit, after showing the changes and asking."""
    wanted = quotas_of_file(file)
    check_prune(file, wanted, prune=prune)
    edit(table, merging(table, wanted, (lambda _: True) if prune else None), author, dry_run=dry_run, yes=yes)


@grouped
def export_quotas(
    table: TableOptions, out: Annotated[Path | None, typer.Option("--out", help="Write the quota file here.")] = None
) -> None:
    """Print all quotas as a quota file. Standard error names those that no quota file can express."""
    entries, left_out = writable(table.quotas_table().entries())
    for line in left_out:
        typer.echo(f"sluice: {line}", err=True)
    text = quotas_yaml(entries)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_out(out, text)


alter = command_app(alter_quotas, _AlterCommand)
describe = command_app(describe_quotas)
history = command_app(quotas_history)


def check_prune(file: Path, wanted: Sequence[QuotaEntry], *, prune: bool) -> None:
    """Raise UsageError for a file that was cut to nothing, by which --prune would remove all that it could name."""
    if prune and not wanted and read_yaml(file) is None:
        raise UsageError(f"{file} is empty, and --prune would remove all of them; write [] into it if that is meant")


def merging(
    table: TableOptions, wanted: Sequence[QuotaEntry], is_pruned: Callable[[QuotaEntry], bool] | None = None
) -> Change:
    """The change to the quotas wanted, without those that are pruned. Quotas mirrored from a cluster stay."""
    if is_pruned is None:
        return partial(merged, wanted=wanted)
    mirrors = table.mirrors_a_cluster()
    return lambda entries: merged(
        (entry for entry in entries if not is_pruned(entry) or (mirrors and is_mirrored(entry))), wanted
    )


def _preview(table: TableOptions, change: Change) -> tuple[list[QuotaEntry], list[QuotaEntry]]:
    """The quotas now and after the change; writes nothing. Raises InvalidQuotaError for a member of two tenants."""
    quotas_table = table.quotas_table()
    before = quotas_table.entries()
    after = change(before)
    if any(new and new.entity.is_member for _, new in differences(before, after)):
        check_members(after)
    return before, after


def _commit(table: TableOptions, change: Change, author: str) -> tuple[int, list[QuotaEntry], list[QuotaEntry]]:
    """Commit the change; returns the version, and the quotas before and after."""
    quotas_table, at = table.quotas_table(), datetime.now(UTC)
    attempts: list[tuple[list[QuotaEntry], list[QuotaEntry]]] = []

    def recorded(before: list[QuotaEntry]) -> list[QuotaEntry]:
        after = change(before)
        attempts.append((before, after))
        return after

    version = quotas_table.alter(recorded, author, at, changed_from(table.settings))
    return version, *attempts[-1]


def edit(table: TableOptions, change: Change, author: AuthorOption, *, dry_run: bool, yes: bool) -> None:
    """Show the changes, ask unless `yes`, and commit them. Raises UsageError for quotas mirrored from the cluster."""
    if table.mirrors_a_cluster():
        change = partial(_changed_here, table.settings.kafka, change)
    before, after = _preview(table, change)
    changed = _show_changes(before, after)
    if not changed or dry_run:
        return

    def confirmed(entries: list[QuotaEntry]) -> list[QuotaEntry]:
        if not yes and differences(before, entries):
            raise QuotasTableError("the quotas changed while you were asked; run the command again")
        return change(entries)

    if not yes:
        ask(f"Apply {len(changed)} changes?" if changed[1:] else "Apply 1 change?")
    version, _, _ = _commit(table, confirmed, author.name())
    typer.echo(f"Quotas are now at version {version}.")


def _changed_here(kafka: Mapping[str, str], change: Change, entries: list[QuotaEntry]) -> list[QuotaEntry]:
    """`change(entries)`. Raises UsageError if it changes quotas that are mirrored from the cluster."""
    after = change(entries)
    if reason := refused_edit(kafka, differences(entries, after)):
        raise UsageError(reason)
    return after


def _matches(entity: QuotaEntity, filters: Sequence[FilterComponent]) -> bool:
    """True if Kafka's controller answers a strict describe with this entity; without filters all match.

    The members of a tenant match as the tenant itself does.
    """
    names = {"tenant": str(entity.tenant)} if entity.is_member else entity.to_mapping()
    raw = {part.replace("_", "-"): name for part, name in names.items()}
    return matches(raw, filters, strict=bool(filters))


def _say_if_strict(table: TableOptions, keys: Iterable[str], entries: Iterable[QuotaEntry]) -> None:
    """Say on standard error if reservations among the keys don't count."""
    if not any(isinstance(ENTRY_KINDS.get(key), ElasticKey) for key in keys):
        return
    if strict := strict_text(Quotas(entries), gives_way=table.gives_way()):
        typer.echo(f"sluice: reservations are {strict}", err=True)


def _entity(client: Tags) -> QuotaEntity:
    return QuotaEntity(client.user or None, client.client_id or None, tenant=client.tenant or None)


def _lowered_text(pairs: Iterable[Difference], named: RawEntity) -> str | None:
    """The rest that brokers let through, if the byte rate of producers was lowered; None if it wasn't.

    >>> low, high = (QuotaEntry(QuotaEntity(user="etl"), QuotaKind.PRODUCER_BYTE_RATE, value) for value in (1.0, 9.0))
    >>> _lowered_text([(low, high)], {"user": "etl"})
    >>> _lowered_text([(high, low)], {"user": "etl"}).rpartition(": ")[2]
    'sluice quotas hold --user etl --for 10m --reason ...'
    """
    lowered = (old and new and new.value < old.value and new.kind is QuotaKind.PRODUCER_BYTE_RATE for old, new in pairs)
    if not any(lowered):
        return None
    told = "for 5 minutes brokers let each connection of a producer send a request every 5 s, and then ever more rarely"
    names = " ".join(f"--{kind} {shlex.quote(name)}" for kind, name in named.items() if name is not None)
    can_be_held = "topic" not in named and None not in named.values()
    return told + (f"; to stop a client now: sluice quotas hold {names} --for 10m --reason ..." if can_be_held else "")


def _altered_text(entity_type: str, name: str | None) -> str:
    """The line of kafka-configs.sh, which names the first of two entity types only."""
    singular = "client" if entity_type == "client-id" else entity_type
    if name is None:
        return f"Completed updating default config for {singular}s in the cluster."
    return f"Completed updating config for {singular} {printable(name)}."


def _show_changes(before: Sequence[QuotaEntry], after: Sequence[QuotaEntry]) -> list[Difference]:
    changed = differences(before, after)
    print_lines([change_text(old, new) for old, new in changed] or ["Nothing changes."])
    return changed


def _print_dry_run(entity: QuotaEntity, before: Sequence[QuotaEntry], after: Sequence[QuotaEntry]) -> None:
    changed = _show_changes(before, after)
    if not changed:
        return
    kinds = {known.kind for pair in changed for known in pair if known}
    mode = next(known.mode for pair in changed for known in pair if known)
    print_lines(reach_lines(entity, kinds, [entry for entry in after if entry.mode is mode]))


def _change_line(change: "QuotaChange") -> str:
    what = change_text(change.old, change.new)
    whose = change.changed_by + (f" ({change.changed_from})" if change.changed_from else "")
    return f"version {change.version}  {time_text(change.changed_at)}  {whose}  {what}"


def _change_json(change: "QuotaChange") -> dict[str, Any]:
    return {
        "version": change.version,
        "changed_by": change.changed_by,
        "changed_from": change.changed_from and change.changed_from._asdict(),
        "changed_at": time_text(change.changed_at),
        **_difference_json((change.old, change.new)),
    }


def _hold_line(hold: OperatorHold) -> str:
    """A hold or release as a line of the history."""
    what = "released" if not hold.lasting_ms else f"held until {moment(hold.until_ms)}: {hold.reason}"
    whose = f"{hold.changed_by} ({hold.changed_from})"
    return f"hold  {time_text(from_ms(hold.at_ms))}  {whose}  {counter_text(hold.client)} {what}"


def _hold_json(hold: OperatorHold) -> dict[str, Any]:
    """The same as JSON, in the form of a change of quotas."""
    new = {"until": time_text(from_ms(hold.until_ms)), "reason": hold.reason}
    return {
        "version": None,
        "changed_by": hold.changed_by,
        "changed_from": hold.changed_from._asdict(),
        "changed_at": time_text(from_ms(hold.at_ms)),
        "entity": hold.client.to_mapping(),
        "key": "hold",
        "old": None,
        "new": new if hold.lasting_ms else None,
    }


def _difference_json(pair: Difference) -> dict[str, Any]:
    old, new = pair
    known = new or old
    assert known is not None  # noqa: S101 - for mypy: a change has an old or a new quota
    return {"entity": known.entity.to_mapping(), "key": known.kind, "old": entry_json(old), "new": entry_json(new)}
