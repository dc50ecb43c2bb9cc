"""Files of Sluice's that one of several drivers alone can make, by the ways in which Spark makes its own."""

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.process.format import error_line
from sluice.streaming.errors import CheckpointStorageError
from sluice.streaming.java_bridge import hadoop_configuration, java

_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
"""Raised, or a subclass of Spark's, when another driver created the file between our existence check and our rename."""


def create_by_spark(spark: SparkSession, uri: str, name: str, content: bytes) -> bool:
    """Make a file where a rename doesn't overwrite, as on HDFS. Raises CheckpointStorageError."""
    path = _path(spark, uri, name)
    manager = java(spark).org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    try:
        files = manager.create(path.getParent(), hadoop_configuration(spark))
        files.mkdirs(path.getParent())
        return not files.exists(path) and _written(files, path, content)
    except Py4JJavaError as error:
        return _refused(spark, error, uri, name)


def create_in_store(spark: SparkSession, uri: str, name: str, content: bytes) -> bool:
    """Make an object by a conditional write. Raises CheckpointStorageError."""
    path = _path(spark, uri, name)
    try:
        files = java(spark).sluice.spark.ObjectStoreFiles(path.getParent(), hadoop_configuration(spark))
        return _written(files, path, content)
    except Py4JJavaError as error:
        return _refused(spark, error, uri, name)


def _path(spark: SparkSession, uri: str, name: str) -> Any:
    return java(spark).org.apache.hadoop.fs.Path(f"{uri}/sluice/{name}")


def _written(files: Any, path: Any, content: bytes) -> bool:
    stream = files.createAtomic(path, False)
    stream.write(content)
    stream.close()
    return True


def _refused(spark: SparkSession, error: Py4JJavaError, uri: str, name: str) -> bool:
    """False if another driver has made the file. Raises CheckpointStorageError."""
    if java(spark).py4j.reflection.TypeUtil.isInstanceOf(_EXISTS, error.java_exception):
        return False
    raise CheckpointStorageError(f"can't make {name} in {uri}: {error_line(error.java_exception)}") from error
