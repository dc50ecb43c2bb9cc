"""Sizes of files in folders that others write to meanwhile, and owners."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def file_sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Path and bytes of each file below the folder; what is removed meanwhile is left out."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):
                yield path, path.stat().st_size


def owner(place: Path) -> str:
    """The name of an owner, or the number of one that has none."""
    try:
        return place.owner()
    except KeyError:
        return str(place.stat().st_uid)
