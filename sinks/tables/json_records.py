"""Reading records of JSON, which anyone may have written, into Arrow: what can't be read has a fault."""

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import json as arrow_json

from sluice.sinks.tables.delta import columns_of
from sluice.sinks.tables.faults import Fault, Faults

Row = TypeVar("Row", bound=msgspec.Struct)

_ENCODE = msgspec.json.Encoder().encode


class _FaultError(Exception):
    """A field has a value that no table can hold."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class JsonRecords(Generic[Row]):
    """Reads values as JSON objects with the fields of a struct, of which each may be missing or null.

    Fields are read as the struct says. What is no text where it wants text is the text of its JSON, so that a strange
    name can be looked up.
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
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
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
        except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
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
