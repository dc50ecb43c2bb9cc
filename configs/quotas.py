"""Quota files: quotas that people write as YAML."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import cast

from sluice.configs.settings import Settings
from sluice.configs.yaml_file import read_yaml
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import Mode, QuotaEntry, check_entries, check_value, number_hint, quota_kind
from sluice.state.quotas.kinds import EntryKind, Membership
from sluice.state.quotas.tenants import check_members

ENTRY_KEYS = ("entity", "quotas", "mode", "tenant", "users", "client_ids", "topics")

_OF_ENTITY = ("user", "client_id", "topic")
"""Keys of `entity`, which stand beside it by mistake."""


def load_quotas_file(path: Path) -> list[QuotaEntry]:
    """The quotas of the YAML file `path`, in its order; an empty file has none.

    The file is a list of `{entity: {user: alice, client_id: app}, quotas: {request_percentage: 1}, mode: shadow}`;
    `mode` may be left out (enforce), and one entity may have an entry in each mode. An entry of a tenant is
    `{tenant: shop, users: [shop-*], client_ids: [etl], topics: [shop.*], quotas: {request_percentage: 50}}`, of which
    all but one may be left out; with users and client_ids a member has both a user and a client-id. Raises
    InvalidSettingsError if the file can't be read as YAML, and InvalidQuotaError, naming the file and the list index,
    if an entry is not one that Kafka would take.
    """
    content = read_yaml(path)
    if content is not None and not isinstance(content, list):
        raise InvalidQuotaError("bad_file", f"{path}: not a list; expected entries such as - entity: {{user: alice}}")
    quotas: list[QuotaEntry] = []
    first: dict[tuple[QuotaEntity, Mode], int] = {}
    for index, entry in enumerate(content or ()):
        try:
            read = _entry_quotas(entry)
            if not (last := read[-1]).entity.is_member:
                _check_new(last, path, first.setdefault((last.entity, last.mode), index), index)
        except InvalidQuotaError as error:
            raise InvalidQuotaError(error.reason, f"{path}[{index}]: {error!s:.500}") from None
        quotas.extend(read)
    try:
        check_members(quotas)
    except InvalidQuotaError as error:
        raise InvalidQuotaError(error.reason, f"{path}: {error}") from None
    return quotas


def seed_quotas(settings: Settings) -> list[QuotaEntry]:
    """The quotas that a new table begins with. Raises InvalidSettingsError and InvalidQuotaError as the file's."""
    seed = settings.quotas.seed
    entries = load_quotas_file(Path(seed)) if seed else []
    if settings.quotas.source == "table":
        check_entries(entries)
    return entries


def _check_new(quota: QuotaEntry, path: Path, first: int, index: int) -> None:
    """Raise InvalidQuotaError if there is an entry with the quota's entity and mode before this one."""
    if first != index:
        entity = json.dumps(quota.entity.to_mapping(), ensure_ascii=False)
        problem = f"the entity {entity} is already in {path}[{first}] in mode {quota.mode}; expected it once"
        raise InvalidQuotaError("duplicate_entity", problem)


def _entry_quotas(entry: object) -> list[QuotaEntry]:
    """The quotas of one entry, at least one. Raises InvalidQuotaError."""
    if not isinstance(entry, dict):
        raise InvalidQuotaError("bad_entry", f"{entry!r:.80} is not an entry; expected entity: and quotas:")
    for key in entry:
        if key in _OF_ENTITY and "tenant" not in entry:
            raise InvalidQuotaError("bad_entry", f"{key} is part of an entity; expected entity: {{{key}: ...}}")
        if key not in ENTRY_KEYS:
            nearest = get_close_matches(str(key)[:80], ENTRY_KEYS, n=1, cutoff=0.0)[0]
            raise InvalidQuotaError("bad_entry", f"unknown key {key!r:.80}; did you mean {nearest}?")
    if "entity" not in entry and "tenant" in entry:
        return _tenant_entries(entry)
    for key in entry.keys() & {"tenant", "users", "client_ids", "topics"}:
        raise InvalidQuotaError("bad_entry", f"{key} comes with entity; expected one of them")
    parts = _part(entry, "entity", "{user: alice}")
    for part, name in parts.items():
        if isinstance(name, dict | list):
            raise InvalidQuotaError(
                "bad_name", f"{part:.80} is {name!r:.80}; expected a string or null for the default"
            )
    return _values(entry, QuotaEntity.from_mapping(parts, literal_default=True))


def _tenant_entries(entry: Mapping[object, object]) -> list[QuotaEntry]:
    """The members and quotas of a tenant's entry, at least one, the members first. Raises InvalidQuotaError."""
    tenant = entry["tenant"]
    if tenant is not None and not isinstance(tenant, str):
        raise InvalidQuotaError("bad_name", f"tenant is {tenant!r:.80}; expected a name")
    of_tenant = QuotaEntity.from_mapping({"tenant": tenant}, literal_default=True)
    users, client_ids = _globs(entry, "users"), _globs(entry, "client_ids")
    clients = product(users or [None], client_ids or [None]) if users or client_ids else ()
    named = [QuotaEntity(tenant=of_tenant.tenant, user=user, client_id=client_id) for user, client_id in clients]
    named += [QuotaEntity(tenant=of_tenant.tenant, topic=topic) for topic in _globs(entry, "topics")]
    for member in named:
        member.check()
    members = [QuotaEntry(member, Membership.MEMBER, 1.0) for member in named]
    if "quotas" in entry:
        return [*members, *_values(entry, of_tenant)]
    if not members or "mode" in entry:
        raise InvalidQuotaError(
            "bad_entry", f"tenant {tenant!r:.80} has no users, client_ids, topics or quotas; expected one of them"
        )
    return members


def _globs(entry: Mapping[object, object], key: str) -> list[str | None]:
    """The names and globs of a member list; none if it is missing. Raises InvalidQuotaError."""
    found = entry.get(key, [])
    if key in entry and (not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found)):
        raise InvalidQuotaError("bad_member", f"{key} is {found!r:.80}; expected a list of globs such as [team-a-*]")
    return cast(list[str | None], found)


def _values(entry: Mapping[object, object], entity: QuotaEntity) -> list[QuotaEntry]:
    """The quotas of an entry, at least one. Raises InvalidQuotaError."""
    values = _part(entry, "quotas", "{request_percentage: 50}")
    mode = entry.get("mode", Mode.ENFORCE)
    if mode not in tuple(Mode):
        raise InvalidQuotaError("bad_mode", f"mode is {mode!r:.80}; expected one of {', '.join(Mode)}")
    written: dict[EntryKind, str] = {}
    for key in values:
        kind = quota_kind(entity, key)
        if kind in written:
            raise InvalidQuotaError("duplicate_key", f"{written[kind]} and {key} are the same quota; expected one")
        written[kind] = key
    return [QuotaEntry(entity, kind, _number(kind, values[key]), mode == Mode.SHADOW) for kind, key in written.items()]


def _part(entry: Mapping[object, object], name: str, example: str) -> Mapping[str, object]:
    """The mapping `name` of an entry, not empty. Raises InvalidQuotaError."""
    part = entry.get(name)
    if not isinstance(part, dict) or not part or not all(isinstance(key, str) for key in part):
        found = f"{name} is {part!r:.80}" if name in entry else f"{name} is missing"
        raise InvalidQuotaError(f"bad_{name}", f"{found}; expected a mapping such as {example}")
    return part


def _number(kind: EntryKind, value: object) -> float:
    """`value` as a number that Kafka would take for `kind`. Raises InvalidQuotaError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidQuotaError("not_a_number", f"{kind} is {value!r:.80}; {number_hint(str(value))}")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidQuotaError("too_large", f"{kind} is too large; expected at most 2^63") from None
    check_value(kind, number)
    return number
