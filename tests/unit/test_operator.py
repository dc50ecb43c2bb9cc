"""The Python stages of the enforce query, as far as they need no Spark."""

import gc
from collections.abc import Iterator

import pytest

from state.quota import QuotaSettings
from streaming import operator
from streaming.operator import combiner


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is kept from the search for garbage, before and after; an earlier test may have kept it."""
    operator._keep_imports.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_a_worker_keeps_what_it_imported_from_the_search_for_garbage_after_every_task() -> None:
    """PySpark searches after each task; with pandas in it that would take longer than a small task."""
    for _ in range(2):
        assert not list(combiner("quota-decisions", QuotaSettings())(iter(())))

    assert gc.isenabled()
    assert gc.get_freeze_count() > len(gc.get_objects())
