"""The command `sluice unmute`: what it asks the job, and what it says of the answer."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sluice.kafka_io.topic_reader import TopicReader
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.contract.records import Decision, SourceRecord, Unmute, UnmutedEntity
from sluice.state.errors import InvalidRequestError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, bounded_name
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Membership, QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.wire import Source, dead_letter_record
from sluice_toolbox.errors import UnmuteError
from sluice_toolbox.recent_usage import Usage
from sluice_toolbox.unmute import client_ids_apart, run_unmute, wait_for_answer
from tests.builders import DEFAULTS, T0, changed, quota
from tests.commands import invoke
from tests.micro_batches import MicroBatches

SETTINGS = PipelineSettings.of(DEFAULTS)


def test_the_answer_names_the_counters_with_a_limit_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A quota that others have is reset too: its line would name a limit that this client never had."""
    table = QuotasTable(str(tmp_path))
    others = [quota(QuotaKind.CONSUMER_BYTE_RATE, 5.0, user="bob")]
    alices = [quota(QuotaKind.PRODUCER_BYTE_RATE, 10.0, user="alice")]
    table.create([*others, *alices], "test", datetime.now(UTC))
    settings = changed(DEFAULTS, "delta", quotas=str(tmp_path))

    def answered(quotas: list[QuotaEntry]) -> list[str]:
        record = b'{"control": "unmute", "entity": {"user": "alice", "client_id": "app"}}', Source("r", 0, 0, T0)
        (answer,) = MicroBatches(SETTINGS).run([record], Quotas(quotas), decided_at_ms=T0)
        decision = msgspec.json.decode(answer.value, type=Decision)
        monkeypatch.setattr("sluice_toolbox.unmute.answered", lambda *_: decision)
        return list(run_unmute(settings, Unmute("unmute", UnmutedEntity("alice", "app"), None), 1))

    assert answered([*others, *alices]) == ["producer_byte_rate: the counter of user 'alice' is reset"]
    assert answered(others) == ["consumer_byte_rate: the counter of user 'alice' is reset"]


def test_a_tenant_that_is_not_there_is_said_and_nothing_is_published(tmp_path: Path) -> None:
    member = QuotaEntry(QuotaEntity(tenant="shop", user="shop-*"), Membership.MEMBER, 1.0)
    limit = quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, tenant=DEFAULT)
    QuotasTable(str(tmp_path)).create([member, limit], "test", datetime.now(UTC))
    settings = changed(DEFAULTS, "delta", quotas=str(tmp_path))

    (said,) = run_unmute(settings, Unmute("unmute", UnmutedEntity(tenant="shpo"), None), 1)

    assert "tenant 'shpo' has no members; did you mean 'shop'?" in said
    assert said.endswith("; nothing to reset")


def apart(unmuted: UnmutedEntity, *entities: QuotaEntity, used: tuple[str, ...] = ()) -> list[str]:
    """The answer on client-ids with counters of their own; `used` has the client-ids that were charged lately."""
    entries = [QuotaEntry(entity, QuotaKind.PRODUCER_BYTE_RATE, 10.0) for entity in entities]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    usage = [Usage(bounded_name(unmuted.user or ""), bounded_name(name), None, -1, "", at, None, 1.0) for name in used]
    usage.append(Usage("bob", "bobs", None, -1, "", at, None, 1.0))
    return list(client_ids_apart(Unmute("unmute", unmuted), entries, lambda _: usage))


def test_client_ids_with_counters_of_their_own_are_named() -> None:
    """By their quotas, or because every client-id has one: then as far as they were seen lately."""
    alice, app = QuotaEntity(user="alice"), QuotaEntity(user="alice", client_id="app")
    each, others = QuotaEntity(user="alice", client_id=DEFAULT), QuotaEntity(user="bob", client_id="bobs")
    unmuted = UnmutedEntity(user="alice")
    end = " of this user has a counter of its own, not reset; name it with --client-id"

    assert apart(unmuted, alice, others, used=("web",)) == []
    assert apart(unmuted, alice, app, others) == [f"producer_byte_rate: client-id 'app'{end}"]
    assert apart(unmuted, each, app, used=("web",)) == [
        f"producer_byte_rate: every client-id, such as 'app', 'web',{end}"
    ]
    assert apart(unmuted, each) == [f"producer_byte_rate: every client-id{end}"]
    (many,) = apart(unmuted, each, used=tuple("abcdefg"))
    assert "'d', 'e' and 2 more," in many
    assert apart(UnmutedEntity(user="alice", client_id="app"), each) == []


def test_client_ids_of_a_name_that_counters_have_as_a_hash_are_named() -> None:
    """Usage has a hash for a name of more than 256 characters, a quota the whole name."""
    user, client_id = "u" * 257, "c" * 257
    each, app = QuotaEntity(user=user, client_id=DEFAULT), QuotaEntity(user=user, client_id=client_id)

    (line,) = apart(UnmutedEntity(user=user), each, app, used=("web", client_id))

    assert line.startswith("producer_byte_rate: every client-id, such as 'cccc")
    assert line.count("'cccc") == 1
    assert "'web', of this user has a counter of its own" in line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "nobody to unmute; give --user, --client-id or both, --topic with --partition, or --tenant"),
        (["--user", "a", "--topic", "t"], "entity.topic: comes with a client"),
        (["--user", "a", "--quota", "bytes"], "quota: is 'bytes'; expected one of producer_byte_rate, "),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_2(arguments: list[str], line: str) -> None:
    ended = invoke("unmute", *arguments, code=2)

    assert ended.error_line.startswith(f"sluice: error: {line}")


class Read(TopicReader):
    """A topic that has these values and nothing more."""

    def __init__(self, *values: bytes) -> None:
        self._values = list(values)

    def read(self, wait_ms: int = 0) -> Iterator[tuple[int, Any]]:  # noqa: ARG002 - the reader has it
        values, self._values = self._values, []
        yield from ((0, SimpleNamespace(value=value)) for value in values)


def test_a_control_record_that_the_job_refuses_ends_the_command_with_the_reason() -> None:
    """The dead letter has the topic's id, which the command isn't told."""
    settings, error = SETTINGS._replace(topic_id="A"), InvalidRequestError("entity", "is empty", "a client")
    source = Source(settings.requests_topic, 0, 7, T0)
    letter = dead_letter_record(settings.dead_letters_topic, b"{}", source, error, 4096, settings.topic_id)

    with pytest.raises(UnmuteError, match="refused the control record: entity: is empty"):
        wait_for_answer(Read(), Read(letter.value), SourceRecord(source.topic, 0, 7), timeout_s=60)
