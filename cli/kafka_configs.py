"""What a command says instead of altering quotas of users and client-ids that are mirrored from a Kafka cluster."""

import shlex
from collections.abc import Mapping, Sequence

from sluice.cli.changes import Difference
from sluice.cli.text import plain_number
from sluice.state.quotas.alteration import RawEntity
from sluice.state.quotas.cluster import is_mirrored
from sluice.state.quotas.kinds import KEY_ALIASES

_ENTITY_TYPES = {"user": "users", "client-id": "clients", "client_id": "clients"}
_RULE = "quotas.source is kafka, so quotas of users and client-ids are set with kafka-configs.sh"


def refused_alteration(
    kafka: Mapping[str, str], entity: RawEntity, added: Mapping[str, float], deleted: Sequence[str]
) -> str:
    """The reason why the quotas of one entity can't be altered here, and the command that alters them."""
    return f"{_RULE}: {_alter_command(kafka, entity, added, deleted)}"


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
    return f"{_RULE}, and {len(mirrored)} of the changes are of such quotas; for the first entity: {command}"


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
