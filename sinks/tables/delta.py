"""The Delta tables that the audit query writes: their description, their creation, and the rows they have."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from msgspec import inspect

from sluice.sinks.tables.faults import Mask
from sluice.state.contract.records import MAX_INT32

SOURCE_COLUMNS = ("source_topic", "source_partition", "source_offset")
"""The request event that a row answers; an event has one decision or one dead letter."""

SOURCE_ID = "source_topic_id"
"""Kafka's id of its topic; null where brokers give no ids."""

Offsets = Mapping[int, npt.NDArray[np.int64]]
"""Offsets of records by partition."""

_MAX_SPANS = 200
"""More source partitions than that are looked up without their names, which would make too large a condition."""

_COMMIT = "sluice.commit"
"""Name of a Commit in the information that Delta keeps of each commit."""

_STATISTICS = "delta.dataSkippingStatsColumns"
"""Delta's property that names the columns of which a file's least and greatest value are kept."""

_SHORT_LOG = {
    # A commit would list the whole log to look for old ones. The maintenance removes them, once a day.
    "delta.enableExpiredLogCleanup": "false",
    # Nobody reads old versions of these tables, unlike those of the quotas.
    "delta.logRetentionDuration": "interval 1 days",
    # Each checkpoint of the log has the names of files that were removed since. The maintenance lists files without it.
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
"""Delta's properties that keep opening a table and a commit fast, whatever the table's age."""


class Commit(NamedTuple):
    """The application that commits, and a number for what its micro-batch covers: a repeated one has it again.

    Numbers have no order. A query that goes on from a backup of its checkpoint counts its micro-batches from there
    again, and they cover something else.
    """

    application: str
    number: int

    def is_in(self, table: DeltaTable) -> bool:
        """True if this was the application's last commit to the table."""
        return bool(table.transaction_version(self.application) == self.number)

    def properties(self, *also: "Commit") -> CommitProperties:
        """Delta-rs's properties of the commit, by which the table knows it later, and others with it."""
        return CommitProperties(
            custom_metadata={_COMMIT: f"{self.application} {self.number}"},
            app_transactions=[Transaction(*each) for each in (self, *also)],
        )

    @classmethod
    def in_history(cls, entry: Mapping[str, Any]) -> "Commit | None":
        """The commit of an entry of a table's history; None if something else made it."""
        application, _, number = entry.get(_COMMIT, "").rpartition(" ")
        return cls(application, int(number)) if application else None


class AuditTable(NamedTuple):
    """One table with a folder for each `date`.

    Readers skip files by the columns of `looked_up_by`; without any, by Delta's first 32 columns. Each of these columns
    costs time when a file is written.
    """

    path: str
    columns: pa.Schema
    looked_up_by: Sequence[str] = ()


def columns_of(struct: type[msgspec.Struct]) -> pa.Schema:
    """Columns for the fields of a struct, in their order; an integer is 32 bits wide if its bounds are."""
    return pa.schema(list(_fields(struct)))


def columns(text: str) -> pa.Schema:
    """Columns with names and types of SQL.

    >>> columns("user STRING, count BIGINT").names
    ['user', 'count']
    """
    pairs = (column.split() for column in text.split(","))
    return pa.schema([(name, _TYPES[kind]) for name, kind in pairs])


def lacking_columns(table: AuditTable, found: pa.Schema) -> list[str]:
    """The columns, and the fields in them, that a table of today has and a schema that was found hasn't."""
    return list(_lacking(table.columns, found, ""))


def create_table(table: AuditTable, storage_options: Mapping[str, str]) -> DeltaTable:
    """The table at its path, created if there is none.

    One of an earlier release gets the columns and fields that it lacks.
    """
    created = DeltaTable.create(
        table.path,
        table.columns,
        mode="ignore",
        partition_by=["date"],
        configuration=_SHORT_LOG | ({_STATISTICS: ",".join(table.looked_up_by)} if table.looked_up_by else {}),
        storage_options=dict(storage_options),
    )
    lacking = {name.partition(".")[0] for name in lacking_columns(table, pa.schema(created.schema().to_arrow()))}
    if lacking:
        wanted = Schema.from_arrow(pa.schema([field for field in table.columns if field.name in lacking]))
        created.alter.add_columns(wanted.fields)
    return created


def answered(
    table: DeltaTable, topic: str, ids: Sequence[str | None], sources: Offsets, wanted: pa.Schema
) -> Iterator[pa.Table]:
    """These columns of the rows that answer one of these records of a topic, in parts; it has one of the `ids`.

    The table's files are written in the order of time, so nearly all of them are skipped by their ranges of offsets:
    the cost doesn't grow with the table. Of an old event, again or forged, the range may be the whole table, but only
    a part of it is in memory at once.
    """
    whose = " OR ".join(f"{SOURCE_ID} IS NULL" if each is None else equals(SOURCE_ID, each) for each in ids)
    for part in rows_where(table, wanted, f"{equals('source_topic', topic)} AND ({whose}) AND ({_near(sources)})"):
        yield part.filter(pa.array(are_among(sources, part["source_partition"], part["source_offset"])))


def rows_where(table: DeltaTable, wanted: pa.Schema, condition: str) -> Iterator[pa.Table]:
    """These columns of the rows for which a condition in SQL is true, in parts.

    DataFusion skips files in Rust, PyArrow one by one.
    """
    names = ", ".join(f'"{name}"' for name in wanted.names)
    sql = f"SELECT {names} FROM rows WHERE {condition}"  # noqa: S608 - names of columns, numbers and quoted texts
    for part in QueryBuilder().register("rows", table).execute(sql):
        # DataFusion gives views of texts, which few functions of PyArrow take.
        yield pa.Table.from_batches([pa.record_batch(part)]).cast(wanted)


def topic_ids(table: DeltaTable) -> set[str]:
    """The ids of the topics whose events rows answer; empty for rows that have none."""
    found = QueryBuilder().register("rows", table).execute(f"SELECT DISTINCT {SOURCE_ID} AS id FROM rows")  # noqa: S608 - a name
    return {value or "" for part in found for value in pa.record_batch(part)["id"].to_pylist()}


def equals(column: str, text: str) -> str:
    """A condition in SQL."""
    quoted = text.replace("'", "''")
    return f"\"{column}\" = '{quoted}'"


def are_among(found: Offsets, partitions: pa.ChunkedArray, offsets: pa.ChunkedArray) -> Mask:
    """True for each record that is one of those found."""
    numbers, positions = partitions.to_numpy(), offsets.to_numpy()
    among = np.zeros(len(numbers), np.bool_)
    for partition, known in found.items():
        mine = numbers == partition
        among[mine] = np.isin(positions[mine], known)
    return among


def by_partition(partitions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Offsets:
    """These records' offsets by partition."""
    order = np.argsort(partitions, kind="stable")
    numbers, first = np.unique(partitions[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(offsets[order], first[1:]), strict=False))


def _near(sources: Offsets) -> str:
    spans = [(number, int(offsets.min()), int(offsets.max())) for number, offsets in sources.items()]
    if len(spans) > _MAX_SPANS:
        return f"source_offset BETWEEN {min(first for _, first, _ in spans)} AND {max(last for *_, last in spans)}"
    return " OR ".join(
        f"(source_partition = {number} AND source_offset BETWEEN {first} AND {last})" for number, first, last in spans
    )


def _lacking(wanted: Iterable[pa.Field], found: Iterable[pa.Field], prefix: str) -> Iterator[str]:
    known = {field.name: field.type for field in found}
    for field in wanted:
        name = prefix + field.name
        if field.name not in known:
            yield name
            continue
        ours, theirs = _item(field.type), _item(known[field.name])
        if pa.types.is_struct(ours) and pa.types.is_struct(theirs):
            yield from _lacking(ours, theirs, f"{name}.")


def _item(kind: pa.DataType) -> pa.DataType:
    """The type of a list's items, or the type itself."""
    return kind.value_type if pa.types.is_list(kind) else kind


def _fields(struct: type) -> Iterator[pa.Field]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)  # noqa: S101 - for the type checker
    for field in info.fields:
        yield pa.field(field.encode_name, _arrow_type(field.type))


def _arrow_type(kind: inspect.Type) -> pa.DataType:
    match kind:
        case inspect.UnionType():
            (value,) = (one for one in kind.types if not isinstance(one, inspect.NoneType))
            return _arrow_type(value)
        case inspect.IntType():
            return pa.int32() if kind.le == MAX_INT32 else pa.int64()
        case inspect.ListType():
            return pa.list_(pa.field("element", _arrow_type(kind.item_type)))
        case inspect.StructType():
            return pa.struct(list(_fields(kind.cls)))
        case _:
            return _TYPES[_SIMPLE_TYPES[type(kind)]]


_TYPES = {
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "DATE": pa.date32(),
}
_SIMPLE_TYPES = {inspect.StrType: "STRING", inspect.FloatType: "DOUBLE", inspect.BoolType: "BOOLEAN"}
