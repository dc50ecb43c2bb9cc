"""Projections: structs of readers that need few fields of a record, checked against the contract when they are defined.

msgspec skips the fields that a struct doesn't have, so a reader of every decision saves the time that they take.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import msgspec
from msgspec import inspect

_Projection = TypeVar("_Projection", bound=type[msgspec.Struct])

_RECORD_OF: dict[type, type] = {}
"""The record of each projection."""


def projects(record: type[msgspec.Struct]) -> Callable[[_Projection], _Projection]:
    """Check that a struct has some of the fields of a record, under their names and with their types.

    A field may be null and have a default and bounds that it doesn't have in the record: a reader may be more
    careful. A struct in it is that of the record or a projection of it. Raises TypeError for anything else.

    >>> from sluice.state.contract.records import SourceRecord
    >>> @projects(SourceRecord)
    ... class Offset(msgspec.Struct):
    ...     offset: str
    Traceback (most recent call last):
    TypeError: Offset.offset is str; expected int, as in SourceRecord
    """
    wanted = {field.name: _types(field.type) for field in _fields(record)}

    def check(projection: _Projection) -> _Projection:
        for field in _fields(projection):
            path, found = f"{projection.__name__}.{field.name}", _types(field.type)
            if field.name not in wanted:
                raise TypeError(f"{path} is no field of {record.__name__}; expected one of {', '.join(wanted)}")
            if found - wanted[field.name]:
                expected = " or ".join(sorted(wanted[field.name]))
                raise TypeError(f"{path} is {' or '.join(sorted(found))}; expected {expected}, as in {record.__name__}")
        _RECORD_OF[projection] = record
        return projection

    return check


def _fields(struct: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    return cast(inspect.StructType, inspect.type_info(struct)).fields


def _types(described: inspect.Type) -> frozenset[str]:
    """Names of the JSON types that a field may have, null apart."""
    match described:
        case inspect.Metadata():
            return _types(described.type)
        case inspect.UnionType():
            return frozenset().union(*map(_types, described.types))
        case inspect.NoneType():
            return frozenset()
        case inspect.EnumType() | inspect.LiteralType():
            return frozenset({"str"})
        case inspect.StructType():
            return frozenset({_RECORD_OF.get(described.cls, described.cls).__name__})
        case inspect.ListType():
            return frozenset(f"list of {name}" for name in _types(described.item_type))
    return frozenset({type(described).__name__.removesuffix("Type").lower()})
