"""Quotas as quota files and as JSON."""

import re
import shlex
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from sluice.cli.errors import UsageError
from sluice.configs.yaml_file import FLOAT
from sluice.process.format import printable
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import Mode, QuotaEntry
from sluice_reading.quota_lists import entity_order
from sluice_reading.texts import entity_text


def no_members_text(tenant: str, entries: Iterable[QuotaEntry]) -> str | None:
    """A sentence for a tenant without members, whose limits hold nobody, and which name is near; None if it has some.

    >>> from sluice.state.quotas.kinds import Membership
    >>> no_members_text("shpo", [QuotaEntry(QuotaEntity(tenant="shop", user="a*"), Membership.MEMBER, 1.0)])
    "tenant 'shpo' has no members; did you mean 'shop'? `sluice tenants alter shpo --add-user NAME` adds one"
    """
    names = {str(entry.entity.tenant) for entry in entries if entry.entity.is_member}
    if tenant in names:
        return None
    near = get_close_matches(tenant, sorted(names), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    command = f"sluice tenants alter {shlex.quote(tenant)} --add-user NAME"
    return printable(f"tenant {tenant!r} has no members; {hint}`{command}` adds one")


def entry_json(entry: QuotaEntry | None) -> dict[str, Any] | None:
    """A quota's value and mode, for machines."""
    return None if entry is None else {"value": entry.value, "mode": entry.mode}


class _Dumper(yaml.SafeDumper):
    """Writes as PyYAML does, and quotes the names that YAML 1.2 takes for numbers, such as `1e3`."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{FLOAT.pattern})\Z"), list("-+.0123456789"))


def quotas_yaml(entries: Iterable[QuotaEntry]) -> str:
    """A quota file with these quotas. Raises InvalidQuotaError for a name that a quota file can't express."""
    entries = list(entries)
    content: list[dict[str, Any]] = tenants_content(entries)
    quotas = [entry for entry in entries if entry.entity.tenant is None]
    by_entity_and_mode = sorted(quotas, key=lambda entry: (entity_order(entry.entity), entry.mode, entry.kind))
    for (entity, mode), group in groupby(by_entity_and_mode, key=lambda entry: (entry.entity, entry.mode)):
        _check_writable(entity)
        content.append({"entity": entity.to_mapping(), **_values_content(group, mode)})
    if not content:
        return "[]\n"
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    # A mark of direction in a name would turn what a terminal shows: then all but ASCII is escaped.
    return text if text.replace("\n", "").isprintable() else yaml.dump(content, Dumper=_Dumper, sort_keys=False)


def write_out(out: Path, text: str) -> None:
    """Write a quota file. Raises UsageError if it can't be written."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out} can't be written: {error.strerror}") from None


def tenants_content(entries: Iterable[QuotaEntry]) -> list[dict[str, Any]]:
    """The entries of a quota file for the tenants among these, one for each if it can be.

    Raises InvalidQuotaError for a name that a quota file can't express.
    """
    of_tenants = sorted((entry for entry in entries if entry.entity.tenant), key=_tenant_order)
    content: list[dict[str, Any]] = []
    for tenant, group in groupby(of_tenants, key=lambda entry: entry.entity.tenant):
        members, of_mode = list[QuotaEntity](), dict[Mode, list[QuotaEntry]]()
        for entry in group:
            _check_writable(QuotaEntity(tenant=tenant))
            if entry.entity.is_member:
                members.append(entry.entity)
            else:
                of_mode.setdefault(entry.mode, []).append(entry)
        name = {"tenant": None if tenant is DEFAULT else str(tenant)}
        lists = list(_member_lists(members))
        values = [_values_content(quotas, mode) for mode, quotas in of_mode.items()]
        first = name | (lists.pop(0) if lists else {}) | (values.pop(0) if values else {})
        content += [first, *(name | part for part in (*lists, *values))]
    return content


def _tenant_order(entry: QuotaEntry) -> tuple[Any, ...]:
    entity = entry.entity
    tenant = "" if entity.tenant is DEFAULT else str(entity.tenant)
    member = (str(entity.user), str(entity.client_id), str(entity.topic))
    return (entity.tenant is DEFAULT, tenant, not entity.is_member, *member, entry.mode)


def _member_lists(members: Iterable[QuotaEntity]) -> Iterator[dict[str, list[str]]]:
    """The globs of members: users and topics, client-ids by themselves, and each user with its client-ids."""
    users, client_ids, topics, pairs = list[str](), list[str](), list[str](), dict[str, list[str]]()
    for member in members:
        if member.topic is not None:
            topics.append(str(member.topic))
        elif member.user is None:
            client_ids.append(str(member.client_id))
        elif member.client_id is None:
            users.append(str(member.user))
        else:
            pairs.setdefault(str(member.user), []).append(str(member.client_id))
    if alone := {key: globs for key, globs in (("users", users), ("topics", topics)) if globs}:
        yield alone
    if client_ids:
        yield {"client_ids": client_ids}
    for user, its in pairs.items():
        yield {"users": [user], "client_ids": its}


def _values_content(quotas: Iterable[QuotaEntry], mode: Mode) -> dict[str, Any]:
    values = {quota.kind.value: plain_number(quota.value) for quota in quotas}
    return ({"mode": mode.value} if mode is Mode.SHADOW else {}) | {"quotas": values}


def _is_writable(entity: QuotaEntity) -> bool:
    return DEFAULT.value not in entity.to_mapping().values()


def _check_writable(entity: QuotaEntity) -> None:
    if not _is_writable(entity):
        raise InvalidQuotaError(
            "bad_name", f"{entity_text(entity)}: a quota file takes the name <default> for the default entity"
        )


def plain_number(value: float) -> float | int:
    """Whole numbers without a fraction, as people write them."""
    return int(value) if value.is_integer() and value < 2**53 else value


def writable(entries: Iterable[QuotaEntry]) -> tuple[list[QuotaEntry], list[str]]:
    """The entries that a quota file can express, and for each other entity a line with the way to remove it."""
    kept, odd = list[QuotaEntry](), dict[QuotaEntity, list[str]]()
    for entry in entries:
        if _is_writable(entry.entity):
            kept.append(entry)
        else:
            odd.setdefault(entry.entity, []).append(entry.kind)
    return kept, [
        f"left out {', '.join(keys)} of {entity_text(entity)}, which would be the default entity in a quota file; if"
        f" it is meant to be that, set it there, and remove this one with --delete-config {','.join(keys)}"
        for entity, keys in odd.items()
    ]
