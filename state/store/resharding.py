"""Distributes stored counters over another number of pages. No counter is changed."""

from collections.abc import Iterable

import numpy as np

from sluice.state.arithmetic.columns import take
from sluice.state.store.codec import decode, encode
from sluice.state.store.pages import pages_of_entities


def reshard(payloads: Iterable[bytes], before: int, after: int) -> dict[int, bytes]:
    """Number and stored form of each of `after` pages that has entities; `payloads` are those of `before` pages.

    Raises StateError if a page can't be read.
    """
    keys, columns = decode(payloads, before)
    pages = pages_of_entities(keys, after)
    rows = np.argsort(pages, kind="stable")
    numbers, counts = np.unique(pages, return_counts=True)
    stored = encode([keys[row] for row in rows.tolist()], take(columns, rows), np.cumsum(counts), after)
    return dict(zip(numbers.tolist(), stored, strict=True))
