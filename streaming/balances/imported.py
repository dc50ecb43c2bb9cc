"""Imported balances: what a new checkpoint starts with instead of empty counters, and the offset to continue from.

The operator can't be given an initial state, so the imported balances of a page are read when it is charged for the
first time. Their files stay in the checkpoint: a repeated micro-batch finds them again, and a page that is never
charged keeps its balances.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from sluice.configs.settings import Settings
from sluice.state.errors import UNREADABLE
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError

_FOLDER = "seeds"
_PAGES_PER_FILE = 256
"""Few files for many pages: one costs milliseconds on a disk, and a tenth of a second in an object store."""


Offset = Annotated[int, Meta(ge=0)]


class ImportedStart(msgspec.Struct, frozen=True):
    """The start of a checkpoint with imported balances: the next offset by partition, and the files with balances."""

    offsets: dict[int, Offset]
    files: list[int]


def pages_by_file(pages: Mapping[int, bytes]) -> dict[int, tuple[str, dict[int, bytes]]]:
    """The file of each of these pages, by its number, with its name in the checkpoint: what an import writes."""
    files: dict[int, tuple[str, dict[int, bytes]]] = {}
    for number, payload in pages.items():
        file = number // _PAGES_PER_FILE
        files.setdefault(file, (_file(file), {}))[1][number] = payload
    return files


def read_imported_start(checkpoint: Checkpoint) -> ImportedStart | None:
    """The start of the checkpoint, None without imported balances.

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
    except UNREADABLE as error:
        raise checkpoint.sluice.damaged_file("start.json", str(error)) from error


@dataclass(frozen=True, slots=True)
class ImportedBalances:
    """Names of a checkpoint's files with imported balances. Small enough to travel to the workers, which read them."""

    location: str
    files: frozenset[int]

    @classmethod
    def of(cls, settings: Settings) -> "ImportedBalances":
        """Those of the job's checkpoint, which may have none. Raises CheckpointError."""
        checkpoint = Checkpoint(settings.enforce.checkpoint)
        return cls.at(checkpoint, read_imported_start(checkpoint))

    @classmethod
    def at(cls, checkpoint: Checkpoint, start: ImportedStart | None) -> "ImportedBalances":
        """Those that `start` names."""
        return cls(checkpoint.location, frozenset(start.files if start else ()))

    def pages(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """The stored form of those of these pages that have imported balances. Raises CheckpointError."""
        found: dict[int, bytes] = {}
        by_file: dict[int, list[int]] = {}
        for number in numbers:
            if number // _PAGES_PER_FILE in self.files:
                by_file.setdefault(number // _PAGES_PER_FILE, []).append(number)
        for file, wanted in by_file.items():
            stored = self._file_pages(file)
            found.update((number, stored[number]) for number in wanted if number in stored)
        return found

    def all_pages(self) -> dict[int, bytes]:
        """The stored form of every page with imported balances. Raises CheckpointError."""
        found: dict[int, bytes] = {}
        for file in self.files:
            found.update(self._file_pages(file))
        return found

    def _file_pages(self, file: int) -> dict[int, bytes]:
        try:
            return msgspec.msgpack.decode(self._content(_file(file)), type=dict[int, bytes])
        except UNREADABLE as error:
            raise Checkpoint(self.location).sluice.damaged_file(_file(file), str(error)) from error

    def _content(self, name: str) -> bytes:
        folder = Checkpoint(self.location).sluice
        content = folder.read(name)
        if content is None:
            raise folder.damaged_file(name, "it is missing")
        return content


def _file(number: int) -> str:
    return f"{_FOLDER}/pages-{number:05d}.bin"
