"""Jars for checkpoints on S3: Hadoop's client, the modules of Amazon's SDK that it uses, and Sluice's own classes.

`python -m sluice.jvm.object_store` downloads and compiles them; a job whose settings name S3 does so at its start.
"""

from pathlib import Path

from sluice.jvm.compiler import build_jar, java_compiler
from sluice.jvm.jars import JarSet, jars_home, pyspark_jars, run_download_command
from sluice.jvm.java import OLDEST

S3_JARS = JarSet.named("s3", "sluice.jvm.object_store", added_to_pyspark=True)

FILE_MANAGER = "sluice.spark.ObjectStoreFiles"
"""Writes the files of checkpoints, for Spark's `spark.sql.streaming.checkpointFileManagerClass`."""

CREDENTIALS = "sluice.spark.RenewedCredentials"
"""Finds keys, for Hadoop's `fs.s3a.aws.credentials.provider`."""

_SOURCES = Path(__file__).parent / "src"


def object_store_jars() -> list[Path]:
    """The jars, downloaded, checked and compiled at the first call. Raises JarError, JavaError and PluginBuildError."""
    jars = S3_JARS.paths()
    own = jars_home() / "object-store" / "sluice-object-store.jar"
    return [*jars, build_jar(own, [_SOURCES], [*jars, *sorted(pyspark_jars().glob("*.jar"))], OLDEST, java_compiler)]


if __name__ == "__main__":
    run_download_command(S3_JARS, object_store_jars)
