"""The last decisions before a time, from the table."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from sluice_reading.query import Tables, literal
from sluice_reading.times import to_ms

_LOOK_BACK_MS = (0, 3_600_000, 86_400_000, 604_800_000, 315_360_000_000)
"""Steps back of a search for the newest rows: it ends with the first step that has enough."""


def last_seen_ms(tables: Tables, user: str | None, client_id: str | None, at: datetime) -> int | None:
    """The time of a client's last request before `at`; None if there is no decision on any. Raises QueryError."""
    found = newest(tables, "timestamp_ms", of_client(user, client_id), at, 1)
    return found[0][0] if found else None


def of_client(user: str | None, client_id: str | None) -> list[str]:
    """The conditions of requests with these names; None means any."""
    names = {"user": user, "client_id": client_id}
    return [f"{column} = {literal(name)}" for column, name in names.items() if name is not None]


def newest(
    tables: Tables, columns: str, conditions: Sequence[str], at: datetime, count: int, source: str = "decisions"
) -> list[tuple[Any, ...]]:
    """These columns of the last decisions before `at` that meet all conditions, newest first. Raises QueryError.

    `source` is a query in parentheses where it isn't the table; `{span}` in it stands for the span of time.
    """
    found: list[tuple[Any, ...]] = []
    at_ms = to_ms(at)
    for newer_ms, older_ms in pairwise(_LOOK_BACK_MS):
        span = f"timestamp_ms > {at_ms - older_ms} AND timestamp_ms <= {at_ms - newer_ms}"
        rows = tables.rows(
            f"SELECT {columns} FROM {source.replace('{span}', span)}"  # noqa: S608 - numbers and quoted texts
            f" WHERE {' AND '.join([*conditions, span])}"
            f" ORDER BY timestamp_ms DESC, source_offset DESC LIMIT {count - len(found)}"
        )
        found.extend(rows)
        if len(found) >= count:
            break
    return found
