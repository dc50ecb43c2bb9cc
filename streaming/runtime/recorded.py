"""The state of what is recorded: tables that can't be read."""

from contextlib import suppress

from sluice.configs.settings import Settings, with_absolute_paths
from sluice.sinks.errors import TableReadError
from sluice.sinks.tables.trouble import TableSeen, see_table
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.own_tables import check_is_own, known_ids
from sluice.streaming.errors import CheckpointError

_TABLES = ("decisions", "quota_metrics", "dead_letters", "unreadable")
"""Tables that every job writes."""


def see_tables(settings: Settings) -> tuple[dict[str, TableSeen | None], dict[str, str | None]]:
    """The tables that the job writes, by name, and why each can't be read; None for one that can."""
    seen, reasons = dict[str, TableSeen | None](), dict[str, str | None]()
    delta = with_absolute_paths(settings).delta  # as the job knows its tables, whose relative paths doctor has
    checkpoint, known = Checkpoint(settings.audit.checkpoint), dict[str, str]()
    with suppress(CheckpointError):  # of which the queries say why
        known = known_ids(checkpoint)
    for name in (*_TABLES, "overrides") if settings.gives_way else _TABLES:
        path = getattr(delta, name)
        try:
            found = see_table(name, path, delta.storage_options)
            check_is_own(path, None if found is None else found.id, known, checkpoint)
            seen[name] = found
        except TableReadError as error:
            reasons[name] = str(error)
    return seen, reasons
