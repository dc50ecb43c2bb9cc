"""Names that nobody has, as the table of decisions and the quotas tell."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from sluice.state.quotas.entry import QuotaEntry
from sluice_reading.errors import QueryError
from sluice_reading.last_decisions import last_seen_ms
from sluice_reading.query import Tables, last_written
from sluice_reading.texts import client_text

_FRESH = timedelta(minutes=1)
"""Age of the newest decisions up to which the table knows who is there: in an incident commands work without it."""


def nobody_text(
    tables: Tables, user: str | None, client_id: str | None, entries: Iterable[QuotaEntry], now: datetime
) -> str | None:
    """A line that nobody has these names; None if somebody has, or the table of decisions is behind."""
    names = {"user": user, "client_id": client_id}
    asked = {part: name for part, name in names.items() if name}
    if not asked or any(getattr(entry.entity, part) == name for entry in entries for part, name in asked.items()):
        return None
    written_at = last_written([tables.decisions], tables.storage_options)
    if written_at is None or now - written_at > _FRESH:
        return None
    try:
        if any(last_seen_ms(tables, at=now, **(dict.fromkeys(names) | {part: asked[part]})) for part in asked):
            return None
    except QueryError:
        return None
    return f"no decision and no quota names {client_text(user, client_id)}; check the spelling"
