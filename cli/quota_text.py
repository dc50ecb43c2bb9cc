"""Quotas as text: the formats of kafka-configs.sh, and quota files."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from sluice.cli.errors import UsageError
from sluice.configs.yaml_file import FLOAT
from sluice.process.format import printable
from sluice.process.texts import entity_text, value_text
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.alteration import Difference, RawEntity, entity_order
from sluice.state.quotas.cluster import is_mirrored
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import Mode, QuotaEntry, number_hint
from sluice.state.quotas.kinds import KEY_ALIASES, ElasticKey, QuotaKind, StorageKey
from sluice.state.quotas.tenants import member_text

_ENTITY_TYPES = {"user": "users", "client-id": "clients", "client_id": "clients"}
_MIRRORED = "quotas.source is kafka, so quotas of users and client-ids are set with kafka-configs.sh"

_BY_PROXIES = "Held by Kafka proxies alone."

KEY_MEANINGS: Mapping[str, str] = {
    QuotaKind.PRODUCER_BYTE_RATE: "Bytes/s produced.",
    QuotaKind.CONSUMER_BYTE_RATE: "Bytes/s fetched.",
    QuotaKind.REQUEST_PERCENTAGE: "Percent of a thread that handles requests.",
    QuotaKind.CONTROLLER_MUTATION_RATE: "Partitions created, added or deleted a second.",
    QuotaKind.TOPIC_PRODUCER_BYTE_RATE: "Of topics: bytes/s produced to each partition.",
    QuotaKind.TOPIC_CONSUMER_BYTE_RATE: "Of topics: bytes/s fetched from each partition.",
    QuotaKind.CONNECTION_RATE: f"New connections a second. {_BY_PROXIES}",
    QuotaKind.CONNECTION_COUNT: f"Open connections. {_BY_PROXIES}",
    StorageKey.STORED_BYTES: "Of tenants: bytes of their topics on the disks of all brokers.",
    **{key: f"What overload leaves of {key.quota}." for key in ElasticKey},
}
"""Key of a quota -> its meaning and unit. A reservation is in its limit's unit."""


def describe_lines(entries: Iterable[QuotaEntry]) -> list[str]:
    """One line for each entity, as `kafka-configs.sh --describe` prints them, keys sorted, a shadow quota last."""
    values_by_entity: dict[QuotaEntity, list[str]] = {}
    quotas = [entry for entry in entries if not entry.entity.is_member]
    for entry in sorted(quotas, key=lambda entry: (entity_order(entry.entity), entry.kind, entry.mode)):
        values_by_entity.setdefault(entry.entity, []).append(f"{entry.kind}={value_text(entry)}")
    return [
        f"Quota configs for {entity_text(entity)} are {', '.join(values)}"
        for entity, values in values_by_entity.items()
    ]


def change_text(old: QuotaEntry | None, new: QuotaEntry | None) -> str:
    """One changed quota: `+` set, `-` removed, `~` replaced."""
    known = new or old
    assert known is not None  # noqa: S101 - for mypy: a change has an old or a new quota
    if known.entity.is_member:
        return f"{'-' if new is None else '+'} tenant '{known.entity.tenant}': member {member_text(known.entity)}"
    whom = f"{entity_text(known.entity)}: {known.kind}"
    if old is None:
        return f"+ {whom} {_plain_text(known)}"
    if new is None:
        return f"- {whom} {_plain_text(known)}"
    return f"~ {whom} {_plain_text(old)} -> {_plain_text(new)}"


def _plain_text(entry: QuotaEntry) -> str:
    """The value as people write it, so that a lost zero is seen; a quota that is only metered is marked."""
    return f"{plain_number(entry.value)}" + (" (shadow)" if entry.shadow else "")


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


def read_configs(text: str) -> dict[str, str]:
    """The pairs of `k=v,k=v`; commas inside [] are part of a value, and the brackets are not.

    Raises InvalidQuotaError where a pair has no `=` or no key, or a key comes twice.
    """
    configs: dict[str, str] = {}
    for pair in re.split(r",(?=[^\]]*(?:\[|$))", text):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise InvalidQuotaError("bad_config", f"{pair!r} is no config; expected key=value,key=value")
        if key in configs:
            raise InvalidQuotaError("duplicate_key", f"{key} is given twice; expected it once")
        configs[key] = value.removeprefix("[").removesuffix("]")
    return configs


def read_number(key: str, text: str) -> float:
    """The value of a quota from text such as 1024, 10.5 or 1E7. Raises InvalidQuotaError."""
    try:
        if "_" in text:  # Python takes 1_000, Java doesn't
            raise ValueError
        return float(text)
    except ValueError:
        raise InvalidQuotaError("not_a_number", f"{key} is {text!r}; {number_hint(text)}") from None


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file: `key=value` or `key: value` lines, # and ! comments, \\ continues a line.

    Raises InvalidQuotaError if the file can't be read.
    """
    joined = re.sub(r"\\\r?\n\s*", "", _read_text(path))
    lines = (line.strip() for line in joined.splitlines())
    pairs = (re.split(r"\s*[=:]\s*|\s+", line, maxsplit=1) for line in lines if line and line[0] not in "#!")
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidQuotaError("bad_file", f"{path} can't be read: {reason}") from None


def refused_alteration(
    kafka: Mapping[str, str], entity: RawEntity, added: Mapping[str, float], deleted: Sequence[str]
) -> str:
    """The reason why the quotas of one entity can't be altered here, and the command that alters them."""
    return f"{_MIRRORED}: {_alter_command(kafka, entity, added, deleted)}"


def refused_edit(kafka: Mapping[str, str], changed: Sequence[Difference]) -> str | None:
    """The reason why these changes can't be made here, with the command for the first entity; None if they can."""
    known = [(old, new, new or old) for old, new in changed]
    mirrored = [(old, new, entry) for old, new, entry in known if entry is not None and is_mirrored(entry)]
    if not mirrored:
        return None
    first = mirrored[0][2].entity
    same_entity = [(new, entry) for _, new, entry in mirrored if entry.entity == first]
    added = {entry.kind.value: new.value for new, entry in same_entity if new is not None}
    deleted = [entry.kind.value for new, entry in same_entity if new is None]
    command = _alter_command(kafka, first.to_mapping(), added, deleted)
    return f"{_MIRRORED}, and {len(mirrored)} of the changes are of such quotas; for the first entity: {command}"


def _alter_command(
    kafka: Mapping[str, str], entity: RawEntity, added: Mapping[str, float], deleted: Sequence[str]
) -> str:
    """The command line for a shell.

    >>> _alter_command({"bootstrap.servers": "kafka:9092"}, {"user": "a b"}, {"request_percentage": 50.0}, [])[17:]
    "--bootstrap-server kafka:9092 --alter --entity-type users --entity-name 'a b' --add-config request_percentage=50"
    """
    words = ["kafka-configs.sh", "--bootstrap-server", kafka["bootstrap.servers"]]
    if "security.protocol" in kafka:
        words += ["--command-config", "login.properties"]
    words.append("--alter")
    for entity_type, name in entity.items():
        words += ["--entity-type", _ENTITY_TYPES[entity_type]]
        words += ["--entity-default"] if name is None else ["--entity-name", name]
    if added:
        pairs = [f"{KEY_ALIASES.get(key, key)}={plain_number(value)}" for key, value in added.items()]
        words += ["--add-config", ",".join(pairs)]
    if deleted:
        words += ["--delete-config", ",".join(KEY_ALIASES.get(key, key) for key in deleted)]
    return shlex.join(words)
