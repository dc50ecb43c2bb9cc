"""Properties of Spark and of Hadoop's client for checkpoints on S3."""

from collections.abc import Mapping

from sluice_shared_storage.jars import CREDENTIALS, FILE_MANAGER
from sluice_shared_storage.settings import shared_variables

_S3A = "spark.hadoop.fs.s3a."
_S3 = {
    # In place of a draft that is copied: the store lets one driver alone make a file.
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    # Spark gives S3A the keys of its environment; the last one has files, web identities and the machine's own.
    _S3A + "aws.credentials.provider": (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        f",{CREDENTIALS}"
    ),
    # A second file of state for each, beside the checksum that the store itself keeps.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # The default reads ahead in threads of its own, for large files; what Spark reads here is small.
    _S3A + "input.stream.type": "classic",
    # The other way has a client of its own, which takes the 100 (Continue) of a store for the answer: no snapshot of
    # the state was ever there.
    _S3A + "optimized.copy.from.local.enabled": "false",
    # Spark reads a state from its last snapshot and each change since, one after the other; by default it makes a
    # snapshot each minute.
    "spark.sql.streaming.stateStore.maintenanceInterval": "20s",
    # Requests that only uphold the look of folders.
    _S3A + "performance.flags": "create,delete,mkdir",
}


def s3_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Properties of Hadoop's client of S3, for what the environment says to the other clients."""
    properties = dict(_S3)
    if endpoint := environment.get("AWS_ENDPOINT_URL"):
        properties |= {_S3A + "endpoint": endpoint, _S3A + "path.style.access": "true"}
    if region := environment.get("AWS_REGION"):
        properties[_S3A + "endpoint.region"] = region
    return properties | {f"spark.executorEnv.{name}": value for name, value in shared_variables(environment).items()}
