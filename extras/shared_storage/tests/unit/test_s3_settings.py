"""Section `s3`, and settings without the extra that has it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.configs import extras
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import load_settings, reach_stores, with_absolute_paths
from sluice.streaming.checkpoint.store import store_of
from sluice_shared_storage.settings import S3Settings
from sluice_shared_storage.spark_properties import s3_properties

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        file = tmp_path / "settings.yaml"
        file.write_text(text)
        return file

    return write


def error_of(file: Path) -> str:
    with pytest.raises(InvalidSettingsError) as caught:
        load_settings(file, {})
    return str(caught.value).removeprefix(f"{file}: ")


def test_all_clients_of_s3_find_the_store_that_the_settings_name(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", environment := {"AWS_ACCESS_KEY_ID": "key", "AWS_REGION": "eu-west-1"})
    s3 = "s3: {endpoint: 'http://store:9000', credentials_file: /keys, profile: sluice}\n"

    reach_stores(load_settings(write(s3)))
    assert "AWS_ENDPOINT_URL" not in environment  # nothing is on S3

    reach_stores(load_settings(write(s3 + "delta: {quotas: 's3://bucket/quotas'}\n")))
    assert environment == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://store:9000",
        "AWS_ALLOW_HTTP": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/keys",
        "AWS_PROFILE": "sluice",
        "AWS_EC2_METADATA_DISABLED": "false",
        "AWS_FORCE_CREDENTIAL_LOAD": "true",
    }
    properties = s3_properties(environment)
    assert properties["spark.hadoop.fs.s3a.endpoint"] == "http://store:9000"
    assert properties["spark.executorEnv.AWS_SHARED_CREDENTIALS_FILE"] == "/keys"
    assert not [name for name in properties if "ACCESS_KEY" in name]


def test_a_store_without_regions_gets_one_and_amazons_own_is_left_to_its_clients() -> None:
    here = {"AWS_EC2_METADATA_DISABLED": "true"}

    assert S3Settings("https://store").environment(["s3://bucket/e"], here)["AWS_REGION"] == "us-east-1"
    assert S3Settings().environment(["s3://bucket/e"], here) == {"AWS_FORCE_CREDENTIAL_LOAD": "true"}


@pytest.mark.parametrize("path", ["a?b", "a#b", "a%20b", "a b", "[a]", "a//b", "../a", ""])
def test_a_place_on_s3_has_characters_that_all_its_clients_read_alike(write: Write, path: str) -> None:
    """delta-rs decodes `%20` and ends at `?`; Spark does neither."""
    assert error_of(write(f"delta: {{quotas: 's3://bucket/{path}'}}\n")) == (
        f'delta.quotas is "s3://bucket/{path}"; expected s3://BUCKET/PATH, with letters, digits and . _ - = in the path'
    )


@pytest.mark.parametrize("location", ["s3://bucket/e", "s3a://bucket/e"])
def test_jars_of_s3_are_for_checkpoints_there_alone(location: str) -> None:
    store, mounted = store_of(location), store_of("file:///mnt/e")
    assert store is not None
    assert [jars.name for jars in store.jar_sets()] == ["s3"]
    assert mounted is not None
    assert not mounted.jar_sets()
    assert store_of("/var/lib/e") is None


def test_the_file_of_credentials_is_from_the_root(write: Write) -> None:
    settings = load_settings(write("s3: {credentials_file: keys}\n"))
    assert with_absolute_paths(settings).section(S3Settings).credentials_file == str(Path.cwd() / "keys")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("enforce: {checkpoint: 's3://b/e'}\n", 'enforce.checkpoint is "s3://b/e"; storage by URI (s3://) is'),
        ("delta: {quotas: 'hdfs://name/q'}\n", 'delta.quotas is "hdfs://name/q"; storage by URI (hdfs://) is'),
        ("audit: {checkpoint: 'file:///mnt/a'}\n", 'audit.checkpoint is "file:///mnt/a"; storage by URI (file://) is'),
        ("s3: {region: eu-west-1}\n", "section s3 is"),
    ],
)
def test_without_the_extra_settings_say_what_to_install(
    write: Write, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    extras.sections.cache_clear()
    monkeypatch.setattr(extras, "entry_points", lambda group: [])  # noqa: ARG005 # as of an environment without extras
    try:
        found = error_of(write(text))
    finally:
        extras.sections.cache_clear()
    assert found == f"{said} of the extra shared-storage; pip install 'sluice-kafka[shared-storage]'"
