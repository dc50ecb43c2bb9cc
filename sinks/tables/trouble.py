"""The reasons of this machine for which a table can't be used, and their cures: rights, and files removed by hand.

The reader of a table says of both that a file can't be had, or that there is no table.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.process.folders import owner
from sluice.sinks.errors import TableReadError, storage_reason
from sluice.sinks.tables.delta_files import empty_commits

_DAY = "date="

_MOST_LOOKED_AT = 100
"""Most places of a folder whose rights are looked at: the job polls a table that can't be read twice a second."""

_EFFECTIVE = os.access in os.supports_effective_ids


class TableSeen(NamedTuple):
    """Rows, files and bytes of the newest version of a table, and its id, which one made again in its place hasn't."""

    rows: int
    files: int
    size_bytes: int
    id: str


def see_table(name: str, path: str, storage_options: Mapping[str, str]) -> TableSeen | None:
    """The size of the table of setting `delta.<name>`; None if it isn't there yet. Raises TableReadError."""
    check_commits(name, path, storage_options)
    try:
        table = DeltaTable(path, storage_options=dict(storage_options))
        actions = table.get_add_actions(flatten=True)
    except TableNotFoundError:
        if reason := missing_rights(path):
            raise TableReadError(f"{path} can't be read: {reason}") from None
        return None
    except (DeltaError, OSError, ValueError) as error:
        reason = table_trouble(path, error)
        raise TableReadError(
            f"{path} can't be read ({reason}); check delta.{name} and delta.storage_options"
        ) from error
    files, rows, sizes = (actions[column].to_pylist() for column in ("path", "num_records", "size_bytes"))
    if reason := missing_rights(path) or lost_files(path, list(files)):
        raise TableReadError(reason)
    return TableSeen(sum(count or 0 for count in rows), len(sizes), sum(sizes), str(table.metadata().id))


def check_commits(name: str, path: str, storage_options: Mapping[str, str]) -> None:
    """Raise TableReadError if a commit of the log is empty: readers pass over it, and nobody misses its rows."""
    if empty := empty_commits(path, storage_options):
        raise TableReadError(
            f"{path}/_delta_log/{empty[0]} is empty: a full disk or a crash has cut it off, and what it added to {name}"
            " doesn't count; if it is the newest, remove it while no job runs; else look for its rows in the topic"
        )


def table_trouble(path: str, error: Exception) -> str:
    """The reason for an error of a table, in one line, with the cure if it is one of this machine."""
    return missing_rights(path) or lost_files(path) or storage_reason(error)


def missing_rights(path: str) -> str | None:
    """The first folder or file of a table that this account may not read, and the cure; None for a URI.

    So a table that seems not to be there may be one that can't be seen.
    """
    if "://" in path:
        return None
    folder = Path(path).absolute()
    place = next(_unreadable(folder), None)
    if place is None:
        return None
    mode = place.stat().st_mode & 0o777
    who = f"this account ({os.geteuid()}) may not read {place}, which is of {owner(place)} with mode {mode:03o}"
    own = folder.stat() if folder in place.parents else None
    if own is None or place.stat().st_uid == own.st_uid:
        return f"{who}; use the account of the job, or let this one in"
    return (
        f"{who}, in a table of {owner(folder)}: a command of another account has written it; give it to the table's:"
        f" chown -R {own.st_uid}:{own.st_gid} {quote(str(folder))}"
    )


def lost_files(path: str, files: Sequence[str] | None = None) -> str | None:
    """The days whose files were removed by hand, and the cure; None if there are none, or nobody can tell.

    `files` are those of the table's log, which else is read.
    """
    if "://" in path:
        return None
    try:
        found = DeltaTable(path).get_add_actions(flatten=True)["path"].to_pylist() if files is None else files
    except (DeltaError, OSError, ValueError):
        return None
    lost = [file for file in found if not (Path(path) / file).exists()]
    if not lost:
        return None
    days = sorted({file.partition("/")[0].removeprefix(_DAY) for file in lost if file.startswith(_DAY)})
    named = f"files of {', '.join(days)}" if days else f"{len(lost)} files"
    gone = f"{named} are in the log of {path} but not in its folder: somebody has removed them by hand"
    age = (datetime.now(UTC).date() - date.fromisoformat(days[-1])).days if days else 0
    if age > 1:
        cure = f"sluice maintain --keep-days {age - 1} takes them, and all that is older, out of the table"
    else:
        code = f"from deltalake import DeltaTable; DeltaTable({path!r}).repair()"
        cure = f"restore them, or take them out of the table: python -c {quote(code)}"
    return f"{gone}; {cure}"


def _unreadable(folder: Path) -> Iterator[Path]:
    """The folders on the way to a table that this account can't enter, and what it can't read in it."""
    for place in reversed(folder.parents):
        if not place.is_dir():
            return
        if not os.access(place, os.X_OK, effective_ids=_EFFECTIVE):
            yield place
            return
    yield from (place for place in (folder, *_inner(folder)) if place.exists() and not _is_readable(place))


def _inner(folder: Path) -> Iterator[Path]:
    """All in a folder, as far as it can be seen: of each one the last by name, such as the newest commits and days."""
    if folder.is_dir() and not folder.is_symlink() and _is_readable(folder):
        for name in sorted(os.listdir(folder), reverse=True)[:_MOST_LOOKED_AT]:
            yield folder / name
            yield from _inner(folder / name)


def _is_readable(place: Path) -> bool:
    right = os.R_OK | os.X_OK if place.is_dir() else os.R_OK
    return os.access(place, right, effective_ids=_EFFECTIVE)
