"""The history of the quotas table: its versions, with the author and time of each change."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable

from sluice.sinks.errors import BrokenQuotasError
from sluice.sinks.tables.quotas import CHANGED_AT, HOST, OS_USER, PRINCIPAL, EntryKey, QuotasTable, entity_json
from sluice.state.quotas.alteration import ChangedFrom
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import EntryKind

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


class QuotasHistory(QuotasTable):
    """The quotas table with its past. Every method may raise QuotasTableError, whose message says what to do."""

    def rows(self, version: int | None = None) -> list[QuotaRow]:
        """The quotas of a version, by default the latest, with author and time; sorted by entity, key and mode."""
        content = self._read(self._open(version))
        authors, times = (content.columns[name].to_pylist() for name in ("changed_by", "changed_at"))
        return [QuotaRow(*row) for row in zip(content.entries.values(), authors, times, strict=True)]

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
