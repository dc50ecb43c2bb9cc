"""Lint of docstrings and help texts: their subject comes first, and their verbs are those of CONTRIBUTING.md.

`python -m scripts.docstrings FOLDER ...` prints each that begins otherwise, or has a word that another one replaces,
and exits with 1 if there is one. `tests/unit/test_docs.py` looks for such words in the pages.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

REFUSED = frozenset({"What", "Whether", "Who", "Whom", "How", "Of"})
"""First words of sentences whose subject comes late. "True if ..." says what "Whether ..." says."""

_UNCLEAR = re.compile(
    r"\bheld\b|\bone's own\b|\bno more\b(?=[.,;:)]|$)|\b(?:a|one|each|every|next|idle|two|some) looks?\b(?! like)"
    r"|(?:^|[.!?] )(?:What|Who|Whoever|Whatever)\b(?![^.]*\?)",
    re.IGNORECASE,
)
"""Say throttled, delayed or limited; poll; and a noun as the subject."""


def unclear(text: str) -> list[str]:
    """The words of a text of sentences that have a clearer one.

    >>> unclear("It is held until the next look.")
    ['held', 'next look']
    """
    return [match.group().strip() for match in _UNCLEAR.finditer(text)]


def refused(source: str) -> Iterator[tuple[int, str]]:
    """Line and fault of each docstring, of attributes too, and of each help text of an option.

    >>> list(refused('X = 1\\n"Of all."'))
    [(2, 'Of all.')]
    """
    for node in ast.walk(ast.parse(source)):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
        for statement in body:
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    if text.strip().partition(" ")[0].rstrip(",:") in REFUSED:
                        yield statement.lineno, text.strip().splitlines()[0]
                    yield from ((statement.lineno, f"{word!r} in a docstring") for word in unclear(_prose(text)))
        match node:
            case ast.keyword("help", ast.Constant(str(text))):
                yield from ((node.value.lineno, f"{word!r} in a help text") for word in unclear(_prose(text)))


def _prose(docstring: str) -> str:
    return " ".join(re.sub(r"`[^`]*`", "code", docstring.partition(">>>")[0]).split())


def main() -> int:
    """Check the folders named on the command line."""
    files = sorted(file for folder in sys.argv[1:] for file in Path(folder).rglob("*.py"))
    found = [f"{file}:{line}: {text}" for file in files for line, text in refused(file.read_text())]
    print(*found, sep="\n", end="\n" if found else "")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
