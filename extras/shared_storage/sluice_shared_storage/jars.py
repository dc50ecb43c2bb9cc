"""Jars for checkpoints on S3: Hadoop's client, the modules of Amazon's SDK that it uses, and Sluice's own classes.

`python -m sluice_shared_storage.jars` downloads them; a job whose settings name S3 does so at its start.
"""

from pathlib import Path

from sluice.jvm.jars import JarSet, built_jar, run_download_command

_FOLDER = Path(__file__).resolve().parent

S3_JARS = JarSet.named("s3", "sluice_shared_storage.jars", added_to_pyspark=True, folder=_FOLDER)

BUILT = _FOLDER / "built"
"""The folder of Sluice's own jar: the wheel has it, and ./scripts/setup makes that of a checkout."""

JAR_NAME = "sluice-object-store.jar"

FILE_MANAGER = "sluice.spark.ObjectStoreFiles"
"""Writes the files of checkpoints, for Spark's `spark.sql.streaming.checkpointFileManagerClass`."""

CREDENTIALS = "sluice.spark.RenewedCredentials"
"""Finds keys, for Hadoop's `fs.s3a.aws.credentials.provider`."""


def object_store_jars() -> list[Path]:
    """The jars, downloaded and checked at the first call. Raises JarError, also where Sluice's own was not built."""
    own = built_jar(JAR_NAME, BUILT, "sluice-kafka-shared-storage")
    return [*S3_JARS.paths(), own]


if __name__ == "__main__":
    run_download_command(S3_JARS)
