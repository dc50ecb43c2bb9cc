"""The keys of the entities of some pages, as bytes as long as nobody asks for one.

A micro-batch charges one or two of the sixty entities of a page. To make a string of each key, look it up, hash it and
encode it again would cost more than all the arithmetic.
"""

import zlib
from collections.abc import Collection, Iterable
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sluice.state.arithmetic.columns import Integers, integers
from sluice.state.quotas.entity import COMMON_MARK

_SCANNED_BYTES = 8_192
"""Keys of a page up to which one is found by going through them; of more an index is made."""

_STORED_OF_KEY = 4
"""Stored keys for each that is looked for, up to which all of them are indexed: 0.1 us each, and 0.5 us to find one."""


class KeyBlocks(NamedTuple):
    """The keys of k pages as they are stored: a block of lines for each, and how many there are, (k,)."""

    blocks: list[bytes]
    counts: Integers

    def texts(self) -> list[str]:
        """The keys of all pages. Raises ValueError as `check` does."""
        text = self.check()
        return text.split("\n") if len(self._filled()) else []

    def check(self) -> str:
        """All lines. Raises ValueError unless each block is UTF-8 with as many lines as its page has entities."""
        for block, count in zip(self.blocks, self.counts.tolist(), strict=True):
            if block.count(b"\n") + 1 != count and (block or count):
                raise ValueError(f"not {count} keys for {count} entities")
        return b"\n".join(self._filled()).decode()

    def filled(self) -> "KeyBlocks":
        """Without the pages that have no entity."""
        return KeyBlocks(self._filled(), self.counts[self.counts > 0])

    def _filled(self) -> list[bytes]:
        return [block for block, count in zip(self.blocks, self.counts.tolist(), strict=True) if count]


def key_hash(key: bytes) -> int:
    """The hash that chooses an entity's page, from the bytes of its key.

    Counters that are asked together lie on one page: what is behind the mark counts for nothing.

    >>> key_hash(b"tenant:shop>alice|app") == key_hash(b"tenant:shop>") == key_hash(b"tenant:shop")
    True
    """
    return zlib.crc32(key.partition(_MARK)[0] if _MARK in key else key)


_MARK = COMMON_MARK.encode()


class Keys:
    """The keys of entities, each with a number: those of stored pages in their order, then those that were added."""

    def __init__(self, stored: KeyBlocks, pages: int) -> None:
        """Keys of `pages` pages in all; a key is only looked for in the block of its own page."""
        blocks, counts = stored.filled()
        self._pages = pages
        self._text = b"\n".join([b"", *blocks, b""])
        self._line_ends = np.flatnonzero(np.frombuffer(self._text, np.uint8) == ord("\n"))
        """Offset of the line end before key number i, and of the one after the last key."""
        page_numbers = [key_hash(block.partition(b"\n")[0]) % pages for block in blocks]
        self._page_numbers = np.repeat(integers(page_numbers), counts)
        first_numbers = np.concatenate([[0], np.cumsum(counts)])
        spans = pairwise(self._line_ends[first_numbers].tolist())
        self._spans = dict(zip(page_numbers, spans, strict=True))
        self._indexes: dict[int, dict[bytes, int]] = {}
        self._added: list[str] = []
        self._added_numbers: dict[str, int] = {}

    def add(self, keys: Iterable[str]) -> Integers:
        """The numbers (m,) of new keys."""
        first = self._stored + len(self._added)
        self._added += keys
        self.__dict__.pop("_numbers", None)
        numbers = range(first, self._stored + len(self._added))
        self._added_numbers |= zip(self._added[first - self._stored :], numbers, strict=True)
        return integers(numbers)

    def find(self, keys: Collection[str]) -> dict[str, int]:
        """The numbers of those that are known."""
        if len(keys) * _STORED_OF_KEY >= self._stored:
            known = self._numbers
            return {key: known[key] for key in keys if key in known}
        found, places = dict[str, int](), dict[str, int]()
        added, spans, pages, text = self._added_numbers, self._spans, self._pages, self._text
        for key in keys:  # no function call: this runs for each counter of a micro-batch
            if key in added:
                found[key] = added[key]
                continue
            name = key.encode()
            span = spans.get(key_hash(name) % pages)
            if span is None:
                continue
            first, last = span
            if last - first <= _SCANNED_BYTES:
                place = text.find(b"\n" + name + b"\n", first, last + 1)
            else:
                place = self._index(first, last).get(name, -1)
            if place >= 0:
                places[key] = place
        numbers = np.searchsorted(self._line_ends, integers(places.values()))
        return found | dict(zip(places, numbers.tolist(), strict=True))

    def pages_of(self, numbers: Integers, pages: int) -> Integers:
        """The page of each of m entities, of `pages` in all: as many as are stored, or others if they are split."""
        stored = self._page_numbers
        if pages != self._pages:
            stored = integers(map(key_hash, self._text.split(b"\n")[1:-1])) % pages
        added = integers(key_hash(key.encode()) % pages for key in self._added)
        return np.concatenate([stored, added])[numbers]

    def ranks(self, numbers: Integers) -> Integers:
        """The order (m,) in which these keys are stored: the same whenever a micro-batch is repeated.

        Stored keys have their own. New ones come behind them in theirs, as they may be added in any order.
        """
        ranks = numbers.copy()
        new = numbers >= self._stored
        rank_of = np.empty(len(self._added), np.int64)
        rank_of[sorted(range(len(self._added)), key=self._added.__getitem__)] = np.arange(len(self._added))
        ranks[new] = self._stored + rank_of[numbers[new] - self._stored]
        return ranks

    def blocks(self, numbers: Integers, ends: Integers) -> list[bytes]:
        """The stored form of k pages: `numbers` (n,) `ends[i - 1]` to `ends[i]`, ascending, are those of page i."""
        of_pages = np.concatenate([[0], ends])
        # Keys that were stored one after another stay one piece, which most pages are.
        cuts = np.flatnonzero((np.diff(numbers) != 1) | (numbers[1:] == self._stored)) + 1
        bounds = np.unique(np.concatenate([of_pages, cuts]))
        firsts, lasts = numbers[bounds[:-1]].tolist(), (numbers[bounds[1:] - 1] + 1).tolist()
        pieces = [self._piece(first, last) for first, last in zip(firsts, lasts, strict=True)]
        return [b"\n".join(pieces[first:last]) for first, last in pairwise(np.searchsorted(bounds, of_pages).tolist())]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each key."""
        stored = self._text[1:-1].decode().split("\n") if self._stored else []
        return dict(zip(stored, range(self._stored), strict=True)) | self._added_numbers

    @property
    def _stored(self) -> int:
        return len(self._page_numbers)

    def _index(self, first: int, last: int) -> dict[bytes, int]:
        """The keys of a page, each with the offset of the line end before it."""
        index = self._indexes.get(first)
        if index is None:
            line_ends = self._line_ends[slice(*np.searchsorted(self._line_ends, [first, last]))].tolist()
            index = dict(zip(self._text[first + 1 : last].split(b"\n"), line_ends, strict=True))
            self._indexes[first] = index
        return index

    def _piece(self, first: int, last: int) -> bytes:
        """The lines of keys `first` to `last`, all stored or all added."""
        if first >= self._stored:
            return "\n".join(self._added[first - self._stored : last - self._stored]).encode()
        start, end = self._line_ends[[first, last]].tolist()
        return self._text[start + 1 : end]
