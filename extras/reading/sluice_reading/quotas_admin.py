"""The quotas table as operators use it: altered, and read with its past, with author and time of each change."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from arro3.core import Table
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from sluice.sinks.errors import BrokenQuotasError, QuotasTableError
from sluice.sinks.tables.quotas import (
    CHANGED_AT,
    EntryKey,
    QuotasTable,
    by_key,
    commit_properties,
    entity_json,
    taken,
    to_arrow,
)
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import EntryKind
from sluice.state.quotas.tenants import check_members
from sluice_reading.owner import warn_of_owner
from sluice_reading.quota_lists import ChangedFrom

MAX_COMMIT_ATTEMPTS = 1000
"""An attempt is lost only when somebody else commits, so this many mean very many changes at the same time."""

OS_USER, HOST, PRINCIPAL = "osUser", "host", "principal"
"""Keys of `ChangedFrom` in a commit's metadata."""

_FIRST_COMMITS = 100
"""Commits that a reader of the history gets first; then four times as many, and so on."""


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """One quota, who set it, and when."""

    entry: QuotaEntry
    changed_by: str
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """One quota that a version of the table set, replaced or removed: `old` or `new` is None where there is none.

    `changed_from` is None for changes by the job, such as those of a cluster, and by others than Sluice.
    """

    version: int
    changed_by: str
    changed_from: ChangedFrom | None
    changed_at: datetime
    entity: QuotaEntity
    kind: EntryKind
    old: QuotaEntry | None
    new: QuotaEntry | None


class QuotasAdmin(QuotasTable):
    """Alters the quotas table, and reads its past. Every method may raise QuotasTableError, which says what to do."""

    def rows(self, version: int | None = None) -> list[QuotaRow]:
        """The quotas of a version, by default the latest, with author and time; sorted by entity, key and mode."""
        content = self._read(self._open(version))
        authors, times = (content.columns[name].to_pylist() for name in ("changed_by", "changed_at"))
        return [QuotaRow(*row) for row in zip(content.entries.values(), authors, times, strict=True)]

    def alter(
        self,
        change: Callable[[list[QuotaEntry]], Iterable[QuotaEntry]],
        changed_by: str,
        at: datetime,
        changed_from: ChangedFrom | None = None,
    ) -> int:
        """Replaces the quotas by `change(quotas)` in one commit; returns the version that has them.

        `change` is called again if somebody else commits at the same time, so no change is lost. Quotas that stay the
        same keep their author and time; if all stay the same there is no commit. If `change` raises, nothing is
        written. Raises InvalidQuotaError if a change makes a member of a tenant one of two.
        """
        for _ in range(MAX_COMMIT_ATTEMPTS):
            table = self._open()
            columns, before = self._read(table)
            after = by_key(change(list(before.values())))
            kept = [position for position, (key, entry) in enumerate(before.items()) if after.get(key) == entry]
            new = [entry for key, entry in after.items() if before.get(key) != entry]
            if len(kept) == len(before) and not new:
                return table.version()
            if any(entry.entity.is_member for entry in new):
                check_members(after.values())
            rows = [taken(columns, kept), to_arrow(new, changed_by, at)]
            if self._replace(
                table, Table.from_batches(rows), commit_properties(changed_by, at, **_origin(changed_from))
            ):
                return table.version()
        raise QuotasTableError(f"the quotas table {self.path} is changed by others all the time; try again later")

    def _replace(self, table: DeltaTable, rows: Table, commit: CommitProperties) -> bool:
        """Commits `rows` as the version after `table`; writes nothing and returns False if somebody else did first."""
        base = table.version()
        try:
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                # No retries (see commit_properties): any other commit must make this one fail. With retries delta-rs
                # commits after the other where it sees no conflict, such as two first rows in an empty table, and
                # quotas would be doubled.
                commit_properties=commit,
            )
            warn_of_owner(self.path)
        except (DeltaError, OSError, ValueError) as error:
            if isinstance(error, CommitFailedError) and self.version() != base:
                return False
            raise self._error("written", error) from error
        return True

    def history(self) -> Iterator[QuotaChange]:
        """Every change, newest version first; found by comparing versions, so it includes changes by Spark SQL.

        The author is "unknown" for a removal or commit by someone who gave no name. A version with a broken row was
        never in force: it is passed over, unless it is the latest.
        """
        table = self._open()
        version, newer = table.version(), self._read(table).entries
        for commit in _commits(table):
            if commit["version"] == version:
                version, older = self._in_force_before(version)
                yield from _changes(commit, older, newer)
                newer = older

    def _in_force_before(self, version: int) -> tuple[int, dict[EntryKey, QuotaEntry]]:
        """The newest version before this one without a broken row, and its quotas; -1 and none if there is none."""
        for earlier in range(version - 1, -1, -1):
            with suppress(BrokenQuotasError):
                return earlier, self._read(self._open(earlier)).entries
        return -1, {}

    def entries_at(self, at: datetime) -> list[QuotaEntry]:
        """The quotas in force at a time, those of the first version before it; every commit since is looked at."""
        commits = _commits(self._open())
        version = next((commit["version"] for commit in commits if _time_of(commit) <= at), 0)
        in_force, entries = self._in_force_before(version + 1)
        return [*entries.values()] if in_force >= 0 else self.entries(version)

    def version_at(self, changed_at: datetime, newest: int) -> int | None:
        """The version, up to `newest`, that a change at this time made; from the log alone. None if it doesn't say."""
        at = changed_at.isoformat()
        made = (commit["version"] for commit in _commits(self._open()) if commit.get(CHANGED_AT) == at)
        return next((version for version in made if version <= newest), None)


def _changes(
    commit: Mapping[str, Any], older: Mapping[EntryKey, QuotaEntry], newer: Mapping[EntryKey, QuotaEntry]
) -> Iterator[QuotaChange]:
    """The differences between two versions, sorted; author and time of removals are the commit's."""
    author, time = str(commit.get("userName") or "unknown"), _time_of(commit)
    changed = [key for key in older.keys() | newer.keys() if older.get(key) != newer.get(key)]
    for key in sorted(changed, key=lambda key: (entity_json(key[0]), *key[1:])):
        entity, kind, _ = key
        old, new = older.get(key), newer.get(key)
        yield QuotaChange(commit["version"], author, _changed_from(commit), time, entity, kind, old, new)


def _time_of(commit: Mapping[str, Any]) -> datetime:
    if CHANGED_AT in commit:
        return datetime.fromisoformat(commit[CHANGED_AT])
    return datetime.fromtimestamp(commit["timestamp"] / 1000, UTC)


def _commits(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """The commits of a table, newest first; few are read for who wants no more of them."""
    read, most = 0, _FIRST_COMMITS
    while True:
        commits = table.history(most)
        yield from commits[read:]
        if len(commits) < most:
            return
        read, most = most, 4 * most


def _changed_from(commit: Mapping[str, Any]) -> ChangedFrom | None:
    """Read it from a commit, as text whoever wrote it."""
    if OS_USER not in commit:
        return None
    principal = commit.get(PRINCIPAL)
    return ChangedFrom(str(commit[OS_USER]), str(commit.get(HOST)), principal and str(principal))


def _origin(changed_from: ChangedFrom | None) -> dict[str, str]:
    """It as metadata of a commit."""
    if changed_from is None:
        return {}
    said = {OS_USER: changed_from.os_user, HOST: changed_from.host}
    return said | ({PRINCIPAL: changed_from.principal} if changed_from.principal else {})
