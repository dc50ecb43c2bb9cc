"""All balances of a checkpoint, and the file that `sluice state export` writes."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sluice.state.errors import UNREADABLE
from sluice.state.store.codec import CODEC_VERSION, decode
from sluice.state.store.pages import reshard
from sluice.streaming.balances.imported import ImportedStart, Offset, pages_by_file
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import Origin, write_origin, write_topic_id
from sluice_toolbox.errors import StateFileError

_KIND = b"sluice state "
_FIRST_LINE = _KIND + b"1\n"
"""The kind of the file, and the version of its format."""

_DIGEST_BYTES = hashlib.sha256().digest_size


class Balances(msgspec.Struct, frozen=True):
    """The counters of every entity, and the offsets up to which requests are charged to them.

    `offsets`: partition of the requests topic to the offset of the first request not charged.
    `pages`: number to the stored form (state/store/codec.py) of each page that has counters.
    `topic_id`: Kafka's id of the requests topic; None if it isn't known.
    """

    origin: Origin
    offsets: dict[int, Offset]
    pages: dict[int, bytes]
    topic_id: str | None = None

    def entities(self) -> int:
        """Number of entities with counters. Raises StateError if a page can't be read."""
        return sum(len(decode(payload, self.origin.pages)) for payload in self.pages.values())

    def resharded(self, pages: int) -> "Balances":
        """The same counters in `pages` pages. Raises StateError if a page can't be read."""
        payloads = reshard(self.pages, self.origin.pages, pages)
        return replace(self, origin=replace(self.origin, pages=pages), pages=payloads)


class _Content(NamedTuple):
    """The msgpack content after the first line and the digest."""

    codec_version: int
    balances: Balances


def write_balances(path: Path, balances: Balances) -> None:
    """Write the file in one step, for its owner alone. Raises StateFileError if it exists or can't be written."""
    check_free(path)
    content = msgspec.msgpack.encode(_Content(CODEC_VERSION, balances))
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.unlink(missing_ok=True)  # of an export that was cut short
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # users' names are in it
            file.writelines((_FIRST_LINE, hashlib.sha256(content).digest(), content))
            file.flush()
            os.fsync(file.fileno())  # the operator may remove the checkpoint next
        draft.rename(path)
    except OSError as error:
        raise StateFileError(f"{path}: can't be written ({error.strerror}); name another file") from error


def check_free(path: Path) -> None:
    """Raises StateFileError if the file exists or its folder doesn't: an export never replaces a file."""
    if path.exists():
        raise StateFileError(f"{path}: is there already; name a new file, or remove that one")
    if not path.parent.is_dir():
        raise StateFileError(f"{path}: there is no folder {path.parent}; make it, or name another file")


def read_balances(path: Path) -> Balances:
    """The balances of a file. Raises StateFileError if it is missing, damaged, or not an export."""
    try:
        written = path.read_bytes()
    except OSError as error:
        raise StateFileError(
            f"{path}: can't be read ({error.strerror}); name a file of `sluice state export`"
        ) from error
    if not written.startswith(_KIND):
        raise StateFileError(f"{path}: holds no exported balances; name a file of `sluice state export`")
    if not written.startswith(_FIRST_LINE):
        raise StateFileError(f"{path}: is in a form that this release can't read; use the release that exported it")
    digest_end = len(_FIRST_LINE) + _DIGEST_BYTES
    digest, content = written[len(_FIRST_LINE) : digest_end], memoryview(written)[digest_end:]
    if hashlib.sha256(content).digest() != digest:
        raise StateFileError(f"{path}: is damaged; export once more, or take another copy of the file")
    return _decoded(content, path)


def _decoded(content: memoryview, path: Path) -> Balances:
    try:
        codec_version, balances = msgspec.msgpack.decode(content, type=_Content)
    except UNREADABLE as error:
        raise StateFileError(f"{path}: holds something else than balances ({error}); export once more") from error
    if codec_version > CODEC_VERSION:
        raise StateFileError(
            f"{path}: its counters have codec version {codec_version}, this release reads {CODEC_VERSION};"
            " import it with the release that exported it, or a later one"
        )
    return balances


def store_imported(checkpoint: Checkpoint, balances: Balances) -> None:
    """Initialise a new checkpoint with these balances. Do not start the job on it until this returns."""
    files = pages_by_file(balances.pages)
    for name, pages in files.values():
        checkpoint.sluice.write(name, msgspec.msgpack.encode(pages))
    checkpoint.sluice.write("start.json", msgspec.json.encode(ImportedStart(balances.offsets, list(files))))
    if balances.topic_id is not None:
        write_topic_id(checkpoint, balances.topic_id)
    write_origin(checkpoint, balances.origin)
