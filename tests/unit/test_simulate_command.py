"""`sluice simulate` as a user runs it."""

import json
from pathlib import Path

from tests.commands import simulate

QUOTAS = "- {entity: {user: alice}, quotas: {controller_mutation_rate: 5}}\n"
SETTINGS = "quota: {controller.quota.window.num: 100}\n"


def files(folder: Path) -> list[str]:
    (folder / "quotas.yaml").write_text(QUOTAS)
    (folder / "settings.yaml").write_text(SETTINGS)
    return ["--quotas", str(folder / "quotas.yaml"), "--config", str(folder / "settings.yaml")]


def event(partitions: int, at_ms: int) -> bytes:
    mutations = [{"topic": "t", "partitions": partitions}]
    return json.dumps({"api": "CreateTopics", "user": "alice", "timestamp_ms": at_ms, "mutations": mutations}).encode()


def test_it_prints_a_decision_a_line_in_file_order(tmp_path: Path) -> None:
    """KIP-599's example: 500 tokens, 560 charged, 12 s of wait."""
    events = tmp_path / "events.jsonl"
    events.write_bytes(b"\n".join([event(560, 0), b"", event(1, 0), event(1, 12_000)]) + b"\n")

    done = simulate(*files(tmp_path), "--events", str(events))

    decisions = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [decision["verdict"] for decision in decisions] == ["ALLOW", "REJECT", "ALLOW"]
    assert decisions[1]["throttle_time_ms"] == 12_000
    assert [decision["decision_id"] for decision in decisions] == [f"quota-requests-0-{n}" for n in range(3)]


def test_events_that_cannot_be_decided_go_to_standard_error(tmp_path: Path) -> None:
    """Decisions and dead letters together are the events; nothing stops at the bad one."""
    done = simulate(*files(tmp_path), "--events", "-", stdin=b"nonsense\n" + event(1, 0))

    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert json.loads(done.stderr)["error"]["field"] == "value"


def test_an_event_without_a_time_happens_with_the_one_before(tmp_path: Path) -> None:
    """There is no Kafka record to take the time from."""
    timeless = b'{"api": "Metadata"}'

    done = simulate(*files(tmp_path), "--events", "-", stdin=event(1, 5000) + b"\n" + timeless)

    assert json.loads(done.stdout.splitlines()[1])["timestamp_ms"] == 5000


def test_a_missing_file_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """No traceback."""
    done = simulate(*files(tmp_path), "--events", str(tmp_path / "none"))

    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("sluice: error: ")
    assert len(done.stderr.splitlines()) == 1


def test_bad_quotas_and_bad_settings_are_one_line_and_exit_2(tmp_path: Path) -> None:
    """The line names what is wrong, where, and what would be right."""
    files(tmp_path)
    (tmp_path / "bad-quotas.yaml").write_text("- {entity: {user: alice}, quotas: {controller_rate: 5}}\n")
    (tmp_path / "bad-settings.yaml").write_text("quota: {quota.window.nums: 5}\n")
    good_quotas = ["--quotas", str(tmp_path / "quotas.yaml")]

    for arguments in (
        ["--quotas", str(tmp_path / "bad-quotas.yaml")],
        [*good_quotas, "--config", str(tmp_path / "bad-settings.yaml")],
    ):
        done = simulate(*arguments, "--events", "-")

        assert (done.returncode, done.stdout) == (2, b"")
        assert len(done.stderr.splitlines()) == 1
        assert b"bad-" in done.stderr
