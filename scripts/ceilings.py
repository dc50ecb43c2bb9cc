"""Ceilings of lines: a change that passes one deletes something, in the same commit, or says in it what it moved where.

`python -m scripts.ceilings` reads `ceilings.toml` beside it, prints each folder above its ceiling, and exits with 1 if
there is one. They are not in pyproject.toml, whose every change makes `./scripts/setup` install all packages again.
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path


def above(root: Path, ceilings: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A line for each folder with more lines than it may have; `ceilings` is folders, by spaces, -> suffix -> lines.

    A folder that is in another one counts there too. Build products have folders of their own, named `built`.
    """
    for folders, most in ceilings.items():
        for suffix, ceiling in most.items():
            lines = sum(_lines(root / folder, suffix) for folder in folders.split())
            if lines > ceiling:
                yield f"{folders}: {lines} lines of .{suffix}, and its ceiling is {ceiling}; delete or move some"


def _lines(folder: Path, suffix: str) -> int:
    files = (file for file in folder.rglob(f"*.{suffix}") if "built" not in file.parts)
    return sum(len(file.read_bytes().splitlines()) for file in files)


if __name__ == "__main__":
    ceilings = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    found = [*above(Path(), ceilings)]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(min(len(found), 1))
