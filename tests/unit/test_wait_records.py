"""The records of the waits topic."""

import pytest

from sluice.state.contract.gateway_topics import WaitRecord
from sluice.state.decisions.wait_records import InvalidWaitError, read_wait, wait_key, wait_value
from sluice.state.quotas.entity import Tags

WAIT = WaitRecord(9_000, 8_000, 1024.0, 2048.5, 1_000, 7)
ALICE = ("producer_byte_rate", Tags(user="alice"))


@pytest.mark.parametrize(
    "tags", [Tags("alice", "app"), Tags("alice"), Tags("", "app"), Tags(), Tags(topic="orders", partition=3)]
)
def test_a_record_is_read_as_it_was_written(tags: Tags) -> None:
    counter = ("producer_byte_rate", tags)

    assert read_wait(wait_key(counter), wait_value(WAIT)) == (counter, WAIT)
    assert read_wait(wait_key(counter), None) == (counter, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, wait_value(WAIT)),
        (b"version", wait_value(WAIT)),
        (b'{"quota":"q","entity":{"user":7}}', wait_value(WAIT)),
        (b'{"entity":{"partition":"3","topic":"orders"},"quota":"q"}', wait_value(WAIT)),
        (b'{"entity":{"topic":7},"quota":"q"}', wait_value(WAIT)),
        (b'{"quota":"q","entity":{"user":"alice"}}', wait_value(WAIT)),  # not in order: the counter would have two keys
        (wait_key(ALICE), b""),
        (wait_key(ALICE), b"\xff"),
        (wait_key(ALICE), b'{"until_ms":9000}'),
        (wait_key(ALICE), b'{"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}"),
        (wait_key(ALICE), wait_value(WaitRecord(900_000_000_000_000_000, 8_000, 1.0, None, 1_000, 7))),
        (wait_key(ALICE), wait_value(WaitRecord(9_000, 2**31, 1.0, None, 1_000, 7))),
        (wait_key(ALICE), wait_value(WaitRecord(500, 8_000, 1.0, None, 1_000, 7))),
    ],
)
def test_what_sluice_would_not_have_written_is_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(InvalidWaitError):
        read_wait(key, value)
