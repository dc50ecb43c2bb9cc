"""The limits topic: the quotas in force as compacted records, so that gateways resolve limits themselves.

Each quota has one record. Its key is the entity, the quota and the mode as canonical JSON; its value adds the limit.
A null value removes the quota. A record under `VERSION_KEY` ends each version and says how many quotas it has, so that
a reader knows when it has them all. One under the key of each decider says what of the limits it overrides now.
"""

from contextlib import suppress
from typing import Literal

import msgspec

from sluice.state.contract.gateway_topics import LimitKey, LimitRecord, Overrides, VersionEnd
from sluice.state.errors import UNREADABLE, InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import Mode, QuotaEntry, check_value, quota_kind
from sluice.state.quotas.resolution import ModeQuotas, Quotas

VERSION_KEY = b'"version"'
"""Key of the record that ends a version. No quota has it: their keys are JSON objects."""

_OVERRIDES = b'"overrides:'
"""Beginning of the key of a decider's record."""


class LimitsInForce(msgspec.Struct, frozen=True):
    """The quotas of one version, by mode: shadow quotas have counters of their own."""

    version: int
    enforced: Quotas
    shadow: ModeQuotas


OPERATOR = "operator"
"""The decider of operators' holds, by its name in records, metrics and `throttled_by`."""

OWN_DECIDERS = frozenset({"disk_guard", "elastic", OPERATOR, "stored_bytes"})
"""Names of Sluice's own deciders. A reader has room for all of them, whatever others are in the topic."""

_MAX_DECIDERS, _MAX_OTHER_BYTES = 16, 65_536
"""Most deciders of which any may have another name, and most bytes of a record under one: anybody may invent them."""

_MAX_UNREADABLE_BYTES, _KEY_BYTES = 10_000_000, 100
"""Most bytes of keys whose records can't be read, each with what it takes beside its text."""

_ENCODER = msgspec.json.Encoder(order="sorted")
_LIMIT = msgspec.json.Decoder(LimitRecord)
_VERSION_END = msgspec.json.Decoder(VersionEnd)
_DECIDER = msgspec.json.Decoder(str)
_SAID = msgspec.json.Decoder(Overrides)


class _Client(msgspec.Struct, forbid_unknown_fields=True):
    """An override of a part that this release doesn't know would be of too many without it."""

    user: str | None = None
    client_id: str | None = None
    tenant: str | None = None


class _Scoped(msgspec.Struct):
    entity: _Client | None = None


class _Scopes(msgspec.Struct):
    overrides: list[_Scoped] = []


_SCOPES = msgspec.json.Decoder(_Scopes)


def limit_key(entry: QuotaEntry) -> bytes:
    """Key of a quota's record: canonical JSON, so that one quota always has one key.

    >>> from sluice.state.quotas.kinds import QuotaKind
    >>> limit_key(QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 1024.0))
    b'{"entity":{"user":"alice"},"mode":"enforce","quota":"producer_byte_rate"}'
    """
    return _ENCODER.encode(LimitKey(entry.entity.to_mapping(), _mode(entry), entry.kind))


def limit_value(entry: QuotaEntry, version: int) -> bytes:
    """Value of a quota's record, set by `version` of the table. Raises InvalidQuotaError for one that nobody reads."""
    check_value(entry.kind, entry.value)
    return _ENCODER.encode(LimitRecord(entry.entity.to_mapping(), entry.kind, entry.value, _mode(entry), version))


def version_end(version: int, count: int) -> bytes:
    """Value of the record that ends a version of `count` quotas."""
    return _ENCODER.encode(VersionEnd(version, count))


def overrides_key(decider: str) -> bytes:
    """Key of a decider's record.

    >>> overrides_key("disk_guard")
    b'"overrides:disk_guard"'
    """
    return _ENCODER.encode(f"overrides:{decider}")


def overrides_value(said: Overrides) -> bytes:
    """Value of a decider's record.

    >>> from sluice.state.contract.gateway_topics import Override
    >>> overrides_value(Overrides(7, at_ms=9_000, fresh_ms=5_000, overrides=[Override("tighten", 0.5, gateway="b-1")]))
    b'{"at_ms":9000,"fresh_ms":5000,"number":7,"overrides":[{"factor":0.5,"gateway":"b-1","kind":"tighten"}]}'
    """
    return _ENCODER.encode(said)


def read_limit(key: bytes, value: bytes) -> QuotaEntry:
    """The quota of a record. Raises InvalidQuotaError if Sluice would not have written the record."""
    try:
        record = _LIMIT.decode(value)
        entity = QuotaEntity.from_mapping(record.entity)
    except UNREADABLE as error:
        raise InvalidQuotaError("bad_limit", f"the record is no limit ({error}); expected a limit as JSON") from None
    if key != _ENCODER.encode(LimitKey(entity.to_mapping(), record.mode, record.quota)):
        raise InvalidQuotaError("bad_limit", "the record's key names another quota than its value; expected the same")
    kind = quota_kind(entity, record.quota)
    check_value(kind, record.value)
    return QuotaEntry(entity, kind, record.value, record.mode == "shadow")


def changed_limits(
    published: dict[bytes, QuotaEntry], wanted: dict[bytes, QuotaEntry], version: int
) -> list[tuple[bytes, bytes | None]]:
    """The records (key, value) that turn the quotas of the topic into `wanted`: removals first, None removes."""
    removed: list[tuple[bytes, bytes | None]] = [(key, None) for key in published if key not in wanted]
    return removed + [
        (key, limit_value(entry, version)) for key, entry in wanted.items() if published.get(key) != entry
    ]


class _UnreadableKeys:
    """Keys of records that can't be read: of very many, which no job writes, the first."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self._bytes = 0

    def add(self, key: bytes) -> None:
        size = len(key) + _KEY_BYTES
        if key not in self.keys and self._bytes + size <= _MAX_UNREADABLE_BYTES:
            self.keys.add(key)
            self._bytes += size

    def discard(self, key: bytes) -> None:
        if key in self.keys:
            self.keys.remove(key)
            self._bytes -= len(key) + _KEY_BYTES


class LimitsView:
    """The limits that a reader of the limits topic knows: feed it every record in order.

    `in_force` is None until a version is complete, and then stays at the last complete version. `overrides` are
    the last records of deciders by their names. `garbage` counts records that Sluice would not have written; they
    are ignored, and keep no other limit from coming into force. `missed_removals` is True while the last version to
    end had fewer quotas than are known: this reader was away for longer than the topic keeps removals
    (`delete.retention.ms`), so no version will be complete until it reads the topic from its beginning.
    """

    def __init__(self) -> None:
        self.in_force: LimitsInForce | None = None
        self.overrides: dict[str, Overrides] = {}
        self.garbage = 0
        self.missed_removals = False
        self._entries: dict[bytes, QuotaEntry] = {}
        self._unreadable = _UnreadableKeys()

    @property
    def entries(self) -> dict[bytes, QuotaEntry]:
        """The quotas that the records so far leave, by key; those of an incomplete version included."""
        return self._entries

    @staticmethod
    def is_override(key: bytes | None) -> bool:
        """True for the key of a record that overrides limits, and is none of a version's."""
        return key is not None and key.startswith(_OVERRIDES)

    @property
    def unreadable(self) -> set[bytes]:
        """The keys, but for those of deciders, whose last record is garbage; what it replaced stays known.

        Of very many, the first: limits that came after them are in force when the job has removed the others.
        """
        return self._unreadable.keys

    def forget_unreadable(self, key: bytes | None) -> None:
        """Forget a key whose record is about to be removed."""
        self._unreadable.discard(key or b"")

    def begin_again(self) -> None:
        """Forget the records: the topic was made again. The limits in force stay until a version is complete."""
        self._entries, self._unreadable, self.missed_removals = {}, _UnreadableKeys(), False

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take over one record. Raises InvalidQuotaError for garbage, which is counted and changes nothing."""
        try:
            self._take(key, value)
        except InvalidQuotaError:
            self.garbage += 1
            if key is not None and not self.is_override(key):
                self._unreadable.add(key)
            raise
        self._unreadable.discard(key or b"")

    def take_readable(self, key: bytes | None, value: bytes | None) -> None:
        """Take over one record, or only count it as `garbage`."""
        with suppress(InvalidQuotaError):
            self.take(key, value)

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            raise InvalidQuotaError("bad_limit", "the record has no key; expected entity, quota and mode as JSON")
        if key == VERSION_KEY:
            self._end_version(value)
        elif self.is_override(key):
            self._override(key, value)
        elif value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = read_limit(key, value)

    def _override(self, key: bytes, value: bytes | None) -> None:
        try:
            decider = _DECIDER.decode(key).removeprefix("overrides:")
            if key != overrides_key(decider):
                raise InvalidQuotaError("bad_limit", "the record's key isn't written as Sluice does; expected its form")
            others = {name: said for name, said in self.overrides.items() if name != decider}
            if value is None:
                self.overrides = others
                return
            is_small = len(others) < _MAX_DECIDERS and len(key) + len(value) <= _MAX_OTHER_BYTES
            if decider not in OWN_DECIDERS and not is_small:
                raise InvalidQuotaError("bad_limit", "too many deciders are others; check who may write to the topic")
            _SCOPES.decode(value)
            self.overrides = {**others, decider: _SAID.decode(value)}
        except UNREADABLE as error:
            raise InvalidQuotaError("bad_limit", f"the record overrides nothing ({error}); expected JSON") from None

    def _end_version(self, value: bytes | None) -> None:
        try:
            end = _VERSION_END.decode(value or b"")
        except UNREADABLE as error:
            raise InvalidQuotaError("bad_limit", f"the record ends no version ({error}); expected a version") from None
        known = self._entries.keys()
        self.missed_removals = end.count < len(known)
        # a quota's key is a JSON object in UTF-8
        objects = (key for key in self.unreadable if key[:1] == b"{" and key == key.decode(errors="ignore").encode())
        if not len(known) <= end.count <= len({*known, *objects}):
            return  # compaction has removed records of this version: a later one replaced them, and ends further on
        quotas = Quotas(self._entries.values(), end.version)
        shadow = ModeQuotas(mode=Mode.SHADOW) if quotas.shadow is None else quotas.shadow
        self.in_force = LimitsInForce(end.version, quotas, shadow)


def _mode(entry: QuotaEntry) -> Literal["enforce", "shadow"]:
    return "shadow" if entry.shadow else "enforce"
