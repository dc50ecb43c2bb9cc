"""Reading records of JSON, which anyone may have written, into Arrow: what can't be read has a fault."""

import json
from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec
import pyarrow as pa
from msgspec import Meta, inspect
from pyarrow import json as arrow_json

from sluice.sinks.tables.delta import columns_of
from sluice.sinks.tables.faults import Fault, Faults
from sluice.state.contract.records import INT_COLUMN, NO_COLUMN
from sluice.state.errors import UNREADABLE

Row = TypeVar("Row", bound=msgspec.Struct)

_ENCODE = msgspec.json.Encoder().encode


class _FaultError(Exception):
    """A field has a value that no table can hold."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class JsonRecords(Generic[Row]):
    """Reads values as JSON objects with the fields of a struct, of which each may be missing or null.

    Fields are read as the struct says. A value that is no text where it wants text is the text of its JSON, so
    that a strange name can be looked up.
    """

    def __init__(self, struct: type[Row], what: str) -> None:
        self._struct = struct
        self._columns = columns_of(struct)
        self._decode = msgspec.json.Decoder(struct).decode
        self._empty = struct()
        self._not_json = Fault("value", f"is not a JSON object with the fields of {what}")

    def read(self, values: Sequence[bytes | None], faults: Faults) -> tuple[pa.Table, list[bytes]]:
        """A row for each value and the row as JSON, by which rows are compared; that of a faulty value is empty."""
        decode, lines = self._decode, []
        for number, value in enumerate(values):
            try:
                found: Row | Fault = decode((value or b"").decode())
            except UNREADABLE:
                found = self._read_strange(value)
                if isinstance(found, Fault):
                    faults.add_one(number, found)
                    found = self._empty
            lines.append(_ENCODE(found))
        return self._table(lines), lines

    def as_json(self, row: dict[str, Any]) -> bytes:
        """A row of a table as `read` has it."""
        return _ENCODE(msgspec.convert(row, self._struct))

    def _read_strange(self, value: bytes | None) -> Row | Fault:
        """Most of these are no JSON of the struct; some have no text where it wants text, or no finite number."""
        if value is None:
            return Fault("value", "is null")
        try:
            return msgspec.convert(_fitted(json.loads(value.decode()), pa.struct(self._columns)), self._struct)
        except UnicodeDecodeError:
            return Fault("value", "is not UTF-8")
        except _FaultError as error:
            return error.fault
        except (ValueError, OverflowError, *UNREADABLE):
            return self._not_json

    def _table(self, lines: Sequence[bytes]) -> pa.Table:
        if not lines:
            return self._columns.empty_table()
        data = b"\n".join(lines)
        return arrow_json.read_json(
            pa.BufferReader(data),
            arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            arrow_json.ParseOptions(explicit_schema=self._columns, unexpected_field_behavior="error"),
        )


def _fitted(value: Any, kind: pa.DataType, path: str = "") -> Any:
    """The value as a column of this kind can have it, as far as there is a way. Raises _FaultError, or ValueError."""
    if value is None:
        return None
    if pa.types.is_string(kind):
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return text.encode(errors="replace").decode()  # half a surrogate pair is no text
    if pa.types.is_floating(kind) and isinstance(value, float | str) and not isfinite(float(value)):
        raise _FaultError(Fault(path, "is no finite number"))
    if pa.types.is_struct(kind) and isinstance(value, dict):
        inner = f"{path}." if path else ""
        return {field.name: _fitted(value.get(field.name), field.type, f"{inner}{field.name}") for field in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_fitted(item, kind.value_type, path) for item in value]
    return value


Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def row_struct(record: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The struct of a record's rows.

    Texts with few values are plain texts and binary fields are in base64: a row may be of a record that breaks the
    contract. Integers have 64 bits, or 32 if their contract says so, which may also say that no row has a field.
    """
    described = cast(inspect.StructType, inspect.type_info(record))
    kept = [field for field in described.fields if getattr(field.type, "extra", None) != NO_COLUMN]
    fields = [(field.name, _row_type(field.type) | None, None) for field in kept]
    return msgspec.defstruct(f"{record.__name__}Row", fields, gc=False, omit_defaults=True)


def _row_type(described: inspect.Type, integer: Any = Int64) -> Any:
    match described:
        case inspect.Metadata():
            return _row_type(described.type, Int32 if described.extra == INT_COLUMN else integer)
        case inspect.UnionType():
            [present] = (each for each in described.types if not isinstance(each, inspect.NoneType))
            return _row_type(present, integer)
        case inspect.StructType():
            return row_struct(described.cls)
        case inspect.ListType():
            return list[_row_type(described.item_type) | None]  # type: ignore[misc] # made here
        case inspect.IntType():
            return integer
        case inspect.FloatType():
            return float
        case inspect.BoolType():
            return bool
    return str
