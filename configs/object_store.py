"""Settings of S3 as the variables of the environment that all its clients read, those of Rust and of Java."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

Text = Annotated[str, Meta(min_length=1)]

_SCHEMES = ("s3://", "s3a://")
_ANY_REGION = "us-east-1"
"""The region of stores that have none."""

_SHARED = (
    *("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP", "AWS_EC2_METADATA_DISABLED", "AWS_FORCE_CREDENTIAL_LOAD"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_PROFILE"),
)
"""Variables that are no secrets."""


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Section `s3`; what is null is as the environment says it."""

    endpoint: Text | None
    region: Text | None
    credentials_file: Text | None
    profile: Text | None


def is_s3(location: str) -> bool:
    """True for a URI of S3.

    >>> is_s3("s3://bucket/folder"), is_s3("s3a://bucket/folder"), is_s3("hdfs://host/folder"), is_s3("folder")
    (True, True, False, False)
    """
    return location.startswith(_SCHEMES)


def s3_environment(s3: S3Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that processes need to reach the store, where `environment` doesn't have them with this value.

    Credentials are in none of them: the usual chain finds them, in the environment, a file, or at the machine.
    """
    given = {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": s3.region,
        "AWS_SHARED_CREDENTIALS_FILE": s3.credentials_file,
        "AWS_PROFILE": s3.profile,
    }
    variables = {name: value for name, value in given.items() if value is not None}
    # delta-rs alone needs to be told that it may ask the machine for credentials, and with an endpoint, read files
    defaults = {"AWS_EC2_METADATA_DISABLED": "false", "AWS_FORCE_CREDENTIAL_LOAD": "true"}
    endpoint = variables.get("AWS_ENDPOINT_URL", environment.get("AWS_ENDPOINT_URL"))
    if endpoint is not None:
        region = environment.get("AWS_DEFAULT_REGION", _ANY_REGION)
        defaults |= {"AWS_REGION": region, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
    return {name: value for name, value in defaults.items() if name not in environment} | variables


def shared_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of S3 that are no secrets: executors get them from the driver."""
    return {name: environment[name] for name in _SHARED if name in environment}
