"""Files in shared storage that one of several drivers alone can make, in the way in which Spark makes its own.

On HDFS that is a rename without overwrite. What other storage does, docs/decisions/0039-leader-epochs.md says.
"""

from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.streaming.checkpoint.batch_log import CreateFile
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError

_THERE_ALREADY = "org.apache.hadoop.fs.FileAlreadyExistsException"
"""Its class says that another driver made the file between the look and the rename."""


def creator(spark: SparkSession, checkpoint: Checkpoint) -> CreateFile | None:
    """Makes files of Sluice's in a checkpoint that is a URI; None for a path, which its lock keeps others from."""
    if checkpoint.is_local:
        return None
    if checkpoint.location.startswith("file:"):
        return checkpoint.sluice.create
    return partial(_create, spark, checkpoint)


def _create(spark: SparkSession, checkpoint: Checkpoint, name: str, content: bytes) -> bool:
    context: Any = spark.sparkContext
    jvm = context._jvm  # noqa: SLF001 # PySpark has no public way to Java
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint.location}/sluice/{name}")
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    try:
        files = manager.create(path.getParent(), context._jsc.hadoopConfiguration())  # noqa: SLF001 # see above
        files.mkdirs(path.getParent())
        if files.exists(path):  # in an object store nothing else would notice
            return False
        stream = files.createAtomic(path, False)
        stream.write(content)
        stream.close()
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() == _THERE_ALREADY:
            return False
        raise CheckpointError(f"can't make {name} in {checkpoint.location}: {error.java_exception}") from error
    return True
