"""JSON schemas for gateways and readers in other languages, made from `sluice.state.contract`.

`python -m scripts.fields` writes them into docs/, and compares them in ./scripts/check.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from sluice.state.contract import gateway_topics, records

DOCS = Path(__file__).resolve().parents[1] / "docs"


def schemas() -> dict[str, str]:
    """The content of each file in docs/."""
    return {
        "request.schema.json": _text(_schema(records.Request)),
        "decision.schema.json": _text(_as_written(_schema(records.Decision))),
        "sums.schema.json": _text(_with_reference(_schema(gateway_topics.Sums), "Decision", "decision.schema.json")),
    }


def _schema(record: type[msgspec.Struct]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([record])
    for component in components.values():
        component["description"] = " ".join(component["description"].split())
    root = components.pop(record.__name__)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": components}


def _as_written(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of the record as it is written: fields with a default are there as well."""
    for component in (schema, *schema["$defs"].values()):
        record = getattr(records, component["title"])
        if issubclass(record, msgspec.Struct) and not record.__struct_config__.omit_defaults:
            fields = msgspec.structs.fields(record)
            component["required"] = [field.name for field in fields if field.default is not UNSET]
    return schema


def _with_reference(schema: dict[str, Any], record: str, file: str) -> dict[str, Any]:
    """The schema with a reference to the file of a record that has one of its own, and without what it alone used."""
    inside = f"#/$defs/{record}"
    text = json.dumps({name: part for name, part in schema.items() if name != "$defs"}).replace(inside, file)
    definitions, wanted = schema["$defs"], _definitions(text)
    kept: set[str] = set()
    while wanted - kept:
        kept |= wanted
        wanted = {name for part in kept for name in _definitions(json.dumps(definitions[part]))}
    return {**json.loads(text), "$defs": {name: part for name, part in definitions.items() if name in kept}}


def _definitions(text: str) -> set[str]:
    return set(re.findall(r"#/\$defs/(\w+)", text))


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2) + "\n"
