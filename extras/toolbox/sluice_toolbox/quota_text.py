"""Quotas as text: the formats of kafka-configs.sh, and quota files."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry, number_hint
from sluice.state.quotas.kinds import KEY_ALIASES, ElasticKey, QuotaKind, StorageKey
from sluice.state.quotas.tenants import member_text
from sluice_reading.quota_lists import Difference, entity_order
from sluice_reading.quota_text import plain_number
from sluice_reading.texts import entity_text, value_text
from sluice_toolbox.cluster import RawEntity
from sluice_toolbox.cluster_changes import is_mirrored

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
