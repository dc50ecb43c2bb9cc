"""Fields of records and names of metrics in the pages, made from the code that has them.

`python -m scripts.fields` writes them into docs/, between lines such as `<!-- made: Request -->` and `<!-- end -->`,
with the JSON schemas of `scripts.contracts`. With `--check` it writes nothing, and exits with 1 if a file would change.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scripts.contracts import DOCS, schemas
from sluice.state.contract import gateway_topics, records

_TOP = DOCS.parent
_MADE = re.compile(r"(?<=<!-- made: )([\w/]+)( -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
_WIDTH = 140
"""Longest line of a page's prose."""

_MOST_NAMES = 7
"""A record in another one is shown by the names of its fields if there are at most so many."""


def files() -> dict[Path, str]:
    """Each file that is made, in whole or in part, with its content."""
    pages = [page for page in DOCS.glob("*.md") if _MADE.search(page.read_text())]
    return {DOCS / name: text for name, text in schemas().items()} | {page: made(page.read_text()) for page in pages}


def made(page: str) -> str:
    """The page with what is made of the code: fields of a record of the contract, or metrics of a folder."""
    return _MADE.sub(lambda part: f"{part[1]}{part[2]}{_content(part[1])}", page)


def _content(name: str) -> str:
    record = getattr(records, name, None) or getattr(gateway_topics, name, None)
    return "".join(_fields(record) if record else _metrics(_TOP / name))


def _fields(record: type[msgspec.Struct]) -> Iterator[str]:
    (reference,), components = msgspec.json.schema_components([record])
    schema = components[reference["$ref"].rpartition("/")[2]]
    for name, field in schema["properties"].items():
        kind = _kind(field, components)
        state = ", required" if name in schema.get("required", ()) else _default(field)
        text = f"* `{name}` ({kind}{state})" + (f": {field['description']}" if "description" in field else "")
        yield textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


def _kind(field: dict[str, Any], components: dict[str, Any]) -> str:
    """The type in words, with the names of the fields of a record that has few."""
    match field:
        case {"anyOf": kinds}:
            return " or ".join(_kind(kind, components) for kind in kinds)
        case {"$ref": str(path)}:
            inner = components[path.rpartition("/")[2]]
            names = inner.get("properties", {})
            if not names:
                return _kind(inner, components)
            return f"`{{{', '.join(names)}}}`" if len(names) <= _MOST_NAMES else "object"
        case {"enum": values}:
            return ", ".join(str(value) for value in values)
        case {"type": "array", "items": dict(items)}:
            most = f" of at most {field['maxItems']:,}" if "maxItems" in field else " of"
            return f"list{most.replace(',', ' ')} {_kind(items, components)}"
        case {"type": str(kind)}:
            return kind
    return "object"


def _default(field: dict[str, Any]) -> str:
    match field.get("default"):
        case None | [] | "" | {}:
            return ""
        case bool(value):
            return f", default {str(value).lower()}"
        case value:
            return f", default {value}"


def _metrics(folder: Path) -> Iterator[str]:
    """A table of the metrics whose names and help texts are constants in the folder's code."""
    yield "| metric | labels | meaning |\n|---|---|---|\n"
    for file in sorted(file for file in folder.rglob("*.py") if "tests" not in file.relative_to(folder).parts):
        tree = ast.parse(file.read_text())
        known = {
            node.targets[0].id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            parts: list[ast.expr] = []
            if isinstance(node, ast.Tuple):
                parts = node.elts
            elif isinstance(node, ast.Call):
                parts = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "labels")]
            texts = [_constant(known.get(part.id, part) if isinstance(part, ast.Name) else part) for part in parts]
            match texts:
                case [str(name), str(meaning), *labels] if re.fullmatch("sluice_[a-z_]+", name) and " " in meaning:
                    is_counter = isinstance(node, ast.Call) and ast.unparse(node.func) == "Counter"
                    total = "_total" if is_counter else ""
                    yield f"| `{name}{total}` | {', '.join(_flat(labels))} | {meaning} |\n"


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _flat(labels: list[object]) -> Iterator[str]:
    for label in labels:
        if isinstance(label, str):
            yield label
        elif isinstance(label, list | tuple):
            yield from _flat([*label])


def main(arguments: list[str], report: Callable[..., None] = print) -> int:
    """Write the files, or name those that aren't as the code says."""
    stale = {file: text for file, text in files().items() if file.read_text() != text}
    if "--check" in arguments:
        report(
            *(f"{file.relative_to(_TOP)}: run python -m scripts.fields" for file in stale),
            sep="\n",
            end="\n" * any(stale),
        )
        return min(len(stale), 1)
    for file, text in stale.items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
