"""The Delta table `quotas`: the quotas in force; its versions are the history of all quotas."""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
from arro3.core import Array, DataType, RecordBatch, Table
from arro3.core import Schema as ArrowSchema
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import Field, PrimitiveType

from sluice.sinks.errors import BrokenQuotasError, QuotasTableError, storage_reason
from sluice.sinks.tables.newest import SeenCommit
from sluice.sinks.tables.operators import OperatorsTable
from sluice.state.errors import InvalidQuotaError
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import Mode, QuotaEntry, check_value, quota_kind
from sluice.state.quotas.kinds import EntryKind

QUOTAS_SCHEMA = Schema(
    [
        Field("entity", PrimitiveType("string"), nullable=False),  # JSON, keys sorted; a null name is the default
        Field("key", PrimitiveType("string"), nullable=False),
        Field("value", PrimitiveType("double"), nullable=False),  # bytes/s, percent or mutations/s; of a member 1
        Field("mode", PrimitiveType("string"), nullable=False),  # enforce | shadow
        Field("changed_by", PrimitiveType("string"), nullable=False),
        Field("changed_at", PrimitiveType("timestamp"), nullable=False),  # UTC
    ]
)
"""One row per entity, key and mode: an enforced and a shadow quota of one key stand beside each other."""

_ARROW_SCHEMA = ArrowSchema.from_arrow(QUOTAS_SCHEMA.to_arrow())

TABLE_PROPERTIES = {
    # Most commits that opening the table reads, 0.2 ms each. A checkpoint of few quotas is as large as 14 of them.
    "delta.checkpointInterval": "100",
    # Old versions stay readable for audit: no commit expires, and nothing removes a file.
    "delta.enableExpiredLogCleanup": "false",
    # Each checkpoint has the names of files that were replaced since. With those of a day, a change a second would
    # write 8 MB with each tenth.
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.dataSkippingNumIndexedCols": "0",  # a third of a commit: all readers take all rows
}

_PLAIN = re.compile(r"[\w.-]+")
"""A file's name that logs and disks write alike."""

CHANGED_AT = "changedAt"
"""The key of the time of the change in a commit's metadata."""

EntryKey = tuple[QuotaEntity, EntryKind, bool]
"""Entity, kind, and whether it is a shadow quota."""


class _Content(NamedTuple):
    """The rows of one version, sorted by entity, key and mode: as columns, and as quotas."""

    columns: RecordBatch
    entries: dict[EntryKey, QuotaEntry]


class QuotasTable(OperatorsTable):
    """The quotas table at `path`, a folder or an object store's URI; `storage_options` are delta-rs's.

    Every call but `is_newest` reads the table again. Every method may raise QuotasTableError, whose message says what
    to do.
    """

    name = "quotas table"

    def exists(self) -> bool:
        """True if there is a Delta table at the path."""
        return self._opened() is not None

    def version(self) -> int:
        """The latest version, from 0; costs a few milliseconds on a local disk."""
        return self._open().version()

    def newest(self) -> tuple[int, list[QuotaEntry]]:
        """The latest version and its quotas. Its commit has to be whole: Delta's readers pass over an empty one."""
        with suppress(Exception):  # of any class: others read the whole table
            commit, files = self._newest.follow()
            content = self._content(_rows_of(Path(self.path), files), commit.version)
            return self._take_newest(content, commit, files)
        table = self._open()
        with self._told("read"):
            commit = self._newest.whole(table.version())
        return self._take_newest(self._read(table), commit, _files_of(table))

    def _take_newest(
        self, content: "_Content", commit: SeenCommit, files: frozenset[str] | None
    ) -> tuple[int, list[QuotaEntry]]:
        self._newest.known, self._newest.files = commit, files
        return commit.version, list(content.entries.values())

    def is_newest(self) -> bool:
        """True if what `newest` gave last is still that. Reads one commit, whatever the age of the table is."""
        with self._told("read"):
            return self._newest.is_still_newest()

    def entries(self, version: int | None = None) -> list[QuotaEntry]:
        """The quotas of a version, by default the latest, sorted by entity, key and mode."""
        return list(self._read(self._open(version)).entries.values())

    def create(self, entries: Iterable[QuotaEntry], changed_by: str, at: datetime) -> int:
        """Creates the table with these quotas as version 0; returns the latest version.

        A table that exists already, or that another process creates at the same time, stays as it is.
        """
        try:
            write_deltalake(
                self.path,
                Table.from_batches([to_arrow(by_key(entries).values(), changed_by, at)]),
                mode="error",
                name="quotas",
                configuration=TABLE_PROPERTIES,
                storage_options=self._storage_options,
                commit_properties=commit_properties(changed_by, at),
            )
        except (DeltaError, OSError, ValueError) as error:
            if not self.exists():
                raise self._error("written", error) from error
        return self.version()

    def _open(self, version: int | None = None) -> DeltaTable:
        table = self._opened()
        if table is None:
            raise QuotasTableError(
                f"no quotas table at {self.path}; the job makes it when it starts (`sluice run`): start it, or name the"
                " settings of the one you mean (--config)"
            )
        with self._told("read"):
            latest = table.version()
            if version is not None and 0 <= version <= latest:
                table.load_as_version(version)
        if version is not None and table.version() != version:
            raise QuotasTableError(f"the quotas table {self.path} has no version {version}; expected 0 to {latest}")
        return self._checked(table)

    def _checked(self, table: DeltaTable) -> DeltaTable:
        """The table itself, which has to have the columns of one of quotas."""
        found = {field.name: field.type for field in table.schema().fields}
        for field in QUOTAS_SCHEMA.fields:
            if found.get(field.name) != field.type:
                kind = field.type.type if isinstance(field.type, PrimitiveType) else str(field.type)
                raise QuotasTableError(
                    f"the Delta table {self.path} is no quotas table: it has no column {field.name} of type"
                    f" {kind}; check delta.quotas"
                )
        return table

    def _read(self, table: DeltaTable) -> "_Content":
        try:
            # to_pyarrow_table() isn't used: with deltalake 1.6.6 it often aborts the process at exit
            scanned = table.scan(columns=[field.name for field in QUOTAS_SCHEMA.fields]).read_all()
        except Exception as error:  # arro3 raises no narrower class
            raise self._error("read", error) from error
        return self._content(scanned, table.version())

    def _content(self, scanned: Table, version: int) -> "_Content":
        for field in QUOTAS_SCHEMA.fields:
            if scanned[field.name].null_count:
                raise BrokenQuotasError(
                    f"the quotas table {self.path} has a row without {field.name} in version {version};"
                    " correct it with Spark SQL (UPDATE, DELETE or RESTORE TABLE)"
                )
        names = (scanned[name].to_pylist() for name in ("entity", "key", "mode"))
        # sorted, because a scan has no order of its own
        rows = sorted(zip(*names, range(scanned.num_rows), strict=True))
        columns = taken(scanned.combine_chunks().to_batches()[0], [position for *_, position in rows])
        entries: dict[EntryKey, QuotaEntry] = {}
        for values in zip(*(columns[name].to_pylist() for name in ("entity", "key", "value", "mode")), strict=True):
            try:
                entry = _entry(*values)
            except (InvalidQuotaError, ValueError) as error:
                raise BrokenQuotasError(
                    f"the quotas table {self.path} has a broken row {values} in version {version}:"
                    f" {storage_reason(error)}; correct it with Spark SQL (UPDATE, DELETE or RESTORE TABLE)"
                ) from None
            entries[entry.entity, entry.kind, entry.shadow] = entry
        if len(entries) != len(rows):
            raise BrokenQuotasError(
                f"the quotas table {self.path} has two rows of the same entity, key and mode in version"
                f" {version}; delete one with Spark SQL (DELETE or RESTORE TABLE)"
            )
        return _Content(columns, entries)


def _files_of(table: DeltaTable) -> frozenset[str] | None:
    """The paths of a table's files; None if their rows or columns may not be what they seem, as of another writer."""
    if table.protocol().min_reader_version > 1 or table.metadata().partition_columns:
        return None
    return frozenset(table.get_add_actions().column("path").to_pylist())


def _rows_of(folder: Path, files: Iterable[str]) -> Table:
    """The rows of these files; raises an error if they don't have the columns of quotas."""
    import pyarrow as pa  # slow to import: commands don't poll
    from pyarrow.parquet import ParquetFile

    schema, parts = pa.schema(_ARROW_SCHEMA), []
    for name in files:
        if not _PLAIN.fullmatch(name):
            raise FileNotFoundError(f"{name} may be written otherwise on a disk")
        with ParquetFile(folder / name) as file:
            parts.append(file.read(schema.names, use_threads=False).select(schema.names).cast(schema))
    return Table.from_arrow(pa.concat_tables(parts))


def entity_json(entity: QuotaEntity) -> str:
    """The entity as the table stores it.

    >>> from sluice.state.quotas.entity import DEFAULT
    >>> entity_json(QuotaEntity(user=DEFAULT, client_id="app"))
    '{"client_id": "app", "user": null}'
    """
    return json.dumps(entity.to_mapping(), sort_keys=True, ensure_ascii=False)


def _entry(entity: str, key: str, value: float, mode: str) -> QuotaEntry:
    """Raises InvalidQuotaError or ValueError for a row that Sluice wouldn't have written."""
    parts = msgspec.json.decode(entity)
    if not isinstance(parts, dict):
        raise ValueError("the entity is no JSON object")
    if mode not in tuple(Mode):
        raise ValueError(f"mode is {mode!r}; expected enforce or shadow")
    quota_entity = QuotaEntity.from_mapping(parts)
    kind = quota_kind(quota_entity, key)
    check_value(kind, value)
    return QuotaEntry(quota_entity, kind, value, mode == Mode.SHADOW)


def taken(columns: RecordBatch, positions: Sequence[int]) -> RecordBatch:
    """The rows at these positions, in the types that are written: a scan gives views of texts."""
    taken = columns.take(Array(positions, DataType.uint64()))
    arrays = [taken[name].cast(_ARROW_SCHEMA.field(name).type) for name in _ARROW_SCHEMA.names]
    return RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def to_arrow(entries: Collection[QuotaEntry], changed_by: str, at: datetime) -> RecordBatch:
    """The rows of quotas that somebody has set at a time."""
    changed_at_us = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    text = DataType.utf8()
    columns = [
        Array([entity_json(entry.entity) for entry in entries], text),
        Array([entry.kind.value for entry in entries], text),
        Array([entry.value for entry in entries], DataType.float64()),
        Array([entry.mode.value for entry in entries], text),
        Array([changed_by] * len(entries), text),
        Array([changed_at_us] * len(entries), DataType.int64()).cast(DataType.timestamp("us", tz="UTC")),
    ]
    return RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def by_key(entries: Iterable[QuotaEntry]) -> dict[EntryKey, QuotaEntry]:
    """The quotas by what is one row of the table."""
    return {(entry.entity, entry.kind, entry.shadow): entry for entry in entries}


def commit_properties(changed_by: str, at: datetime, **more: str) -> CommitProperties:
    """Metadata of a commit: author, time of the change, and more. It isn't retried: any other commit makes it fail."""
    said = {"userName": changed_by, CHANGED_AT: at.isoformat(), **more}
    return CommitProperties(custom_metadata=said, max_commit_retries=0)
