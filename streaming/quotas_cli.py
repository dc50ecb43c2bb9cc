"""The commands `sluice quotas ...`: altering, describing, explaining and taking over quotas. No Spark is started."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from configs.quotas import load_quotas_file
from sinks.errors import QuotasTableError
from sinks.quotas_table import QuotaChange
from state.entity import QuotaEntity
from state.errors import InvalidQuotaError
from state.quota_control import FilterComponent, QuotaControl
from state.quota_entry import QuotaEntry
from state.resolution import Quotas
from streaming.option_groups import grouped
from streaming.quota_changes import Difference, altered, differences, merged, reach_lines
from streaming.quota_explanation import explain
from streaming.quota_formats import (
    change_text,
    describe_lines,
    entry_json,
    quotas_yaml,
    read_configs,
    read_number,
    read_properties,
    read_zookeeper_file,
)
from streaming.quota_options import AuthorOption, EntityCommand, EntityOptions, TableOptions, UsageError

EXIT_FAILED = 1

app = typer.Typer(
    help="Alter, describe and explain the quotas; works while the job runs, which takes them over by itself.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Change = Callable[[list[QuotaEntry]], list[QuotaEntry]]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
PruneOption = Annotated[bool, typer.Option("--prune", help="Also remove the quotas that are not there.")]


@app.command("alter", cls=EntityCommand)
@grouped
def alter_quotas(
    ctx: typer.Context,
    entity: EntityOptions,
    table: TableOptions,
    author: AuthorOption,
    add_config: Annotated[str | None, typer.Option("--add-config", help="key=value,key=value")] = None,
    delete_config: Annotated[str | None, typer.Option("--delete-config", help="key,key")] = None,
    add_config_file: Annotated[Path | None, typer.Option("--add-config-file", help="Properties file.")] = None,
    mode: Annotated[
        Literal["enforce", "shadow"], typer.Option("--mode", help="shadow meters and reports, and never delays.")
    ] = "enforce",
    dry_run: DryRunOption = False,
    json_output: JsonOption = False,
) -> None:
    """Set or remove quotas of one entity, all or none of them."""
    target = entity.entity(ctx)
    if add_config is not None and add_config_file is not None:
        raise UsageError("--add-config and --add-config-file are both given; give one")
    configs = read_properties(add_config_file) if add_config_file else read_configs(add_config) if add_config else {}
    deleted = [key.strip() for key in delete_config.split(",")] if delete_config else []
    if not configs and not deleted:
        raise UsageError("nothing to alter; give --add-config, --add-config-file or --delete-config")
    added = {key: read_number(key, value) for key, value in configs.items()}
    change = partial(altered, entity=target, added=added, deleted=deleted, shadow=mode == "shadow")
    before, after = _preview(table, change)
    version = None if dry_run else _commit(table, change, author.name())
    if json_output:
        _print_json({"version": version, "changes": [_difference_json(pair) for pair in differences(before, after)]})
    elif dry_run:
        _print_dry_run(QuotaEntity.from_mapping(target), before, after)
    else:
        typer.echo(_altered_text(*next(iter(target.items()))))


@app.command("describe", cls=EntityCommand)
@grouped
def describe_quotas(
    ctx: typer.Context, entity: EntityOptions, table: TableOptions, json_output: JsonOption = False
) -> None:
    """Print the quotas of the entities asked for, as kafka-configs.sh does; without any, all quotas."""
    filters = entity.filters(ctx)
    quotas_table = table.quotas_table()
    version = quotas_table.version()
    rows = quotas_table.rows(version)
    wanted = _matching({row.entry.entity for row in rows}, filters)
    rows = [row for row in rows if row.entry.entity in wanted]
    if not json_output:
        _print_lines(describe_lines(row.entry for row in rows))
        return
    quotas = [
        {
            "entity": row.entry.entity.to_mapping(),
            "key": row.entry.kind,
            **(entry_json(row.entry) or {}),
            "changed_by": row.changed_by,
            "changed_at": _time_text(row.changed_at),
        }
        for row in rows
    ]
    _print_json({"version": version, "quotas": quotas})


@app.command("resolve")
@grouped
def resolve_quotas(
    table: TableOptions,
    user: Annotated[str, typer.Option("--user", help="The request's user.")] = "",
    client: Annotated[str, typer.Option("--client-id", "--client", help="The request's client-id.")] = "",
    topic: Annotated[str | None, typer.Option("--topic", help="A topic that the request touches.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Explain which limits a request would meet: from which entity, on which counter, and which were passed over."""
    if not user and not client and topic is None:
        raise UsageError("no request; give --user, --client-id, --topic or several of them")
    quotas_table = table.quotas_table()
    version = quotas_table.version()
    explanations = list(explain(Quotas(quotas_table.entries(version), version), user, client, topic))
    if json_output:
        _print_json({"version": version, "quotas": [explanation.to_mapping() for explanation in explanations]})
    else:
        _print_lines(line for explanation in explanations for line in explanation.lines())


@app.command("history", cls=EntityCommand)
@grouped
def quotas_history(
    ctx: typer.Context,
    entity: EntityOptions,
    table: TableOptions,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most changes to print.")] = 20,
    json_output: JsonOption = False,
) -> None:
    """Print who changed which quota when, the newest change first."""
    filters = entity.filters(ctx)
    changes = (change for change in table.quotas_table().history() if _matching({change.entity}, filters))
    newest = itertools.islice(changes, limit)
    if json_output:
        _print_json({"changes": [_change_json(change) for change in newest]})
    else:
        _print_lines(_change_line(change) for change in newest)


@app.command("revert")
@grouped
def revert_quotas(
    table: TableOptions,
    author: AuthorOption,
    to_version: Annotated[int, typer.Option("--to-version", help="The version to restore, see `history`.")],
    dry_run: DryRunOption = False,
) -> None:
    """Make the quotas what they were in an earlier version; the revert is a new version itself."""
    restored = table.quotas_table().entries(to_version)
    _edit(table, lambda _: restored, author, dry_run=dry_run, yes=True)


@app.command("apply")
@grouped
def apply_quotas(
    table: TableOptions,
    author: AuthorOption,
    file: Annotated[Path, typer.Argument(help="Quota YAML, as `export` prints it.", show_default=False)],
    prune: PruneOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Make the quotas what a quota file says, in one commit, after showing what changes and asking."""
    wanted = load_quotas_file(file)
    _edit(table, partial(merged, wanted=wanted, prune=prune), author, dry_run=dry_run, yes=yes)


@app.command("export")
@grouped
def export_quotas(table: TableOptions) -> None:
    """Print all quotas as a quota file."""
    typer.echo(quotas_yaml(table.quotas_table().entries()), nl=False)


@app.command("import", cls=EntityCommand)
@grouped
def import_quotas(
    ctx: typer.Context,
    entity: EntityOptions,
    table: TableOptions,
    author: AuthorOption,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", "--bootstrap-server", help="The Kafka cluster to read.")
    ] = None,
    command_config: Annotated[
        Path | None, typer.Option("--command-config", help="Properties file for reaching the cluster.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A ZooKeeper config node (JSON) of the entity given.")
    ] = None,
    prune: PruneOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Take over the client quotas of a Kafka cluster, or those of one entity from a ZooKeeper node's file."""
    if (bootstrap_servers is None) == (file is None):
        raise UsageError("give either --bootstrap-servers or --file, for where the quotas come from")
    if file is not None:
        configs = read_zookeeper_file(file)
        added = {key: read_number(key, value) for key, value in configs.items()}
        wanted, refused = altered([], entity.entity(ctx), added), False
    elif entity.filters(ctx):
        raise UsageError("--bootstrap-servers takes over all entities; leave out the entity options")
    else:
        wanted, refused = _cluster_quotas(str(bootstrap_servers), command_config)
    _edit(table, partial(merged, wanted=wanted, prune=prune), author, dry_run=dry_run, yes=yes)
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _cluster_quotas(bootstrap_servers: str, command_config: Path | None) -> tuple[list[QuotaEntry], bool]:
    """The cluster's quotas, and whether one was refused; each that is left out is told on standard error."""
    from streaming.cluster_quotas import read_cluster_quotas  # Kafka's client takes long to import

    properties = read_properties(command_config) if command_config else {}
    kafka = properties | {
        "bootstrap.servers": bootstrap_servers
    }  # another cluster: no login of the settings goes there
    entries: list[QuotaEntry] = []
    refused = False
    for entity, values in read_cluster_quotas(kafka):
        if "ip" in entity:
            typer.echo(f"left out {entity}: Sluice meters requests, not connections", err=True)
            continue
        try:
            entries += altered([], entity, values)
        except InvalidQuotaError as error:
            typer.echo(f"refused {entity}: {error}", err=True)
            refused = True
    return entries, refused


def _preview(table: TableOptions, change: Change) -> tuple[list[QuotaEntry], list[QuotaEntry]]:
    """The quotas now and after the change, with nothing written."""
    quotas_table = table.quotas_table()
    before = quotas_table.entries() if quotas_table.exists() else table.seed()
    return before, change(before)


def _commit(table: TableOptions, change: Change, author: str) -> int:
    """Makes the change, and the table if there is none; returns the version."""
    quotas_table, at = table.quotas_table(), datetime.now(UTC)
    if not quotas_table.exists():
        quotas_table.create(table.seed(), author, at)
    return quotas_table.alter(change, author, at)


def _edit(table: TableOptions, change: Change, author: AuthorOption, *, dry_run: bool, yes: bool) -> None:
    """Shows what changes, asks unless `yes`, and commits it."""
    before, after = _preview(table, change)
    changed = differences(before, after)
    if not changed:
        typer.echo("Nothing changes.")
        return
    _print_lines(change_text(old, new) for old, new in changed)
    if dry_run:
        return

    def confirmed(entries: list[QuotaEntry]) -> list[QuotaEntry]:
        if not yes and differences(before, entries):
            raise QuotasTableError("the quotas changed while you were asked; run the command again")
        return change(entries)

    if not yes:
        typer.confirm(f"Apply {len(changed)} change(s)?", abort=True)
    typer.echo(f"Quotas are now at version {_commit(table, confirmed, author.name())}.")


def _matching(entities: Iterable[QuotaEntity], filters: Sequence[FilterComponent]) -> set[QuotaEntity]:
    """The entities that Kafka's controller answers a strict describe with; without filters all."""
    control = QuotaControl()
    by_key = {frozenset(_raw(entity).items()): entity for entity in entities}
    control.values_by_entity = {key: {} for key in by_key}
    return {by_key[key] for key in control.describe(filters, strict=bool(filters))}


def _raw(entity: QuotaEntity) -> Mapping[str, str | None]:
    return {part.replace("_", "-"): name for part, name in entity.to_mapping().items()}


def _altered_text(entity_type: str, name: str | None) -> str:
    """What kafka-configs.sh prints; of two entity types it names the first only."""
    singular = "client" if entity_type == "client-id" else entity_type
    if name is None:
        return f"Completed updating default config for {singular}s in the cluster."
    return f"Completed updating config for {singular} {name}."


def _print_dry_run(entity: QuotaEntity, before: Sequence[QuotaEntry], after: Sequence[QuotaEntry]) -> None:
    changed = differences(before, after)
    if not changed:
        typer.echo("Nothing changes.")
        return
    _print_lines(change_text(old, new) for old, new in changed)
    kinds = [new.kind for _, new in changed if new] or [old.kind for old, _ in changed if old]
    _print_lines(reach_lines(entity, kinds, after))


def _change_line(change: QuotaChange) -> str:
    what = change_text(change.old, change.new)
    return f"version {change.version}  {_time_text(change.changed_at)}  {change.changed_by}  {what}"


def _change_json(change: QuotaChange) -> dict[str, Any]:
    return {
        "version": change.version,
        "changed_by": change.changed_by,
        "changed_at": _time_text(change.changed_at),
        **_difference_json((change.old, change.new)),
    }


def _difference_json(pair: Difference) -> dict[str, Any]:
    old, new = pair
    known = new or old
    assert known is not None  # noqa: S101 - for mypy: a change has an old or a new quota
    return {
        "entity": known.entity.to_mapping(),
        "key": known.kind,
        "old": entry_json(old),
        "new": entry_json(new),
    }


def _time_text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print_json(content: object) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, indent=2))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
