"""The doctor: one line a check, that says what is well and how to mend what isn't, and changes nothing."""

import dataclasses
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from configs.settings import Properties, Settings, load_settings
from sinks import topics
from sinks.errors import KafkaUnavailableError, QuotasTableError
from sinks.quotas_table import QuotasTable
from streaming import doctor
from streaming.checkpoint import CheckpointFolder, check_origin
from streaming.errors import CheckError, CheckpointError, JarError


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The defaults, with every folder below tmp_path and a broker address where nobody listens."""
    monkeypatch.setattr(topics, "CONNECT_TIMEOUT_MS", 200)
    defaults = load_settings(environment={})
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    return dataclasses.replace(
        defaults,
        kafka=Properties({"bootstrap.servers": address}),
        enforce=dataclasses.replace(defaults.enforce, checkpoint=str(tmp_path / "checkpoint")),
        delta=dataclasses.replace(defaults.delta, quotas=str(tmp_path / "quotas")),
    )


def _with_shards(settings: Settings, shards: int) -> Settings:
    return dataclasses.replace(settings, state=dataclasses.replace(settings.state, shards=shards))


def test_every_check_is_one_line_and_any_failure_is_exit_1(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    lines: list[str] = []

    exit_code = doctor.run_doctor(settings, lines.append)

    verdicts = {line[6:].split(":")[0]: line[:6].strip() for line in lines}
    verdicts.pop("java")  # a machine without Java runs these tests too
    assert verdicts == {
        "python": "ok",
        "jars of Spark": "FAIL",
        "jars of the embedded broker": "FAIL",
        "broker": "FAIL",
        "checkpoint": "ok",
        "quotas table": "FAIL",
        "sizing": "ok",
    }
    assert not any("\n" in line for line in lines)
    assert exit_code == 1


def test_missing_jars_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))

    with pytest.raises(JarError, match=r"\.jar of configs/jars\.sha256 is missing; .* run \./scripts/setup"):
        doctor.check_jars("spark")


def test_sizing_says_what_the_frozen_numbers_mean(settings: Settings) -> None:
    enforce = dataclasses.replace(settings.enforce, shuffle_partitions=12)

    found = doctor.check_sizing(_with_shards(dataclasses.replace(settings, enforce=enforce), 64))

    assert found.startswith("64 shards; tasks that work on them: 12, more than 64 would be idle; on ")
    assert found.endswith(" s for each million known entities")


def test_a_broker_that_does_not_answer_is_named(settings: Settings) -> None:
    with pytest.raises(KafkaUnavailableError, match=settings.kafka["bootstrap.servers"]):
        doctor.check_broker(settings)


def test_a_new_checkpoint_is_fine_and_stays_untouched(settings: Settings) -> None:
    assert doctor.check_checkpoint(settings) == f"{settings.enforce.checkpoint} is new"
    assert not Path(settings.enforce.checkpoint).exists()


def test_a_checkpoint_tells_what_it_was_made_with(settings: Settings) -> None:
    check_origin(CheckpointFolder(settings.enforce.checkpoint), settings)

    assert f'"shards":{settings.state.shards}' in doctor.check_checkpoint(settings)


def test_a_checkpoint_of_another_shard_count_fails(settings: Settings) -> None:
    check_origin(CheckpointFolder(settings.enforce.checkpoint), _with_shards(settings, 7))

    with pytest.raises(CheckpointError, match=r"was made with state\.shards = 7"):
        doctor.check_checkpoint(settings)


def test_a_checkpoint_below_a_file_fails(settings: Settings) -> None:
    checkpoint = Path(settings.enforce.checkpoint)
    checkpoint.write_text("a file is in the way")

    with pytest.raises(CheckError, match=f"{checkpoint} is no folder that can be written to; set enforce.checkpoint"):
        doctor.check_checkpoint(settings)


def test_a_missing_quotas_table_fails(settings: Settings) -> None:
    with pytest.raises(QuotasTableError, match="no quotas table at"):
        doctor.check_quotas_table(settings)


def test_a_readable_quotas_table_tells_its_version(settings: Settings) -> None:
    QuotasTable(settings.delta.quotas).create([], "test", datetime(2026, 1, 1, tzinfo=UTC))

    assert doctor.check_quotas_table(settings) == f"{settings.delta.quotas} is at version 0 with 0 quotas"
