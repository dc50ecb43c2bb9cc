"""Cache of values that were found for names, bounded in bytes: clients choose their names, and may invent many."""

from typing import TypeVar

MAX_CACHED = 1 << 17
"""Most values of a cache."""

ENTRY_BYTES = 256
"""Bytes of an entry besides its texts, about: keys, objects and their places."""

_PARTS = 4096
"""A cache keeps no value that takes more than this part of it: names can have tens of thousands of characters."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class NameCache(dict[KeyT, ValueT]):
    """Values by names. It forgets all of them when there are too many, which bounds the memory of a worker."""

    def __init__(self, most_bytes: int) -> None:
        """An empty cache of values that take at most `most_bytes` together."""
        super().__init__()
        self._most_bytes = most_bytes
        self._bytes = 0

    def keep(self, key: KeyT, value: ValueT, size: int) -> ValueT:
        """Keep and return a value that takes `size` bytes with its key; return it only if that is too large."""
        if size > self._most_bytes // _PARTS:
            return value
        if len(self) >= MAX_CACHED or self._bytes + size > self._most_bytes:
            self.clear()
            self._bytes = 0
        self[key] = value
        self._bytes += size
        return value
