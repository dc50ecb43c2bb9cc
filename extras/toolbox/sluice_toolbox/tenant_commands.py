"""The commands `sluice tenants ...`: who is a member of which tenant. Limits of tenants are quotas as others are."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.tenants import member_text
from sluice_reading.options import JsonOption, TableOptions, as_written, grouped, quotas_of_file
from sluice_reading.output import print_json, print_lines
from sluice_reading.quota_lists import entity_order
from sluice_reading.quota_text import tenants_content, writable
from sluice_reading.texts import entity_text, value_text
from sluice_toolbox.members import with_members
from sluice_toolbox.quota_commands import DryRunOption, check_prune, edit, merging
from sluice_toolbox.quota_options import AuthorOption, YesOption

_Globs = list[str] | None


@grouped
def alter_tenant(
    table: TableOptions,
    author: AuthorOption,
    name: Annotated[str, typer.Argument(help="The tenant's name.", show_default=False)],
    add_user: Annotated[
        _Globs, typer.Option("--add-user", help="A user or glob; repeatable.", callback=as_written)
    ] = None,
    add_client_id: Annotated[
        _Globs, typer.Option("--add-client-id", help="A client-id or glob; repeatable.", callback=as_written)
    ] = None,
    add_topic: Annotated[_Globs, typer.Option("--add-topic", help="A topic or glob; repeatable.")] = None,
    remove_user: Annotated[_Globs, typer.Option("--remove-user", help="As it was added.")] = None,
    remove_client_id: Annotated[_Globs, typer.Option("--remove-client-id", help="As it was added.")] = None,
    remove_topic: Annotated[_Globs, typer.Option("--remove-topic", help="As it was added.")] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Add and remove members of one tenant, all or none of them.

    In a glob, * is any characters and ? is one. A client is in one tenant: a member of two is refused. So is a topic,
    whose bytes count for the tenant's budget, stored_bytes.
    """
    added = _members(name, add_user, add_client_id, add_topic)
    removed = _members(name, remove_user, remove_client_id, remove_topic)
    if not added and not removed:
        raise UsageError("nothing to alter; give --add-user, --add-client-id, --add-topic, or one with --remove")
    edit(table, partial(with_members, added=added, removed=removed), author, dry_run=dry_run, yes=True)


@grouped
def describe_tenants(
    table: TableOptions,
    name: Annotated[str | None, typer.Argument(help="A tenant's name.", show_default="all tenants")] = None,
    json_output: JsonOption = False,
) -> None:
    """Print each tenant with its members and limits."""
    entries = [entry for entry in table.quotas_table().entries() if entry.entity.tenant is not None]
    if name is not None:
        entries = [entry for entry in entries if entry.entity.tenant == name]
        if not entries:
            raise UsageError(f"there is no tenant {name!r}; `sluice tenants describe` prints all")
    if json_output:
        entries, left_out = writable(entries)
        for line in left_out:
            typer.echo(f"sluice: {line}", err=True)
        print_json({"tenants": tenants_content(entries)}, indent=True)
    else:
        print_lines(_lines(entries))


@grouped
def import_tenants(
    table: TableOptions,
    author: AuthorOption,
    file: Annotated[Path, typer.Argument(help="YAML: a list of {tenant, users, client_ids, topics, quotas}.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove all other tenants, and limits of the default tenant.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Take over the tenants of a file in one commit, with members and quotas, after showing the changes and asking."""
    wanted = quotas_of_file(file)
    others = [entry for entry in wanted if entry.entity.tenant is None]
    if others:
        raise UsageError(f"{file} has quotas of {entity_text(others[0].entity)}; `sluice quotas apply` takes those")
    check_prune(file, wanted, prune=prune)
    change = merging(table, wanted, (lambda entry: entry.entity.tenant is not None) if prune else None)
    edit(table, change, author, dry_run=dry_run, yes=yes)


def _members(name: str, users: _Globs, client_ids: _Globs, topics: _Globs) -> list[QuotaEntity]:
    """The members that these options name. Raises InvalidQuotaError."""
    found = [QuotaEntity(tenant=name, user=user) for user in users or ()]
    found += [QuotaEntity(tenant=name, client_id=client_id) for client_id in client_ids or ()]
    found += [QuotaEntity(tenant=name, topic=topic) for topic in topics or ()]
    for member in found:
        member.check()
    return found


def _lines(entries: Iterable[QuotaEntry]) -> list[str]:
    """One line for each tenant, the default one first."""
    members, limits = dict[QuotaEntity, list[str]](), dict[QuotaEntity, list[str]]()
    for entry in sorted(entries, key=lambda entry: (entity_order(entry.entity), entry.kind)):
        tenant = QuotaEntity(tenant=entry.entity.tenant)
        members.setdefault(tenant, [])
        if entry.entity.is_member:
            members[tenant].append(member_text(entry.entity))
        else:
            limits.setdefault(tenant, []).append(f"{entry.kind}={value_text(entry)}")
    return [
        f"{entity_text(tenant)}: {', '.join(found) or 'no members'}; {', '.join(limits.get(tenant, ['no limits']))}"
        for tenant, found in members.items()
    ]
