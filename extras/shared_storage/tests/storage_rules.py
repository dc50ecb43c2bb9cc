"""Rules for the storage that machines share, on HDFS and on S3 alike."""

from datetime import UTC, datetime

import pytest

from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError
from tests.builders import quota

QUOTA = quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user="alice")


def assert_the_quotas_table_is_altered(url: str) -> None:
    """A new table in this folder is created, and another reader finds its quota."""
    table = QuotasTable(f"{url}/quotas")
    assert not table.exists()

    table.create([QUOTA], "test", datetime.now(UTC))
    assert QuotasTable(table.path).entries() == [QUOTA]


def assert_files_are_there_replaced_and_gone(checkpoint: Checkpoint) -> None:
    """Files of a new checkpoint are there once written, replaced in one step, and gone once removed."""
    files = checkpoint.sluice
    assert (checkpoint.is_new(), files.read("a.json"), files.names("quotas")) == (True, None, [])

    files.write("a.json", b"old")
    files.write("a.json", b"new")
    files.write("quotas/1.msgpack", b"x" * 100_000)
    assert (checkpoint.is_new(), files.read("a.json"), files.names("quotas")) == (False, b"new", ["1.msgpack"])
    assert checkpoint.size_bytes() == 100_003

    files.remove("a.json")
    files.remove("a.json")
    assert files.read("a.json") is None


def assert_storage_that_does_not_answer_is_an_error(checkpoint: Checkpoint, reason: str = "") -> None:
    """No look at a checkpoint in storage that is away finds it new or empty; `reason` is a pattern of the error."""
    scheme = checkpoint.location.partition("://")[0]
    with pytest.raises(CheckpointError, match=rf"can't read quotas/1\.msgpack in {scheme}://.*{reason}"):
        checkpoint.sluice.read("quotas/1.msgpack")
    for looked_up in (checkpoint.is_new, checkpoint.size_bytes, lambda: checkpoint.sluice.names("quotas")):
        with pytest.raises(CheckpointError, match=f"can't read {scheme}://"):
            looked_up()
