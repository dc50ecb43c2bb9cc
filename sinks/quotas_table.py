"""The Delta table `quotas`: the quotas in force, and with its versions all quotas that ever were."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from arro3.core import Array, DataType, Table
from arro3.core import Schema as ArrowSchema
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field, PrimitiveType

from sinks.errors import QuotasTableError
from state.entity import QuotaEntity
from state.errors import InvalidQuotaError
from state.quota import QuotaKind
from state.quota_entry import QuotaEntry
from state.validation import check_value, quota_kind

QUOTAS_SCHEMA = Schema(
    [
        Field("entity", PrimitiveType("string"), nullable=False),  # JSON, keys sorted; a null name is the default
        Field("key", PrimitiveType("string"), nullable=False),
        Field("value", PrimitiveType("double"), nullable=False),  # bytes/s, percent or mutations/s, as the key says
        Field("mode", PrimitiveType("string"), nullable=False),  # enforce | shadow
        Field("changed_by", PrimitiveType("string"), nullable=False),
        Field("changed_at", PrimitiveType("timestamp"), nullable=False),  # UTC
    ]
)
"""One row for each entity and key."""

TABLE_PROPERTIES = {
    "delta.checkpointInterval": "10",  # opening the table reads at most so many commits
    # Who changed what is for audit, so old versions stay readable: nothing expires by itself.
    "delta.enableExpiredLogCleanup": "false",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}

MAX_COMMIT_ATTEMPTS = 1000
"""Each lost attempt means that somebody else's change went in, so this many can only mean a flood of changes."""

CHANGED_AT = "changedAt"
"""Where a commit's metadata has the time of the change."""

EntryKey = tuple[QuotaEntity, QuotaKind]


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """One quota, and who set it when."""

    entry: QuotaEntry
    changed_by: str
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """One quota that a version of the table set, replaced or removed: `old` or `new` is None where there is none."""

    version: int
    changed_by: str
    changed_at: datetime
    entity: QuotaEntity
    kind: QuotaKind
    old: QuotaEntry | None
    new: QuotaEntry | None


class QuotasTable:
    """The quotas table at `path`, a folder or an object store's URI; `storage_options` are delta-rs's.

    It holds no connection and no cache: every call sees the table as it is then. Every method may raise
    QuotasTableError, whose message says what to do.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._storage_options = dict(storage_options or {})

    def exists(self) -> bool:
        """Whether there is a Delta table at the path."""
        try:
            return DeltaTable.is_deltatable(self.path, self._storage_options)
        except (DeltaError, OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def version(self) -> int:
        """The latest version, from 0; costs a few milliseconds on a local disk."""
        return self._open().version()

    def entries(self, version: int | None = None) -> list[QuotaEntry]:
        """The quotas of a version, by default the latest, sorted by entity and key."""
        return [row.entry for row in self.rows(version)]

    def rows(self, version: int | None = None) -> list[QuotaRow]:
        """The quotas of a version, by default the latest, with who set them when; sorted by entity and key."""
        return self._rows(self._open(version))

    def create(self, entries: Iterable[QuotaEntry], changed_by: str, at: datetime) -> int:
        """Makes the table with these quotas as version 0; returns the latest version.

        Where the table exists already, or another process makes it meanwhile, that one stays as it is.
        """
        rows = _changed_rows([], entries, changed_by, at)
        try:
            write_deltalake(
                self.path,
                _to_arrow(rows),
                mode="error",
                name="quotas",
                configuration=TABLE_PROPERTIES,
                storage_options=self._storage_options,
                commit_properties=_commit_properties(changed_by, at),
            )
        except (DeltaError, OSError, ValueError) as error:
            if not self.exists():
                raise self._unwritable(error) from error
        return self.version()

    def alter(self, change: Callable[[list[QuotaEntry]], Iterable[QuotaEntry]], changed_by: str, at: datetime) -> int:
        """Replaces the quotas by `change(quotas)` in one commit; returns the version that has them.

        `change` is called again if somebody else commits meanwhile, so no change is ever lost. Quotas that stay the
        same keep their author and time; where all stay the same there is no commit. `change` may raise: then nothing
        is written.
        """
        for _ in range(MAX_COMMIT_ATTEMPTS):
            table = self._open()
            rows = self._rows(table)
            changed = _changed_rows(rows, change([row.entry for row in rows]), changed_by, at)
            if _by_key(changed) == _by_key(rows) or self._replace(table, changed, changed_by, at):
                return table.version()
        raise QuotasTableError(f"the quotas table {self.path} is changed by others all the time; try again later")

    def history(self) -> Iterator[QuotaChange]:
        """Every change, the newest version first; found by comparing versions, so changes by Spark SQL are there too.

        The author of a removal, or of a whole commit, by someone who gave no name is "unknown".
        """
        table = self._open()
        newer = _by_key(self._rows(table))
        for commit in table.history():
            older = _by_key(self.rows(commit["version"] - 1)) if commit["version"] > 0 else {}
            yield from _changes(commit, older, newer)
            newer = older

    def _open(self, version: int | None = None) -> DeltaTable:
        try:
            table = DeltaTable(self.path, storage_options=self._storage_options)
            latest = table.version()
            if version is not None and 0 <= version <= latest:
                table.load_as_version(version)
            found = {field.name: field.type for field in table.schema().fields}
        except TableNotFoundError:
            raise QuotasTableError(
                f"no quotas table at {self.path}; make it with `sluice quotas apply FILE`, or check delta.quotas"
            ) from None
        except (DeltaError, OSError, ValueError) as error:
            raise self._unreadable(error) from error
        if version is not None and table.version() != version:
            raise QuotasTableError(f"the quotas table {self.path} has no version {version}; expected 0 to {latest}")
        for field in QUOTAS_SCHEMA.fields:
            if found.get(field.name) != field.type:
                raise QuotasTableError(
                    f"the Delta table {self.path} is no quotas table: it has no column {field.name} of type"
                    f" {_type_name(field)}; check delta.quotas"
                )
        return table

    def _rows(self, table: DeltaTable) -> list[QuotaRow]:
        try:
            # to_pyarrow_table() isn't used: with deltalake 1.6.6 it often aborts the process at exit
            columns = table.scan(columns=[field.name for field in QUOTAS_SCHEMA.fields]).read_all()
        except Exception as error:  # arro3 raises no narrower class
            raise self._unreadable(error) from error
        for field in QUOTAS_SCHEMA.fields:
            if columns[field.name].null_count:
                raise QuotasTableError(
                    f"the quotas table {self.path} has a row without {field.name} in version {table.version()};"
                    " correct it with Spark SQL (UPDATE, DELETE or RESTORE TABLE)"
                )
        # sorted, for a scan has no order of its own
        found = sorted(zip(*(columns[field.name].to_pylist() for field in QUOTAS_SCHEMA.fields), strict=True))
        rows = []
        for values in found:
            try:
                rows.append(_row(*values))
            except (InvalidQuotaError, ValueError) as error:
                raise QuotasTableError(
                    f"the quotas table {self.path} has a broken row {values[:4]} in version {table.version()}:"
                    f" {_one_line(error)}; correct it with Spark SQL (UPDATE, DELETE or RESTORE TABLE)"
                ) from None
        if len(_by_key(rows)) != len(rows):
            raise QuotasTableError(
                f"the quotas table {self.path} has two rows of the same entity and key in version {table.version()};"
                " delete one with Spark SQL (DELETE or RESTORE TABLE)"
            )
        return rows

    def _replace(self, table: DeltaTable, rows: Sequence[QuotaRow], changed_by: str, at: datetime) -> bool:
        """Commits `rows` as the version after `table`; False, and nothing written, if somebody else was faster."""
        base = table.version()
        try:
            write_deltalake(
                table,
                _to_arrow(rows),
                mode="overwrite",
                # Without retries any other commit makes this one fail. With them delta-rs moves it behind the other
                # where it sees no conflict, such as two first rows in an empty table, and quotas would be doubled.
                commit_properties=_commit_properties(changed_by, at),
            )
        except (DeltaError, OSError, ValueError) as error:
            if isinstance(error, CommitFailedError) and self.version() != base:
                return False
            raise self._unwritable(error) from error
        return True

    def _unreadable(self, error: Exception) -> QuotasTableError:
        return QuotasTableError(
            f"the quotas table {self.path} can't be read ({_one_line(error)}); check delta.quotas and"
            " delta.storage_options"
        )

    def _unwritable(self, error: Exception) -> QuotasTableError:
        return QuotasTableError(
            f"the quotas table {self.path} can't be written ({_one_line(error)}); check its permissions, delta.quotas"
            " and delta.storage_options"
        )


def entity_text(entity: QuotaEntity) -> str:
    """The entity as the table has it.

    >>> entity_text(QuotaEntity(user=DEFAULT, client_id="app"))
    '{"client_id": "app", "user": null}'
    """
    return json.dumps(entity.to_mapping(), sort_keys=True, ensure_ascii=False)


def _row(entity: str, key: str, value: float, mode: str, changed_by: str, changed_at: datetime) -> QuotaRow:
    """Raises InvalidQuotaError or ValueError for a row that Sluice would not have written."""
    parts = msgspec.json.decode(entity)
    if not isinstance(parts, dict):
        raise ValueError("the entity is no JSON object")
    if mode not in ("enforce", "shadow"):
        raise ValueError(f"mode is {mode!r}; expected enforce or shadow")
    quota_entity = QuotaEntity.from_mapping(parts)
    kind = quota_kind(quota_entity, key)
    check_value(kind, value)
    return QuotaRow(QuotaEntry(quota_entity, kind, value, mode == "shadow"), changed_by, changed_at)


def _to_arrow(rows: Sequence[QuotaRow]) -> Table:
    text, timestamp = DataType.utf8(), DataType.timestamp("us", tz="UTC")
    entries = [row.entry for row in rows]
    columns = [
        Array([entity_text(entry.entity) for entry in entries], text),
        Array([entry.kind.value for entry in entries], text),
        Array([entry.value for entry in entries], DataType.float64()),
        Array(["shadow" if entry.shadow else "enforce" for entry in entries], text),
        Array([row.changed_by for row in rows], text),
        Array([_epoch_us(row.changed_at) for row in rows], DataType.int64()).cast(timestamp),
    ]
    return Table.from_arrays(columns, schema=ArrowSchema.from_arrow(QUOTAS_SCHEMA.to_arrow()))


def _epoch_us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _changed_rows(
    rows: Iterable[QuotaRow], entries: Iterable[QuotaEntry], changed_by: str, at: datetime
) -> list[QuotaRow]:
    """The rows of `entries`, sorted: those of `rows` where they stay the same."""
    unchanged = {row.entry: row for row in rows}
    changed = _by_key(unchanged.get(entry) or QuotaRow(entry, changed_by, at) for entry in entries)
    return [changed[key] for key in sorted(changed, key=_sort_key)]


def _by_key(rows: Iterable[QuotaRow]) -> dict[EntryKey, QuotaRow]:
    return {(row.entry.entity, row.entry.kind): row for row in rows}


def _sort_key(key: EntryKey) -> tuple[str, str]:
    entity, kind = key
    return entity_text(entity), kind


def _changes(
    commit: Mapping[str, Any], older: Mapping[EntryKey, QuotaRow], newer: Mapping[EntryKey, QuotaRow]
) -> Iterator[QuotaChange]:
    """What differs between two versions, sorted; the commit says who removed rows, and when."""
    author = str(commit.get("userName") or "unknown")
    time = datetime.fromtimestamp(commit["timestamp"] / 1000, UTC)
    if CHANGED_AT in commit:
        time = datetime.fromisoformat(commit[CHANGED_AT])
    for key in sorted(older.keys() | newer.keys(), key=_sort_key):
        old, new = older.get(key), newer.get(key)
        if (old and old.entry) != (new and new.entry):
            yield QuotaChange(
                commit["version"], author, time, *key, old.entry if old else None, new.entry if new else None
            )


def _commit_properties(changed_by: str, at: datetime) -> CommitProperties:
    return CommitProperties(custom_metadata={"userName": changed_by, CHANGED_AT: at.isoformat()}, max_commit_retries=0)


def _type_name(field: Field) -> str:
    return field.type.type if isinstance(field.type, PrimitiveType) else str(field.type)


def _one_line(error: Exception) -> str:
    """The first line of delta-rs's message, which goes on with causes and stack frames."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].strip()
