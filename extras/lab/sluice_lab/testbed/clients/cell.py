"""The work of each client of the matrix: it produces values to partition 0 of a topic, and reads them in a group.

A client reads lines `key=value` on standard input: `topic`, `servers`, `client.id`, `expected` (values that a consumer
gets), and its own configuration as `common.*`, `producer.*` and `consumer.*`. It prints `records`, `digest` and a line
for each `error`, and logs to standard error. The library need not be that of Sluice: this imports nothing of ours.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator

ROUNDS = 5
VALUES_PER_ROUND = 20
"""One batch: a round is sent when all of it is there."""

LINGER_MS = 30_000
"""No client of a busy machine sends a part of a round: flushing ends it."""

SECONDS = 60
TIMESTAMP_MS = 1_700_000_000_000
"""Time of all records: else the sizes of batches would vary with the clock."""

_VALUE_BYTES = 1000


class Cell:
    """The work of one client, and its results."""

    def __init__(self, lines: Iterator[str], more: dict[str, str]) -> None:
        self._given = dict(line.rstrip("\n").split("=", 1) for line in lines)
        self._more = more
        self.topic, self._expected = self._given["topic"], int(self._given["expected"])
        self._records, self._digest = 0, hashlib.sha256()

    def has(self, key: str) -> bool:
        """True if the configuration has this key."""
        return key in self._given

    def config(self, role: str) -> dict[str, str]:
        """The configuration of a `producer` or a `consumer`."""
        found = {"bootstrap.servers": self._given["servers"], "client.id": self._given["client.id"], **self._more}
        for key, value in self._given.items():
            part, _, name = key.partition(".")
            if part in ("common", role):
                found[name] = value
        return found

    def values(self, round_number: int) -> Iterator[bytes]:
        """The values of a round."""
        for number in range(VALUES_PER_ROUND):
            word = f"{round_number:03d}.{number:03d}-"
            yield (word * _VALUE_BYTES)[:_VALUE_BYTES].encode()

    def take(self, value: bytes | None) -> None:
        """Count a value that was read."""
        self._records += 1
        self._digest.update(value or b"")

    def is_complete(self) -> bool:
        """True if all were read."""
        return self._records >= self._expected

    def fail(self, error: object) -> None:
        """Print an error."""
        print(f"error={type(error).__name__}: {' '.join(str(error).split())}")

    def end(self) -> None:
        """Print what was read."""
        print(f"records={self._records}\ndigest={self._digest.hexdigest()}")


def run(produce: Callable[[Cell], None], consume: Callable[[Cell], None], more: dict[str, str]) -> None:
    """Produce, then consume; what one raises is an error of the cell."""
    cell = Cell(iter(sys.stdin), more)
    for step in (produce, consume):
        try:
            step(cell)
        except Exception as error:  # every error of a foreign library is a result
            cell.fail(error)
            break
    cell.end()
