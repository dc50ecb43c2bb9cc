"""Notes on standard error: how far the tables are behind the decisions."""

from datetime import UTC, datetime, timedelta

import typer

from sluice.configs.settings import DeltaSettings
from sluice_reading.times import duration

_FRESH = timedelta(minutes=1)
"""Age of the newest rows from which figures end before now; a gateway's heartbeats are rows too."""


def say_no_rows(delta: DeltaSettings, *paths: str) -> None:
    """Say on standard error how fresh these tables are, for an answer without rows."""
    from sluice_reading.query import last_written

    hint = no_rows_hint(last_written(paths, delta.storage_options), datetime.now(UTC))
    typer.echo(f"sluice: {hint}", err=True)


def say_of_then(delta: DeltaSettings, until: datetime) -> None:
    """Say on standard error where the figures end, if nothing was written in the last minute before a time.

    If this machine's clock is behind that of the job, figures until now end before the newest, and it says that.
    """
    from sluice_reading.query import last_written

    written_at, now = last_written([delta.decisions], delta.storage_options), datetime.now(UTC)
    if written_at is None:
        return
    if now - until < _FRESH and (hint := _behind_hint(written_at, now)):
        typer.echo(f"sluice: {hint}", err=True)
    elif min(until, now) - written_at > _FRESH:
        at = written_at.isoformat(timespec="seconds")
        why = "or this machine's clock is ahead of the job's; `sluice doctor` says which"
        typer.echo(f"sluice: nothing was written since {at}, so this ends there, {why}", err=True)


def no_rows_hint(written_at: datetime | None, now: datetime) -> str:
    """A hint for an answer without rows: the tables follow the decisions by an audit batch or more.

    >>> no_rows_hint(datetime(2026, 1, 1, 11, 59, 30), datetime(2026, 1, 1, 12))
    'no rows; the audit query last wrote 30 s ago, at 2026-01-01T11:59:30: newer decisions are not in the tables yet'
    """
    if written_at is None:
        return "no rows; the audit query has written nothing yet"
    if hint := _behind_hint(written_at, now):
        return f"no rows; {hint}"
    ago_s = (now - written_at).total_seconds()
    at = written_at.isoformat(timespec="seconds")
    return f"no rows; the audit query last wrote {ago_s:.0f} s ago, at {at}: newer decisions are not in the tables yet"


def _behind_hint(written_at: datetime, now: datetime) -> str | None:
    """A hint if the job's clock, by which the tables were written, is ahead of this machine's; None if it isn't.

    >>> _behind_hint(datetime(2026, 1, 1, 13), datetime(2026, 1, 1, 12))
    "this machine's clock is 1 h 0 min or more behind the job's, which last wrote at 2026-01-01T13:00:00: set it by NTP"
    """
    if written_at - now <= _FRESH:
        return None
    behind, at = duration((written_at - now).total_seconds() * 1000), written_at.isoformat(timespec="seconds")
    return f"this machine's clock is {behind} or more behind the job's, which last wrote at {at}: set it by NTP"
