"""Checkpoints in the log of a Delta table that keeps all of its commits: few of the old ones are needed."""

import re
from collections.abc import Iterable

_FILE = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")

EVERY = 100
"""Most commits that a reader of an old version takes after a checkpoint."""


def needless(log: Iterable[str], every: int = EVERY) -> list[str]:
    """The checkpoints in a log that the one before and the commits since stand for; those of the last `every` stay.

    >>> commits = [f"{version:020d}.json" for version in range(9)]
    >>> checkpoints = [f"{version:020d}.checkpoint.parquet" for version in range(1, 9, 2)]
    >>> [int(name[:20]) for name in needless(commits + checkpoints, every=3)]
    [1, 5]
    >>> needless(commits[6:] + checkpoints, every=3)
    []
    """
    found = [match for name in log if (match := _FILE.fullmatch(name))]
    commits = {int(match[1]) for match in found if match[2] == "json"}
    newest, kept, names = max(commits, default=0), -1, []
    for version, name in sorted((int(match[1]), match[0]) for match in found if match[2] != "json"):
        is_needed = version >= kept + every or not commits.issuperset(range(kept + 1, version + 1))
        if is_needed or version > newest - every:
            kept = version
        else:
            names.append(name)
    return names
