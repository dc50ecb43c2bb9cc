"""Commands beside a broker that takes connections and answers nothing: each ends soon, with a line that names it."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.cli.doctor import run_doctor
from sluice.configs.settings import load_settings
from sluice.kafka_io import client as kafka_client
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.kinds import QuotaKind
from sluice_toolbox import checks
from tests.builders import quota
from tests.commands import invoke

LIMIT = quota(QuotaKind.PRODUCER_BYTE_RATE, 1e6, user="alice")


@pytest.fixture
def config(silent_broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings of a job with a table of quotas."""
    monkeypatch.setattr(kafka_client, "CONNECT_TIMEOUT_MS", 500)
    QuotasTable(str(tmp_path / "quotas"), {}).create([LIMIT], "carol", datetime.now(UTC))
    names = ("quotas", "decisions", "quota_metrics", "dead_letters", "unreadable")
    tables = ", ".join(f"{name}: {tmp_path / name}" for name in names)
    file = tmp_path / "sluice.yaml"
    file.write_text(
        f"kafka: {{bootstrap.servers: '{silent_broker}'}}\n"
        f"enforce: {{checkpoint: {tmp_path / 'checkpoint'}}}\n"
        f"delta: {{{tables}}}\n"
    )
    return file


def test_the_doctor_waits_for_the_error_that_names_the_broker(
    config: Path, silent_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for a broker may take as long as any other answer, and says more than that there is none."""
    monkeypatch.setattr(checks, "ANSWER_S", 0.1)
    lines: list[str] = []

    assert run_doctor(load_settings(config, environment={}), lines.append) == 1

    assert any(line.startswith(f"FAIL  broker: no Kafka broker answers at {silent_broker} (") for line in lines)


@pytest.mark.parametrize(
    "command",
    [
        ("top", "--once"),
        ("top", "--json"),
        ("unmute", "--user", "alice"),
        ("kafka-gateway",),
        ("quotas", "import", "--bootstrap-servers", "{}"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_the_broker_names_it(config: Path, silent_broker: str, command: Sequence[str]) -> None:
    """Kafka's client alone would wait for 30 s."""
    ended = invoke(*(each.format(silent_broker) for each in command), "--config", config, code=1)

    assert ended.error_line.startswith(f"sluice: error: no Kafka broker answers at {silent_broker} (")
    assert int(re.findall(r"timed out after (\d+) ms", ended.error_line)[0]) <= 500


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (("quotas", "describe"), "producer_byte_rate=1000000"),
        (("quotas", "resolve", "--user", "alice"), "1000000"),
        (("quotas", "history"), "carol"),
        (("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=2e6", "--yes"), "Completed"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_command_about_quotas_needs_no_broker(config: Path, command: Sequence[str], answer: str) -> None:
    ended = invoke(*command, "--config", config, code=0)

    assert answer in ended.output


@pytest.mark.parametrize(
    "command",
    [("explain", "--user", "alice"), ("usage",), ("slo",), ("whatif",), ("advise",)],
    ids=lambda value: value[0],
)
def test_a_report_asks_no_broker(config: Path, command: Sequence[str]) -> None:
    ended = invoke(*command, "--config", config, code=None)

    assert "Kafka broker" not in ended.error
