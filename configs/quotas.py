"""Quota files: the quotas that people write as YAML."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from configs.yaml_file import read_yaml
from state.entity import QuotaEntity
from state.errors import InvalidQuotaError
from state.quota import QuotaKind
from state.quota_entry import QuotaEntry
from state.validation import check_value, quota_kind

ENTRY_KEYS = ("entity", "quotas", "mode")
MODES = ("enforce", "shadow")


def load_quotas_file(path: Path) -> list[QuotaEntry]:
    """The quotas of the YAML file `path`, in its order; an empty file has none.

    The file is a list of `{entity: {user: alice, client_id: app}, quotas: {request_percentage: 1}, mode: shadow}`;
    `mode` may be left out (enforce). Raises InvalidSettingsError if the file can't be read as YAML, and
    InvalidQuotaError, naming the file and the list index, if an entry is not one that Kafka would take.
    """
    content = read_yaml(path)
    if content is None:
        return []
    if not isinstance(content, list):
        raise InvalidQuotaError("bad_file", f"{path}: not a list; expected entries such as - entity: {{user: alice}}")
    quotas: list[QuotaEntry] = []
    places: dict[tuple[QuotaEntity, object], str] = {}
    for index, entry in enumerate(content):
        place = f"{path}[{index}]"
        try:
            entry_quotas = _entry_quotas(entry)
            _check_new(entry_quotas, places)
        except InvalidQuotaError as error:
            raise InvalidQuotaError(error.reason, f"{place}: {error}") from None
        for quota in entry_quotas:
            places[quota.entity, quota.shadow] = places[quota.entity, quota.kind] = place
        quotas += entry_quotas
    return quotas


def _check_new(quotas: list[QuotaEntry], places: Mapping[tuple[QuotaEntity, object], str]) -> None:
    """Raises InvalidQuotaError if the entity was there in the same mode, or one of its quotas in either mode."""
    for quota in quotas:
        for what, key in ((f"in mode {mode_of(quota)}", quota.shadow), (f"with {quota.kind}", quota.kind)):
            first = places.get((quota.entity, key))
            if first is not None:
                problem = f"the entity {quota.entity.to_mapping()} is already in {first} {what}; expected it once"
                raise InvalidQuotaError("duplicate_entity", problem)


def mode_of(quota: QuotaEntry) -> str:
    """`shadow` or `enforce`, as a file says it."""
    return MODES[quota.shadow]


def _entry_quotas(entry: object) -> list[QuotaEntry]:
    """The quotas of one entry, at least one. Raises InvalidQuotaError."""
    if not isinstance(entry, dict):
        raise InvalidQuotaError("bad_entry", f"{entry!r:.80} is not an entry; expected entity: and quotas:")
    for key in entry:
        if key not in ENTRY_KEYS:
            nearest = get_close_matches(str(key), ENTRY_KEYS, n=1, cutoff=0.0)[0]
            raise InvalidQuotaError("bad_entry", f"unknown key {key!r}; did you mean {nearest}?")
    entity = QuotaEntity.from_mapping(_part(entry, "entity", "{user: alice}"), literal_default=True)
    values = _part(entry, "quotas", "{request_percentage: 50}")
    mode = entry.get("mode", "enforce")
    if mode not in MODES:
        raise InvalidQuotaError("bad_mode", f"mode is {mode!r}; expected one of {', '.join(MODES)}")
    written: dict[QuotaKind, str] = {}
    for key in values:
        kind = quota_kind(entity, key)
        if kind in written:
            raise InvalidQuotaError("duplicate_key", f"{written[kind]} and {key} are the same quota; expected one")
        written[kind] = key
    return [QuotaEntry(entity, kind, _number(kind, values[key]), mode == "shadow") for kind, key in written.items()]


def _part(entry: Mapping[object, object], name: str, example: str) -> Mapping[str, object]:
    """The mapping `name` of an entry, not empty. Raises InvalidQuotaError."""
    part = entry.get(name)
    if not isinstance(part, dict) or not part or not all(isinstance(key, str) for key in part):
        found = f"{name} is {part!r:.80}" if name in entry else f"{name} is missing"
        raise InvalidQuotaError(f"bad_{name}", f"{found}; expected a mapping such as {example}")
    return part


def _number(kind: QuotaKind, value: object) -> float:
    """`value` as a number that Kafka would take for `kind`. Raises InvalidQuotaError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidQuotaError("not_a_number", f"{kind} is {value!r:.80}; expected a number > 0")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidQuotaError("too_large", f"{kind} is too large; expected at most 2^63") from None
    check_value(kind, number)
    return number
