"""HDFS as a file system of PyArrow's kind, by hdfs-native, which needs neither Java nor Hadoop's libraries."""

from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from hdfs_native import Client, WriteOptions
from hdfs_native.fsspec import HdfsFileSystem
from pyarrow import fs

_ATTEMPTS = 3
_ATTEMPTS_WITH_ONE_REPLICA = 12
"""A third of them fails where one of three data nodes is lost."""

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
"""For the owner alone, as the files that Spark writes are."""


_OPTIONS = {
    # Some 15 s, as pauses double. The 15 attempts of Hadoop are three minutes, in which a command would say nothing.
    "dfs.client.failover.max.attempts": "4",
    # Where no data node is left for the place of one that is lost, a file has a replica fewer until HDFS makes another.
    "dfs.client.block.write.replace-datanode-on-failure.best-effort": "true",
}


def open_hdfs(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI `hdfs://HOST:PORT/PATH` or `hdfs://NAMESERVICE/PATH`, and the path in it.

    A name service is looked up in the files that `HADOOP_CONF_DIR` names. Nothing is asked of HDFS yet.
    """
    parts = urlsplit(uri)
    return fs.PyFileSystem(fs.FSSpecHandler(_OwnFiles(parts.netloc or None, None, **_OPTIONS))), parts.path


class _OwnFiles(HdfsFileSystem):
    """As a local file system: a rename replaces its target, in one step of the name node.

    And a file that nobody can look up is no missing file: fsspec itself takes every error for one, so that a checkpoint
    would seem new while the name node doesn't answer.
    """

    cachable = False
    """fsspec would clear its cache in each forked process, where a client waits for ever for its threads to end."""

    def isfile(self, path: str) -> bool:
        return self._is_folder(path) is False

    def isdir(self, path: str) -> bool:
        return self._is_folder(path) is True

    def _is_folder(self, path: str) -> bool | None:
        try:
            return self.client.get_file_info(path).isdir
        except FileNotFoundError:
            return None

    def find(self, path: str, maxdepth: int | None = None, **_: Any) -> dict[str, Any]:
        """All below the folder, or with a `maxdepth` what is in it."""
        found = self.client.list_status(path, maxdepth is None)
        return {status.path: self._convert_file_status(status) for status in found}

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        self.client.rename(path1, path2, overwrite=True)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        self.client.mkdirs(path, _FOLDER_MODE, create_parents)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        overwrite: bool = True,
        replication: int | None = None,
        block_size: int | None = None,
        **_: Any,
    ) -> Any:
        if mode == "rb":
            return self.client.read(path)
        return _Written(self.client, path, WriteOptions(block_size, replication, _FILE_MODE, overwrite))


class _Written(BytesIO):
    """A small file, which is written when it is closed.

    hdfs-native 0.14 gives up where a data node doesn't answer when a block begins (it passes over `firstBadLink`), and
    HDFS names that node for minutes after it was lost. So another attempt begins the file anew, with other nodes. Where
    HDFS has no more nodes than a file has replicas, the lost one is always among them: at last one replica is written,
    of which HDFS then makes the others.
    """

    def __init__(self, client: Client, path: str, options: WriteOptions) -> None:
        super().__init__()
        self._client, self._path, self._options = client, path, options

    def close(self) -> None:
        """Write what there is, once."""
        if self.closed:
            return
        content = self.getvalue()
        super().close()
        if self._failure(content, _ATTEMPTS) is None:
            return
        replicas = self._client.get_file_info(self._path).replication
        self._options.replication = 1
        if failure := self._failure(content, _ATTEMPTS_WITH_ONE_REPLICA):
            raise failure
        if replicas is not None:
            self._client.set_replication(self._path, replicas)

    def _failure(self, content: bytes, attempts: int) -> Exception | None:
        """The last attempt's error, None once one succeeds. Raises OSError and RuntimeError if HDFS lets none begin."""
        failure: Exception | None = None
        for _ in range(attempts):
            # hdfs_native.FileWriter closes a file whose write failed, which waits 15 s for a block that nobody has.
            file = self._client.inner.create(self._path, self._options)
            try:
                file.write(content)
                file.close()
                return None
            except (OSError, RuntimeError) as error:
                failure = error
        return failure
