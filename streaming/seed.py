"""What a new checkpoint begins with: balances from another one, and the offsets at which they end.

The operator can't be given a first state, so each shard reads its seed when it is charged for the first time. The seeds
stay where they are: a repeated micro-batch finds them again, and a shard that is never charged keeps its balances.
"""

from dataclasses import dataclass

import msgspec

from configs.settings import Settings
from state.shard import Shard
from streaming.balances import Balances, Offset
from streaming.checkpoint import CheckpointFolder, damaged, write_origin
from streaming.errors import CheckpointError

_FOLDER = "seeds"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a seeded checkpoint begins: the next offset by partition, and which shards have a seed."""

    offsets: dict[int, Offset]
    seeded: list[int]


def plant(folder: CheckpointFolder, balances: Balances) -> None:
    """Make a new checkpoint begin with these balances; it may be used once this has ended, not before."""
    for number, payload in balances.shards.items():
        folder.write(_seed_name(number), payload)
    folder.write("start.json", msgspec.json.encode(Start(balances.offsets, list(balances.shards))))
    write_origin(folder, balances.origin)


def read_start(folder: CheckpointFolder) -> Start | None:
    """Where the checkpoint begins, None if it isn't seeded. Raises CheckpointError if seeding it was cut short."""
    content = folder.read("start.json")
    if content is None:
        if folder.names(_FOLDER):
            raise CheckpointError(
                f"`sluice state import` into {folder.checkpoint} was cut short; remove that folder and import again"
            )
        return None
    try:
        return msgspec.json.decode(content, type=Start)
    except msgspec.MsgspecError as error:
        raise damaged("sluice/start.json", folder.checkpoint, str(error)) from error


def read_seed(folder: CheckpointFolder, number: int) -> bytes:
    """The stored form of a seeded shard. Raises CheckpointError if it is gone."""
    payload = folder.read(_seed_name(number))
    if payload is None:
        raise damaged(f"sluice/{_seed_name(number)}", folder.checkpoint, "it is missing")
    return payload


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seeds of a checkpoint, small enough to travel to the workers: they are read there."""

    checkpoint: str
    shards: int
    numbers: frozenset[int]

    @classmethod
    def of(cls, settings: Settings) -> "Seeds":
        """The seeds of the job's checkpoint, none if it has no others' balances. Raises CheckpointError."""
        folder = CheckpointFolder(settings.enforce.checkpoint)
        start = read_start(folder)
        return cls(folder.checkpoint, settings.state.shards, frozenset(start.seeded if start else ()))

    def shard(self, number: int) -> Shard:
        """A shard that has no state yet. Raises CheckpointError and StateError if its seed can't be read."""
        if number not in self.numbers:
            return Shard()
        return Shard.from_bytes(read_seed(CheckpointFolder(self.checkpoint), number), self.shards)


def _seed_name(number: int) -> str:
    return f"{_FOLDER}/{number:05d}.bin"
