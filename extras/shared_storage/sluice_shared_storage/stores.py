"""The stores of checkpoints on HDFS, on S3 and in mounted folders. Clients are imported when they are used."""

import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from sluice.streaming.checkpoint.store import CheckpointStore, CreateFile, Leadership
from sluice.streaming.errors import CheckpointStorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.configs.settings import Settings
    from sluice.jvm.jars import JarSet


class SharedStore(CheckpointStore):
    """A store whose drivers take a lease in a Kafka topic: no file of it can be locked."""

    def file_creator(self, spark: "SparkSession", uri: str) -> CreateFile:
        """By Spark's own way: a rename without overwrite."""
        from sluice_shared_storage.created_files import create_by_spark

        return partial(create_by_spark, spark, uri)

    def leadership(self, settings: "Settings", uri: str, *, standby: bool) -> Leadership:
        """By a lease."""
        from sluice_shared_storage.leadership import KafkaLeadership

        return KafkaLeadership(settings.topics, settings.kafka, uri, standby)


class MountedFolders(SharedStore):
    """`file://` for folders that all machines have mounted, and each scheme that PyArrow and Hadoop know alike."""

    def open(self, uri: str) -> tuple[fs.FileSystem, str]:
        """As PyArrow finds it."""
        filesystem, path = fs.FileSystem.from_uri(uri)
        return filesystem, path

    def file_creator(self, spark: "SparkSession", uri: str) -> CreateFile:
        """A hard link, which only one driver can make."""
        if not uri.startswith("file:"):
            return super().file_creator(spark, uri)
        return partial(create_by_link, uri)


class Hdfs(SharedStore):
    """`hdfs://`, by a client that needs no Java."""

    def open(self, uri: str) -> tuple[fs.FileSystem, str]:
        """By hdfs-native."""
        from sluice_shared_storage.hdfs import open_hdfs

        return open_hdfs(uri)


class S3(SharedStore):
    """`s3://` and `s3a://`."""

    writes_whole = True

    def location(self, uri: str) -> str:
        """By Hadoop's client, whose scheme is s3a."""
        return uri.replace("s3://", "s3a://", 1)

    def open(self, uri: str) -> tuple[fs.FileSystem, str]:
        """By delta-rs's client."""
        from sluice_shared_storage.object_store import open_s3

        return open_s3(uri)

    def file_creator(self, spark: "SparkSession", uri: str) -> CreateFile:
        """By a conditional write."""
        from sluice_shared_storage.created_files import create_in_store

        return partial(create_in_store, spark, uri)

    def properties(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Those of Hadoop's client."""
        from sluice_shared_storage.spark_properties import s3_properties

        return s3_properties(environment)

    def jar_sets(self) -> Sequence["JarSet"]:
        """Hadoop's client and what it needs."""
        from sluice_shared_storage.jars import S3_JARS

        return (S3_JARS,)

    def jars(self) -> Sequence[Path]:
        """The same with Sluice's own."""
        from sluice_shared_storage.jars import object_store_jars

        return object_store_jars()


def create_by_link(uri: str, name: str, content: bytes) -> bool:
    """Make a file of Sluice's in a folder `file://`, in one step. Raises CheckpointStorageError."""
    _, path = fs.FileSystem.from_uri(uri)
    target = Path(path, "sluice", name)
    draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}.draft")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        try:
            os.link(draft, target)
        finally:
            draft.unlink()
    except FileExistsError:
        return False
    except OSError as error:
        raise CheckpointStorageError(
            f"can't write {name} in {uri}: {error}; give the job a checkpoint folder it can write"
        ) from error
    return True
