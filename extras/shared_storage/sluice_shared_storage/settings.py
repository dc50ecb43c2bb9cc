"""Section `s3`, as the variables of the environment that all clients of S3 read, those of Rust and of Java."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.extras import Section

Text = Annotated[str, Meta(min_length=1)]

_SCHEMES = ("s3://", "s3a://")
_LOCATION = re.compile(r"s3a?://[A-Za-z0-9._-]+(/[A-Za-z0-9_=][A-Za-z0-9._=-]*)+/?")
_ANY_REGION = "us-east-1"
"""The region of stores that have none."""

_SHARED = (
    *("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP", "AWS_EC2_METADATA_DISABLED", "AWS_FORCE_CREDENTIAL_LOAD"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_PROFILE"),
)
"""Variables that are no secrets."""


@dataclass(frozen=True, slots=True)
class S3Settings(Section):
    """Section `s3`; what is null is as the environment says it."""

    paths: ClassVar[tuple[str, ...]] = ("credentials_file",)

    endpoint: Text | None = None
    region: Text | None = None
    credentials_file: Text | None = None
    profile: Text | None = None

    def check(self, places: Mapping[str, str]) -> None:
        """Clients differ in how they read other characters of a URI; and Spark has one way to write all checkpoints."""
        for key, location in places.items():
            if is_s3(location) and not _LOCATION.fullmatch(location):
                raise InvalidSettingsError(
                    f"{key} is {_shown(location)}; expected s3://BUCKET/PATH, with letters, digits and . _ - ="
                    " in the path"
                )
        if self.endpoint is not None and not self.endpoint.startswith(("https://", "http://")):
            raise InvalidSettingsError(
                f"s3.endpoint is {_shown(self.endpoint)}; expected null, or a URL such as https://store:9000"
            )
        enforce, audit = places["enforce.checkpoint"], places["audit.checkpoint"]
        if is_s3(enforce) != is_s3(audit):
            raise InvalidSettingsError(
                f"enforce.checkpoint is {_shown(enforce)} and audit.checkpoint {_shown(audit)};"
                " expected both on S3, or none"
            )

    def environment(self, places: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
        """The variables that processes need to reach the store, if any place is there.

        Credentials are in none of them: the usual chain finds them, in the environment, a file, or at the machine.
        """
        if not any(map(is_s3, places)):
            return {}
        given = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region,
            "AWS_SHARED_CREDENTIALS_FILE": self.credentials_file,
            "AWS_PROFILE": self.profile,
        }
        variables = {name: value for name, value in given.items() if value is not None}
        # delta-rs alone needs to be told that it may ask the machine for credentials, and with an endpoint, read files
        defaults = {"AWS_EC2_METADATA_DISABLED": "false", "AWS_FORCE_CREDENTIAL_LOAD": "true"}
        endpoint = variables.get("AWS_ENDPOINT_URL", environment.get("AWS_ENDPOINT_URL"))
        if endpoint is not None:
            region = environment.get("AWS_DEFAULT_REGION", _ANY_REGION)
            defaults |= {"AWS_REGION": region, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
        return {name: value for name, value in defaults.items() if name not in environment} | variables


def _shown(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[:80]


def is_s3(location: str) -> bool:
    """True for a URI of S3.

    >>> is_s3("s3://bucket/folder"), is_s3("s3a://bucket/folder"), is_s3("hdfs://host/folder"), is_s3("folder")
    (True, True, False, False)
    """
    return location.startswith(_SCHEMES)


def shared_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of S3 that are no secrets: executors get them from the driver."""
    return {name: environment[name] for name in _SHARED if name in environment}
