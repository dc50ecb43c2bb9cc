"""A name that nobody has is said, as long as decisions are read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recorded import event_at, simulated, write_decisions
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import QuotaKind
from sluice_reading.query import Tables
from sluice_toolbox.nobody import nobody_text
from tests.builders import quota


@pytest.mark.parametrize(
    ("user", "client_id", "problem"),
    [
        ("alcie", None, "no decision and no quota names user 'alcie'; check the spelling"),
        (None, "nosuch", "no decision and no quota names client-id 'nosuch'; check the spelling"),
        ("bob", None, None),
        ("bob", "nosuch", None),
        ("alice", "nosuch", None),
    ],
)
def test_a_name_that_nobody_has_is_said_if_decisions_are_read(
    tmp_path: Path, user: str | None, client_id: str | None, problem: str | None
) -> None:
    """Bob sends requests, and alice has a quota. Without decisions of the last minute nobody can say who is there."""
    now = datetime.now(UTC)
    entries = [
        quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user="alice"),
        quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user=DEFAULT),
    ]
    tables, names = Tables(str(tmp_path), str(tmp_path / "none"), {}), (user, client_id)

    assert nobody_text(tables, *names, entries, now) is None
    write_decisions(tmp_path, simulated([event_at(now, "bob", "Produce", bytes=5)], entries))

    assert nobody_text(tables, *names, entries, datetime.now(UTC)) == problem
    assert nobody_text(tables, *names, entries, datetime.now(UTC) + timedelta(minutes=2)) is None
