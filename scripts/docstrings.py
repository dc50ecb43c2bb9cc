"""Lint of docstrings: each begins with a noun or an imperative verb, so that its subject comes first.

`python -m scripts.docstrings FOLDER ...` prints each docstring that begins otherwise, and exits with 1 if there is one.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

REFUSED = frozenset({"What", "Whether", "Who", "Whom", "How", "Of"})
"""First words of sentences whose subject comes late. "True if ..." says what "Whether ..." says."""


def refused(source: str) -> Iterator[tuple[int, str]]:
    """Line and first line of each docstring, of attributes too, that begins with a refused word.

    >>> list(refused('X = 1\\n"Of all."'))
    [(2, 'Of all.')]
    """
    for node in ast.walk(ast.parse(source)):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
        for statement in body:
            match statement:
                case ast.Expr(ast.Constant(str(text))) if text.strip().partition(" ")[0].rstrip(",:") in REFUSED:
                    yield statement.lineno, text.strip().splitlines()[0]


def main() -> int:
    """Check the folders named on the command line."""
    files = sorted(file for folder in sys.argv[1:] for file in Path(folder).rglob("*.py"))
    found = [f"{file}:{line}: {text}" for file in files for line, text in refused(file.read_text())]
    print(*found, sep="\n", end="\n" if found else "")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
