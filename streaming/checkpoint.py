"""What Sluice keeps in a query's checkpoint folder beside Spark's own files."""

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec
from pyarrow import fs

from configs.settings import Settings
from state.entity import DEFAULT, QuotaEntity
from state.quota import QuotaKind
from state.quota_entry import QuotaEntry
from state.resolution import Quotas
from streaming.errors import CheckpointError

_FOLDER = "sluice"
PREPARED_SUFFIX = ".resharded"
"""What `sluice state reshard` adds to the checkpoint's name while it prepares the new one."""

LOCK = "lock"
"""The file that a process holds while it works on the checkpoint."""

_LAYOUT = 2
"""Says under which keys Spark's state has the shards; under others none would be found. 1 was the shard's number."""

_KEPT_QUOTA_VERSIONS = 5
"""A replay needs the version of one batch ago; a few more cost nothing."""


class CheckpointFolder:
    """Small files in a folder that the driver and every executor can reach: a path or a URI."""

    def __init__(self, checkpoint: str, subfolder: str = _FOLDER) -> None:
        self._checkpoint = checkpoint.rstrip("/") if "://" in checkpoint else str(Path(checkpoint).absolute())
        self._subfolder = subfolder

    @property
    def checkpoint(self) -> str:
        """The checkpoint folder: a URI, or an absolute path so that workers find it too."""
        return self._checkpoint

    @property
    def is_local(self) -> bool:
        """Whether it is a path on this machine rather than a URI."""
        return "://" not in self._checkpoint

    def read(self, name: str) -> bytes | None:
        """The content of a file, None if it doesn't exist. Raises CheckpointError if the folder can't be read."""
        filesystem, folder = self._open()
        try:
            with filesystem.open_input_stream(str(folder / name)) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"can't read {name} in {self._checkpoint}: {error}") from error

    def write(self, name: str, content: bytes) -> None:
        """Replace a file in one step, so that a crash leaves the old or the new one."""
        filesystem, folder = self._open()
        target, draft = str(folder / name), str(folder / f"{name}.draft")
        try:
            filesystem.create_dir(str((folder / name).parent), recursive=True)
            with filesystem.open_output_stream(draft) as stream:
                stream.write(content)
            filesystem.move(draft, target)
        except OSError as error:
            raise CheckpointError(
                f"can't write {name} in {self._checkpoint}: {error}; give the job a checkpoint folder it can write"
            ) from error

    def names(self, subfolder: str) -> list[str]:
        """Names of the files in a subfolder."""
        filesystem, folder = self._open()
        selector = fs.FileSelector(str(folder / subfolder), allow_not_found=True)
        return [entry.base_name for entry in filesystem.get_file_info(selector) if entry.is_file]

    def remove(self, name: str) -> None:
        """Remove a file."""
        filesystem, folder = self._open()
        filesystem.delete_file(str(folder / name))

    def is_new(self) -> bool:
        """Whether neither Spark nor Sluice keeps anything in the checkpoint yet; a lock doesn't count."""
        filesystem, folder = _opened(self._checkpoint)
        selector = fs.FileSelector(str(folder), allow_not_found=True, recursive=True)
        return all(entry.base_name == LOCK for entry in filesystem.get_file_info(selector) if entry.is_file)

    def move(self, target: "CheckpointFolder") -> None:
        """Rename the checkpoint. Raises CheckpointError, as in an object store, which can't do that at once."""
        filesystem, folder = _opened(self._checkpoint)
        try:
            filesystem.move(str(folder), str(_opened(target.checkpoint)[1]))
        except (OSError, NotImplementedError) as error:
            raise CheckpointError(
                f"{self._checkpoint} can't be renamed to {target.checkpoint} ({error}); name a new enforce.checkpoint,"
                " and use `sluice state export` with the old and `sluice state import` with the new one"
            ) from error

    def clear(self) -> None:
        """Remove the checkpoint with all that is in it, if it is there."""
        filesystem, folder = _opened(self._checkpoint)
        if filesystem.get_file_info(str(folder)).type is fs.FileType.Directory:
            filesystem.delete_dir(str(folder))

    def _open(self) -> tuple[fs.FileSystem, PurePosixPath]:
        filesystem, path = _opened(self._checkpoint)
        return filesystem, path / self._subfolder


def _opened(checkpoint: str) -> tuple[fs.FileSystem, PurePosixPath]:
    """The file system that a checkpoint is in, and its path there."""
    location = checkpoint.replace("s3a://", "s3://", 1)
    if "://" not in location:
        return fs.LocalFileSystem(), PurePosixPath(location)
    filesystem, path = fs.FileSystem.from_uri(location)
    return filesystem, PurePosixPath(path)


def damaged(name: str, checkpoint: str, why: str) -> CheckpointError:
    """The error for a file of a checkpoint that can't be used."""
    return CheckpointError(
        f"{name} in {checkpoint} is damaged ({why}); restore the checkpoint from a backup, or name a new one"
        " (balances start afresh)"
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """What a checkpoint was made with; state written under other values can't be read, or would mean another thing."""

    shards: int
    requests_topic: str
    quota_window: tuple[int, int]
    controller_window: tuple[int, int]
    layout: int = 1

    @classmethod
    def of(cls, settings: Settings) -> "Origin":
        """The origin that these settings would give a new checkpoint."""
        quota = settings.quota
        return cls(
            settings.state.shards,
            settings.topics.requests,
            (quota.client_window.samples, quota.client_window.window_ms),
            (quota.controller_window.samples, quota.controller_window.window_ms),
            _LAYOUT,
        )

    def difference(self, settings: Settings) -> str | None:
        """The first setting, in words, that would make another origin than this one; None if all are the same."""
        wanted = Origin.of(settings)
        for name, setting in _SETTING_NAMES.items():
            was, value = getattr(self, name), getattr(wanted, name)
            if was != value:
                return f"{setting} = {was}, the settings say {value}"
        return None

    def difference_but_shards(self, settings: Settings) -> str | None:
        """As `difference`, of what balances can't be moved to."""
        return replace(self, shards=settings.state.shards).difference(settings)


_SETTING_NAMES = {
    "shards": "state.shards",
    "requests_topic": "topics.requests",
    "quota_window": "quota.window.num and quota.window.size.seconds (in ms)",
    "controller_window": "controller.quota.window.num and controller.quota.window.size.seconds (in ms)",
}


def check_origin(folder: CheckpointFolder, settings: Settings) -> None:
    """Write down what a new checkpoint is made with; raise CheckpointError if an old one was made with other values."""
    stored = read_origin(folder)
    if stored is None:
        _check_not_between(folder)
        write_origin(folder, Origin.of(settings))
        return
    difference = stored.difference(settings)
    if difference is not None:
        way_on = (
            "run `sluice state reshard`, which keeps the balances"
            if stored.shards != settings.state.shards
            else "name a new enforce.checkpoint (balances start afresh)"
        )
        raise CheckpointError(
            f"the checkpoint {settings.enforce.checkpoint} was made with {difference}; set it back, or {way_on}"
        )


def read_origin(folder: CheckpointFolder) -> Origin | None:
    """What the checkpoint was made with, None for a new one. Raises CheckpointError if it can't be read."""
    content = folder.read("sluice.json")
    if content is None:
        return None
    try:
        origin = msgspec.json.decode(content, type=Origin)
    except msgspec.MsgspecError as error:
        raise damaged("sluice/sluice.json", folder.checkpoint, str(error)) from error
    if origin.layout != _LAYOUT:
        raise CheckpointError(
            f"the state in {folder.checkpoint} has layout {origin.layout}, this release has {_LAYOUT}; run `sluice"
            " state export` with the release that made it and `sluice state import` with this one, or name a new"
            " enforce.checkpoint (balances start afresh)"
        )
    return origin


def write_origin(folder: CheckpointFolder, origin: Origin) -> None:
    """Write down what a checkpoint of this release is made with."""
    folder.write("sluice.json", msgspec.json.encode(replace(origin, layout=_LAYOUT)))


def _check_not_between(folder: CheckpointFolder) -> None:
    """Raises CheckpointError if there is no checkpoint because its successor wasn't put in its place yet."""
    if CheckpointFolder(folder.checkpoint + PREPARED_SUFFIX).read("sluice.json") is not None:
        raise CheckpointError(
            f"`sluice state reshard` of {folder.checkpoint} was cut short; run it again, and it goes on where it was"
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """How a micro-batch is decided: kept so that a replay after a crash decides the same again."""

    batch_id: int
    quota_version: int
    decided_at_ms: int


class BatchLog:
    """The last micro-batch that was begun; the only one that a restart can replay."""

    def __init__(self, folder: CheckpointFolder) -> None:
        """Raises CheckpointError when its file is damaged."""
        self._folder = folder
        content = folder.read("batch.json")
        try:
            self._last = Batch(-1, -1, -1) if content is None else msgspec.json.decode(content, type=Batch)
        except msgspec.MsgspecError as error:
            raise damaged("sluice/batch.json", folder.checkpoint, str(error)) from error

    @property
    def last_begun(self) -> int:
        """The last micro-batch's number, -1 before the first."""
        return self._last.batch_id

    def begin(self, batch_id: int, quota_version: int, now_ms: int) -> Batch:
        """The batch as it was begun the first time, else as it is begun now, written down."""
        if not self.begun_before(batch_id):
            self._last = Batch(batch_id, quota_version, now_ms)
            self._folder.write("batch.json", msgspec.json.encode(self._last))
        return self._last

    def begun_before(self, batch_id: int) -> bool:
        """Whether this batch was begun before, so that its records may be written already."""
        return self._last.batch_id == batch_id


class _SnapshotRow(NamedTuple):
    """A quota as a snapshot stores it; a null name is the default entity."""

    entity: dict[str, str | None]
    kind: QuotaKind
    value: float
    shadow: bool


class QuotaSnapshots:
    """The quotas of each version in force lately, where every executor finds them.

    The workers read a snapshot, never the quotas table: a table that is gone or broken can't stop the job, and the
    last good version survives a restart.
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    def save(self, version: int, entries: list[QuotaEntry]) -> None:
        """Keep this version, and drop all but the newest few."""
        rows = [_SnapshotRow(entry.entity.to_mapping(), entry.kind, entry.value, entry.shadow) for entry in entries]
        self._folder.write(_snapshot_name(version), msgspec.msgpack.encode(rows))
        for old in self.versions()[:-_KEPT_QUOTA_VERSIONS]:
            self._folder.remove(_snapshot_name(old))

    def versions(self) -> list[int]:
        """The versions kept, oldest first."""
        names = self._folder.names("quotas")
        return sorted(int(name.removesuffix(".msgpack")) for name in names if name.endswith(".msgpack"))

    def load(self, version: int) -> Quotas:
        """The quotas of a version. Raises CheckpointError if it isn't kept, or damaged."""
        content = self._folder.read(_snapshot_name(version))
        if content is None:
            raise CheckpointError(f"no snapshot of quotas version {version}; restart the job to make one")
        try:
            rows = msgspec.msgpack.decode(content, type=list[_SnapshotRow])
        except msgspec.MsgspecError as error:
            raise damaged(f"sluice/{_snapshot_name(version)}", self._folder.checkpoint, str(error)) from error
        return Quotas((QuotaEntry(_entity(row.entity), row.kind, row.value, row.shadow) for row in rows), version)


def _entity(names: dict[str, str | None]) -> QuotaEntity:
    """The entity of `to_mapping`, which was checked when it was set."""
    return QuotaEntity(**{part: DEFAULT if name is None else name for part, name in names.items()})


def _snapshot_name(version: int) -> str:
    return f"quotas/{version:020d}.msgpack"
