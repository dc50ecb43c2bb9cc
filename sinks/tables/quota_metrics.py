"""The Delta table `quota_metrics`: what every counter measured in each window, under Kafka's names."""

from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from sluice.sinks.tables.delta import AuditTable, Commit, columns
from sluice.state.decisions.charge_plan import EXEMPT_REQUEST_TIME
from sluice.state.quotas.kinds import QuotaKind

_COLUMNS = columns("""
    window_start TIMESTAMP, window_s INT, metric_group STRING, rate_metric STRING, quota STRING, mode STRING, user
    STRING, client_id STRING, topic STRING, partition INT, limit DOUBLE, metered BOOLEAN, count BIGINT, value
    DOUBLE, rate DOUBLE, tokens DOUBLE, violated_count BIGINT, throttled_count BIGINT, throttle_time_avg_ms
    DOUBLE, throttle_time_max_ms BIGINT, last_timestamp_ms BIGINT, tenant STRING, date DATE
""")
"""One row per window, quota, mode and counter; docs/reference.md says what each column means."""

METRIC_NAMES = {kind.value: (kind.metric_group, kind.family.rate_name) for kind in QuotaKind} | {
    EXEMPT_REQUEST_TIME: (QuotaKind.REQUEST_PERCENTAGE.metric_group, EXEMPT_REQUEST_TIME)
}
"""Kafka's metric group of each quota, and its name for the rate."""

_MAX_MERGED_ROWS = 100_000
"""Most rows that are merged at once: a merge holds them and their windows in memory, and a few forged decisions make
millions."""

_OWN_FILES = 20
"""Newest windows of a micro-batch that have a commit and a file of their own, which takes some 0.1 s each."""

_OLDER = "-older-"
"""In the name of the commits of all but the newest windows of a micro-batch, before a number."""

_RECENT_COMMITS = 200
"""Commits among which all of the newest micro-batch are: it has those of its newest windows, and one an hour before."""

_MAINTENANCE = ("OPTIMIZE", "VACUUM START", "VACUUM END")
"""Delta's operations that change no row."""

_NO_BATCH = 0
"""The number of a commit that was undone."""

_IDENTITY = ("date", "window_start", "window_s", "quota")
_ENTITY = {"mode": "''", "user": "''", "client_id": "''", "topic": "''", "partition": "-1", "tenant": "''"}
"""Further names of a counter: `mode`, null for enforced quotas, and the parts of its entity, any of which may be null;
with the value that replaces null in comparisons."""

_NEWER = "new.last_timestamp_ms >= old.last_timestamp_ms"
_SUM = 'old."{column}" + new."{column}"'
_LATEST = f'CASE WHEN {_NEWER} THEN new."{{column}}" ELSE old."{{column}}" END'
_GREATEST = 'greatest(old."{column}", new."{column}")'
_THROTTLED = "(old.throttled_count + new.throttled_count)"
_WAITED_MS = " + ".join(f"coalesce({row}.throttle_time_avg_ms * {row}.throttled_count, 0)" for row in ("old", "new"))

_UPDATES = {
    "count": _SUM,
    "value": _SUM,
    "violated_count": _SUM,
    "throttled_count": _SUM,
    "limit": _LATEST,
    "metered": _LATEST,
    "tokens": _LATEST,
    "rate": f"CASE WHEN new.metered THEN {_LATEST} ELSE (old.value + new.value) / new.window_s END",
    "throttle_time_avg_ms": f"CASE WHEN {_THROTTLED} > 0 THEN ({_WAITED_MS}) / {_THROTTLED} END",
    "throttle_time_max_ms": _GREATEST,
    "last_timestamp_ms": _GREATEST,
}
"""The update of each column when a micro-batch measures a window that has a row already (SQL of delta-rs)."""


def quota_metrics_table(path: str) -> AuditTable:
    """The table at `path`, for rows of `sluice.sinks.tables.measures.metrics_rows`."""
    return AuditTable(path, _COLUMNS)


def merge_metrics(measured: pa.Table, table: DeltaTable, commit: Commit) -> None:
    """Add what a micro-batch measured to the rows of its windows, unless that was the last thing its application did.

    Delta-rs does this in the driver: the rows are few, and a MERGE by Spark takes seconds of all cores.

    Each of the newest windows is a commit and a file of its own. A merge writes the files anew in which it finds a
    row, so a file with the rows of two windows would take the next window too, and each batch would write the day.
    """
    if not measured.num_rows or commit.is_in(table):
        return
    *older, newest = [merged for rows in _by_file(measured) for merged in _slices(rows)]
    # A repeated micro-batch has the same slices. The commit of the newest says that all of them are merged.
    for number, rows in enumerate(older):
        _merge(table, rows, Commit(f"{commit.application}{_OLDER}{number}", commit.number))
    _merge(table, newest, commit)


def counted(commit: Commit) -> Commit:
    """The commit that the decisions table knows beside its own if the metrics have counted its rows."""
    return Commit(f"{commit.application}-counted", commit.number)


def take_back_metrics(metrics: DeltaTable, decisions: DeltaTable, commit: Commit) -> bool:
    """Undo the newest micro-batch of the metrics if its decisions are no rows; True if it was.

    Its driver ended between the two commits. Where `commit` repeats it, nothing is to be done. Else the query goes on
    from another place, such as a backup of its checkpoint, and counts these decisions when they become rows. Raises
    OSError, or DeltaError, also if others changed the rows since: a restore would undo that too. So it does if
    the log of the metrics has forgotten the micro-batch.
    """
    history = metrics.history(_RECENT_COMMITS)
    commits = [(entry["version"], found) for entry in history if (found := Commit.in_history(entry)) is not None]
    if not commits:
        merged = metrics.transaction_version(commit.application)
        became_rows = decisions.transaction_version(counted(commit).application)
        if merged in (None, _NO_BATCH, commit.number, became_rows):
            return False
        raise DeltaError("its log has forgotten them")
    newest = commits[0][1]
    batch = Commit(newest.application.partition(_OLDER)[0], newest.number)
    if batch == commit or counted(batch).is_in(decisions) or not newest.is_in(metrics):
        return False
    undone = dict(takewhile(lambda each: each[1].number == newest.number, commits))
    for entry in takewhile(lambda entry: entry["version"] > min(undone), history):
        if entry["version"] not in undone and entry["operation"] not in _MAINTENANCE:
            raise DeltaError(f"{entry['operation']} of its version {entry['version']}")
    forgotten = [Transaction(each.application, _NO_BATCH) for each in undone.values()]
    metrics.restore(min(undone) - 1, commit_properties=CommitProperties(app_transactions=forgotten))
    return True


def _by_file(measured: pa.Table) -> list[pa.Table]:
    """The rows by the file that takes them, oldest first: one a window, or one an hour of windows long past."""
    window_starts = measured["window_start"]
    newest = sorted(pc.unique(window_starts).to_pylist())[-_OWN_FILES:]
    files = pc.if_else(
        pc.greater_equal(window_starts, pa.scalar(newest[0], window_starts.type)),
        window_starts,
        pc.floor_temporal(window_starts, unit="hour"),
    )
    return [measured.filter(pc.equal(files, file)) for file in pc.unique(files).sort()]


def _slices(rows: pa.Table) -> list[pa.Table]:
    """Rows that are merged at once, in an order that a repeated micro-batch has too."""
    if len(rows) <= _MAX_MERGED_ROWS:
        return [rows]
    ordered = rows.sort_by([(name, "ascending") for name in (*_IDENTITY, *_ENTITY)])
    return [ordered.slice(first, _MAX_MERGED_ROWS) for first in range(0, len(rows), _MAX_MERGED_ROWS)]


def _merge(table: DeltaTable, measured: pa.Table, commit: Commit) -> None:
    if commit.is_in(table):
        return
    properties = commit.properties()
    (
        table.merge(measured, _same_row(measured), source_alias="new", target_alias="old", commit_properties=properties)
        .when_matched_update({column: rule.format(column=column) for column, rule in _UPDATES.items()})
        .when_not_matched_insert_all()
        .execute()
    )


def _same_row(measured: pa.Table) -> str:
    """The condition for the same window, quota and counter.

    Days and windows are literals, so that Delta can skip the files of all others.
    """
    dates = ", ".join(f"DATE '{date}'" for date in sorted(set(measured["date"].to_pylist())))
    first, last = (bound(measured["window_start"]).as_py().isoformat() for bound in (pc.min, pc.max))
    windows = f"old.window_start >= TIMESTAMP '{first}' AND old.window_start <= TIMESTAMP '{last}'"
    pairs = [(f'old."{column}"', f'new."{column}"') for column in _IDENTITY]
    # Only equalities, also for null, so that the engine joins by hashing; with an OR it compares all pairs of rows.
    for column, null in _ENTITY.items():
        old, new = f'old."{column}"', f'new."{column}"'
        pairs += [(f"({old} IS NULL)", f"({new} IS NULL)"), (f"coalesce({old}, {null})", f"coalesce({new}, {null})")]
    same = " AND ".join(f"{old} = {new}" for old, new in pairs)
    return f"old.date IN ({dates}) AND {windows} AND {same}"
