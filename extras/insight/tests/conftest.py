"""Fixtures of what looks on."""

import pytest

from sluice_insight.reports import left_out


@pytest.fixture
def small_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have a row for a client of one request too."""
    monkeypatch.setattr(left_out, "LEAST_REQUESTS", 1)
