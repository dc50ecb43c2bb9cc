"""Imported balances: what a new checkpoint starts with instead of empty counters, and the offset to continue from.

The operator can't be given an initial state, so each shard reads its imported balances when it is charged for the
first time. Their files stay in the checkpoint: a repeated micro-batch finds them again, and a shard that is never
charged keeps its balances.
"""

from dataclasses import dataclass

import msgspec

from configs.settings import Settings
from state.store.shard import Shard
from streaming.balances.file import Balances, Offset
from streaming.checkpoint.folder import Checkpoint
from streaming.checkpoint.origin import write_origin
from streaming.errors import CheckpointError

_FOLDER = "seeds"


class ImportedStart(msgspec.Struct, frozen=True):
    """Where a checkpoint with imported balances starts: the next offset by partition, and the shards with balances."""

    offsets: dict[int, Offset]
    shards: list[int] = msgspec.field(name="seeded")


def store_imported(checkpoint: Checkpoint, balances: Balances) -> None:
    """Initialise a new checkpoint with these balances. Do not start the job on it until this returns."""
    for number, payload in balances.shards.items():
        checkpoint.sluice.write(_shard_file(number), payload)
    start = ImportedStart(balances.offsets, list(balances.shards))
    checkpoint.sluice.write("start.json", msgspec.json.encode(start))
    write_origin(checkpoint, balances.origin)


def read_imported_start(checkpoint: Checkpoint) -> ImportedStart | None:
    """Where the checkpoint starts, None without imported balances.

    Raises CheckpointError if the import is incomplete.
    """
    content = checkpoint.sluice.read("start.json")
    if content is None:
        if checkpoint.sluice.names(_FOLDER):
            raise CheckpointError(
                f"`sluice state import` into {checkpoint.location} was cut short; remove that folder and import again"
            )
        return None
    try:
        return msgspec.json.decode(content, type=ImportedStart)
    except msgspec.MsgspecError as error:
        raise checkpoint.sluice.damaged_file("start.json", str(error)) from error


def read_imported_shard(checkpoint: Checkpoint, number: int) -> bytes:
    """The stored form of a shard with imported balances. Raises CheckpointError if its file is missing."""
    payload = checkpoint.sluice.read(_shard_file(number))
    if payload is None:
        raise checkpoint.sluice.damaged_file(_shard_file(number), "it is missing")
    return payload


@dataclass(frozen=True, slots=True)
class ImportedBalances:
    """Which shards of a checkpoint have imported balances. Small enough to travel to the workers, which read them."""

    location: str
    shards: int
    numbers: frozenset[int]

    @classmethod
    def of(cls, settings: Settings) -> "ImportedBalances":
        """Those of the job's checkpoint, which may have none. Raises CheckpointError."""
        checkpoint = Checkpoint(settings.enforce.checkpoint)
        start = read_imported_start(checkpoint)
        return cls(checkpoint.location, settings.state.shards, frozenset(start.shards if start else ()))

    def shard(self, number: int) -> Shard:
        """The shard `number` before its first charge. Raises CheckpointError and StateError if it can't be read."""
        if number not in self.numbers:
            return Shard()
        return Shard.from_bytes(read_imported_shard(Checkpoint(self.location), number), self.shards)


def _shard_file(number: int) -> str:
    return f"{_FOLDER}/{number:05d}.bin"
