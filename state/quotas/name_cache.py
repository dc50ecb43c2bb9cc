"""Cache of values that were found for names, bounded in bytes: clients choose their names, and may invent many."""

from typing import TypeVar

MAX_CACHED = 1 << 17
"""Most values of a generation."""

ENTRY_BYTES = 256
"""Bytes of an entry besides its texts, about: keys, objects and their places."""

_PARTS = 4096
"""A cache keeps no value that takes more than this part of it: names can have tens of thousands of characters."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class NameCache(dict[KeyT, ValueT]):
    """Values by names, in two generations, each bounded in bytes.

    When the newer one is full, it becomes the older one: what was used since the last time stays, whatever else comes.
    `cache[key]` finds values of both, and moves one of the older to the newer; `get` finds those of the newer only.
    """

    def __init__(self, most_bytes: int) -> None:
        """An empty cache, each of whose generations takes at most `most_bytes`.

        So clients in use that fit in one of them are never forgotten, however many other names come.
        """
        super().__init__()
        self._most_bytes = most_bytes
        self._bytes = 0
        self._older: dict[KeyT, ValueT] = {}
        self._mean_bytes = 0  # of a value of the older generation

    def __missing__(self, key: KeyT) -> ValueT:
        return self.keep(key, self._older.pop(key), self._mean_bytes)

    def keep(self, key: KeyT, value: ValueT, size: int) -> ValueT:
        """Keep and return a value that takes `size` bytes with its key; return it only if that is too large."""
        if size > self._most_bytes // _PARTS:
            return value
        if len(self) >= MAX_CACHED or self._bytes + size > self._most_bytes:
            self._older = self.copy()
            self._mean_bytes = self._bytes // max(1, len(self._older))  # threads of a gateway may turn it at once
            self.clear()
            self._bytes = 0
        self[key] = value
        self._bytes += size
        return value
