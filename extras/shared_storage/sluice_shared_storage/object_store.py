"""S3 as a file system of PyArrow's kind, by delta-rs's own client, so that tables and checkpoints are reached alike."""

import os
from collections.abc import Callable
from functools import cache, wraps
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from sluice.sinks.errors import storage_reason
from sluice.streaming.errors import CheckpointStorageError

_OPTIONS = {
    # Some 15 s. The client's own three minutes are too long for a command that says nothing meanwhile.
    "max_retries": "4",
    "retry_timeout": "15s",
}

_NO_BUCKET = "NoSuchBucket"
"""The code for a bucket that is gone. Its files are not: else a job would go on as if it were new."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def open_s3(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI `s3a://BUCKET/PATH`, and the path in it. Nothing is asked of the store yet.

    Address, region and credentials are those of the environment (`sluice_shared_storage.settings`). Raises
    CheckpointStorageError if they can't be right.
    """
    parts = urlsplit(uri)
    try:
        return _bucket(f"{parts.scheme}://{parts.netloc}", os.getpid()), parts.path.strip("/")
    except (OSError, DeltaError) as error:
        raise CheckpointStorageError(f"can't use {uri}: {storage_reason(error)}") from error


@cache
def _bucket(uri: str, _process: int) -> fs.FileSystem:
    """One client for a bucket in a process: it keeps its connections, and credentials that it had to ask for."""
    return fs.PyFileSystem(_OwnFiles(uri, _OPTIONS))


def _in_one_line(method: _Method) -> _Method:
    """Errors of the store as an OSError in one line; delta-rs writes trees of them, in colours."""

    @wraps(method)
    def call(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except FileNotFoundError as error:
            kind = OSError if _NO_BUCKET in str(error) else FileNotFoundError
            raise kind(storage_reason(error)) from error
        except (OSError, DeltaError) as error:
            _bucket.cache_clear()  # a new client reads a file of credentials again, as those in it may have expired
            raise OSError(storage_reason(error)) from error

    return call  # type: ignore[return-value] # it takes and gives the same


class _OwnFiles(DeltaStorageHandler):
    """Small files, each of which is there whole once it is written: there are no drafts."""

    @_in_one_line
    def open_input_stream(self, path: str) -> pa.PythonFile:
        try:
            file = self._handler.open_input_file(path)
        except FileNotFoundError:
            self.get_file_info_selector(fs.FileSelector(path, allow_not_found=True))  # which says if the bucket is gone
            raise
        return pa.BufferReader(file.read(file.size()))

    @_in_one_line
    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_Written(self._handler.open_output_stream(path, metadata)))

    @_in_one_line
    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return super().get_file_info(paths)

    @_in_one_line
    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return super().get_file_info_selector(selector)

    @_in_one_line
    def copy_file(self, src: str, dst: str) -> None:
        self._handler.copy_file(src, dst)  # as `super` names an argument that there is not

    @_in_one_line
    def delete_file(self, path: str) -> None:
        super().delete_file(path)

    @_in_one_line
    def delete_dir(self, path: str) -> None:
        super().delete_dir(path)


class _Written(BytesIO):
    """A small file, which is written when it is closed."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    @_in_one_line
    def close(self) -> None:
        """Write what there is, once."""
        if self.closed:
            return
        content = self.getvalue()
        super().close()
        self._stream.write(content)
        self._stream.close()
