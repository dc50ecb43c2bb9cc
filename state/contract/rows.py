"""Rows of the tables that keep records as they are on the wire: the fields of the record, each of which may be null."""

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, inspect

from sluice.state.contract.records import INT_COLUMN

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def row_struct(record: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The struct of a record's rows.

    Texts with few values are plain texts and binary fields are in base64: a row may be of a record that breaks the
    contract. Integers have 64 bits, or 32 if their contract says so.
    """
    described = cast(inspect.StructType, inspect.type_info(record))
    fields = [(field.name, _row_type(field.type) | None, None) for field in described.fields]
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
