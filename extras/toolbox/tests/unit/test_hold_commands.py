"""`sluice quotas hold` and `release`: they return when what they say is in force, and refuse what can't be."""

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import ClassVar

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from quota_shell import Shell, empty_table
from recorded import event_at, simulated, write_decisions
from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.kafka_io.kafka_python import FetchedRecord
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import DecidedHeartbeat, Overrides, Sums
from sluice.state.contract.records import MAX_TIMESTAMP_MS, CountedEntity
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.limits import overrides_key, overrides_value
from sluice_reading.holds_table import HoldsTable
from sluice_reading.operator_holds import MAX_LASTING_MS, holds_at
from sluice_reading.times import to_ms
from sluice_toolbox import in_force
from sluice_toolbox.operator_holds import NONE_TAKEN, OperatorHolds
from tests.builders import hold_of, member
from tests.commands import invoke


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return empty_table(tmp_path)


class Said(AbstractContextManager["Said"]):
    """Stands for the topics: the job's record by the table of holds, and the heartbeats of two brokers and a proxy."""

    table: HoldsTable
    decider: OperatorHolds | None
    behind: ClassVar[set[str]]
    gateways: ClassVar[tuple[str, ...]]

    def __init__(self, _: object, topic: str, since_ms: int | None = None, *, fenced: bool = False) -> None:
        assert (since_ms is not None) | fenced
        self._topic = topic

    def __exit__(self, *_: object) -> None:
        pass

    def unread(self) -> None:
        pass

    def read(self, _: int) -> Iterator[tuple[int, FetchedRecord]]:
        command = 0 if self.decider is None else self.decider.decide(now_ms()).command
        if self._topic == "quota-limits" and self.decider is not None:
            yield 0, FetchedRecord(0, overrides_key("operator"), overrides_value(Overrides(1, 1, 1, command=command)))
        for name in self.gateways if self._topic == "quota-sums" else ():
            beat = DecidedHeartbeat(
                name, "", 0, command=0 if name in self.behind else command, is_broker=name[0] == "b"
            )
            yield 0, FetchedRecord(0, b"", msgspec.json.encode(Sums(heartbeat=beat)))


@pytest.fixture
def said(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> type[Said]:
    """A job and three gateways that have what the table says in force at once."""
    Said.table, Said.behind = HoldsTable(shell.table.path), set()
    Said.gateways = ("broker-1-a", "broker-2-a", "proxy-9")
    Said.decider = OperatorHolds(Said.table.commands)
    monkeypatch.setattr(in_force, "TopicReader", Said)
    monkeypatch.setattr(in_force, "MISSED_MS", 0)
    monkeypatch.setattr(in_force, "HEARTBEAT_MS", 0)
    return Said


@pytest.mark.usefixtures("said")
class TestHold:
    """`sluice quotas hold` and `release`."""

    HOLD = "hold --client-id app --for 10m --reason 'it floods'"

    def test_it_returns_when_it_is_in_force_and_says_where_it_is_not(self, shell: Shell, said: type[Said]) -> None:
        assert shell.run(self.HOLD).output == (
            "Holding client-id 'app' for 10m, in force at 2 of 2 brokers and 1 of 1 other gateways;"
            " `sluice quotas release` ends it.\n"
        )
        said.behind = {"broker-2-a"}
        behind = shell.run("release --client-id app --timeout 0.3")
        assert (behind.code, behind.output) == (1, "")
        assert "in force at 1 of 2 brokers and 1 of 1 other gateways only: not at broker-2 after" in behind.error
        said.behind, said.decider = set(), None
        elsewhere = shell.run(f"{self.HOLD} --timeout 0.3")
        assert elsewhere.code == 1
        assert "written, but no job has taken it: one answers, but reads another table" in elsewhere.error
        assert len(said.table.commands()) == 3

    @pytest.mark.parametrize(("heartbeat_ms", "timeout_s"), [(50, 60.0), (60_000, 0.3)])
    def test_one_gateway_alone_is_enough_however_often_or_late_it_is_heard(
        self, shell: Shell, said: type[Said], monkeypatch: pytest.MonkeyPatch, heartbeat_ms: int, timeout_s: float
    ) -> None:
        """Each of its heartbeats was taken for the first one, after which others are waited for."""
        said.gateways = ("proxy-9",)
        monkeypatch.setattr(in_force, "HEARTBEAT_MS", heartbeat_ms)

        held = shell.run(f"{self.HOLD} --timeout {timeout_s}")

        assert "in force at 1 of 1 other gateways;" in held.output

    def test_without_kafka_it_is_written_and_says_that_nobody_knows_more(
        self, shell: Shell, said: type[Said], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unreachable(_: Said) -> Said:
            raise KafkaUnavailableError("no broker answers")

        monkeypatch.setattr(said, "__enter__", unreachable)
        ended = shell.run(self.HOLD)
        assert (ended.code, ended.output) == (1, "")
        assert "written, but Kafka doesn't say whether it is in force (no broker answers)" in ended.error
        assert len(said.table.commands()) == 1

    def test_a_name_that_nobody_was_seen_with_is_asked_about(self, shell: Shell, tmp_path: Path) -> None:
        """While decisions are read: a hold of a misspelt name would be said to be in force, and stop nobody."""
        decisions, settings = tmp_path / "decisions", tmp_path / "job.yaml"
        settings.write_text(f"delta: {{decisions: {decisions}}}\n")
        write_decisions(
            decisions, simulated([event_at(datetime.now(UTC), "bob", "Produce", client_id="app", bytes=5)], [])
        )
        asked = shell.run(f"hold --user bob --client-id apq --reason x --config {settings}")
        assert asked.code == 2
        assert "no decision and no quota names client-id 'apq'; check the spelling. Hold it?" in asked.output
        assert "give --yes if that is meant" in asked.error
        assert shell.run(f"hold --client-id apq --reason x --config {settings}", answer="y\n").code == 0
        assert shell.run(f"hold --client-id apq --reason x --yes --config {settings}").code == 0
        assert shell.run(f"hold --user bob --client-id app --reason x --config {settings}").code == 0

    def test_it_is_told_who_is_held_until_when_and_in_the_history(self, shell: Shell) -> None:
        began_ms = now_ms()
        shell.run("alter --client-id app --add-config producer_byte_rate=100")
        assert shell.run(f"{self.HOLD} --as carol").output.startswith("Holding client-id 'app' for 10m")
        released = shell.run("release --client-id app --as dave").output
        assert released.startswith("Released client-id 'app', in force at 2 of 2 brokers")
        lines = shell.run("history").output.splitlines()
        assert [line.split("  ")[0] for line in lines] == ["hold", "hold", "version 1"]
        assert [line.split("  ")[2].split()[0] for line in lines[:2]] == ["dave", "carol"]
        assert lines[0].endswith("  client-id 'app' released")
        assert lines[1].endswith(": it floods")
        newest, before, _ = json.loads(shell.run("history --json").output)["changes"]
        assert (newest["key"], newest["new"], before["entity"]) == ("hold", None, {"client_id": "app"})
        assert before["new"]["reason"] == "it floods"
        until = datetime.fromisoformat(before["new"]["until"])
        assert 599_000 <= to_ms(until) - began_ms < 720_000
        assert len(shell.run("history --user etl").output) == 0

    def test_the_job_stops_who_is_held_until_the_end_or_the_release(self, shell: Shell) -> None:
        decider, found = OperatorHolds(HoldsTable(shell.table.path).commands), []
        for line in (self.HOLD, "hold --user etl --for 1h --reason x --as eve", "release --client-id app"):
            shell.run(line)
            found.append([each.entity for each in decider.decide(now_ms()).overrides])
        app, etl = CountedEntity(client_id="app"), CountedEntity(user="etl")
        assert found == [[app], [app, etl], [etl]]
        [hold] = decider.decide(now_ms()).overrides
        assert (hold.kind, hold.consumers, hold.reason) == ("hold", True, "eve: x")
        assert hold.until_ms is not None
        assert not decider.decide(hold.until_ms).overrides

    def test_holds_of_a_restored_backup_count_though_their_version_was_seen_before(
        self, shell: Shell, tmp_path: Path
    ) -> None:
        table, backup = HoldsTable(shell.table.path), tmp_path / "backup"
        shell.run(self.HOLD)
        shutil.copytree(table.path, backup)
        shell.run("release --client-id app")
        assert holds_at(table.poll() or (), now_ms()) == []
        shutil.rmtree(table.path)
        shutil.copytree(backup, table.path)
        shell.run("hold --client-id etl --for 1h --reason x")
        assert {hold.client_id for hold in holds_at(table.poll() or (), now_ms())} == {"app", "etl"}

    @pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
    def test_the_last_command_counts_for_as_long_as_it_says_whatever_the_clocks_of_operators_say(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
    ) -> None:
        """The job's clock is the only one that counts."""
        decider, began_ms = OperatorHolds(HoldsTable(shell.table.path).commands), now_ms()
        decider.remember(Overrides(1, began_ms, 600_000, command=NONE_TAKEN))
        ends = []
        for seconds, (clock_ms, line) in enumerate(
            [
                (ahead_ms, "hold --client-id app --reason x"),
                (ahead_ms, "release --client-id app"),
                (0, "hold --client-id app --for 1m --reason x"),
                (ahead_ms, "hold --client-id app --for 2m --reason x"),
                (0, "release --client-id app"),
            ]
        ):
            now = began_ms + seconds * 1_000
            monkeypatch.setattr("sluice_toolbox.hold_commands.now_ms", lambda at_ms=now + clock_ms: at_ms)
            assert shell.run(line).code == 0
            ends.append([each.until_ms - now for each in decider.decide(now).overrides if each.until_ms])
        assert ends == [[600_000], [], [60_000], [120_000], []]

    def test_rows_that_no_command_writes_stop_nobody_and_leave_the_other_holds(
        self, shell: Shell, caplog: pytest.LogCaptureFixture
    ) -> None:
        shell.run(self.HOLD)
        table = HoldsTable(shell.table.path)
        for bad in (
            hold_of(Tags(), 1, 60_000, reason="nobody"),
            hold_of(Tags("u", tenant="t"), 1, 60_000, reason="both"),
            hold_of(Tags(client_id="x" * 257), 1, 60_000, reason="long"),
            hold_of(Tags("u"), 1, 2**62, reason="for ever"),
            hold_of(Tags("u"), 1, MAX_LASTING_MS + 1, reason="until a time that no record can have"),
            hold_of(Tags("u"), 2**62, 1, reason="after all others"),
            hold_of(Tags("u"), -5, 60_000, reason="before 1970"),
        ):
            table.append(bad)
        nulls = pa.Table.from_pylist([{}], pa.schema(DeltaTable(table.path).schema().to_arrow()))
        write_deltalake(table.path, nulls, mode="append")
        [override] = OperatorHolds(table.poll).decide(now_ms()).overrides
        assert override.entity == CountedEntity(client_id="app")
        assert f"8 rows of {table.path} stop nobody" in caplog.text
        assert [line.split("  ")[0] for line in shell.run("history").output.splitlines()] == ["hold"]

    def test_a_row_after_which_no_number_is_left_is_told_to_who_holds(self, shell: Shell) -> None:
        """The command's own row would be none that counts, and nobody would be stopped."""
        HoldsTable(shell.table.path).append(hold_of(Tags("u"), MAX_TIMESTAMP_MS, 60_000))
        ended = shell.run(self.HOLD)
        assert (ended.code, "no command wrote it; delete it" in ended.error) == (1, True), ended

    def test_what_a_hundred_holds_say_fits_into_a_record_whatever_the_author_calls_himself(self, shell: Shell) -> None:
        shell.run(f"{self.HOLD} --as {'x' * 50_000}")
        [override] = OperatorHolds(HoldsTable(shell.table.path).commands).decide(now_ms()).overrides
        assert len(override.reason) < 400

    def test_two_operators_who_hold_at_once_are_both_heard_though_no_table_was_there(self, shell: Shell) -> None:
        tables = [HoldsTable(shell.table.path) for _ in range(8)]
        both = Barrier(len(tables))

        def hold(number: int) -> None:
            both.wait()
            tables[number].append(hold_of(Tags(client_id=f"app-{number}"), 1_000, 600_000))

        with ThreadPoolExecutor(len(tables)) as pool:
            list(pool.map(hold, range(len(tables))))
        assert [each.number for each in tables[0].commands()] == [1_007 - place for place in range(len(tables))]

    def test_the_history_is_a_line_for_each_change_whatever_is_in_names_and_reasons(self, shell: Shell) -> None:
        hostile = "\x1b[31mred\nx\u202e"
        invoke("quotas", "hold", "--client-id", hostile, "--reason", hostile, "--table", shell.table.path)
        assert "\\x1b[31mred\\nx\\u202e" in invoke("quotas", "history", "--table", shell.table.path).output
        assert len(shell.run("history").output.splitlines()) == 1

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("hold --reason x", "no entity; give --user, --client, both, or --tenant"),
            ("hold --tenant nobodys --reason x", "there is no tenant 'nobodys'; `sluice tenants describe` prints all"),
            ("hold --user a\udcff --reason x", "a\\udcff isn't UTF-8"),
            ("hold --user a --reason x\udcff", "x\\udcff isn't UTF-8"),
            ("hold --topic t --reason x", "a hold is of a user, a client-id, both, or a tenant"),
            ("hold --user-defaults --reason x", "a hold is of a user, a client-id, both, or a tenant"),
            (
                f"hold --user {'x' * 257} --reason x",
                "a name has 257 characters; expected at most 256; give the name that",
            ),
            ("hold --user x --reason ' '", "--reason has 1 characters; expected 1 to 200"),
            ("hold --user x --reason x --for 5", "'5' is no length of time; expected one such as 90s"),
            ("hold --user x --reason x --for 8d", "--for 8d is longer than 7d"),
            ("release --user x", "nothing holds user 'x'; held now: nobody"),
            ("release --user x", "if its table was lost, a job may still hold user 'x': hold it, then release it"),
            ("hold --user ANONYMOUS --reason x", "Sluice itself works as user 'ANONYMOUS'"),
            ("hold --user ANONYMOUS --reason x", "; name one client-id"),
            ("hold --user ANONYMOUS --client-id sluice-sums --reason x", "Sluice itself works as user 'ANONYMOUS' and"),
        ],
    )
    def test_what_can_not_be_held_is_refused(self, shell: Shell, line: str, problem: str) -> None:
        ended = shell.run(line)
        assert ended.code == 2
        assert problem in ended.error

    @pytest.mark.parametrize("command", ["hold", "release"])
    def test_help_has_no_option_that_is_always_refused(self, command: str) -> None:
        shown = invoke("quotas", command, "--help").output
        assert "--entity-type <users|clients|tenants>" in shown
        assert not re.search("--topic|-default|ips", shown)

    def test_sluices_own_login_and_client_ids_are_not_held(self, shell: Shell) -> None:
        """Brokers exempt them, so that the hold would do nothing; where they don't, it would stop its own release."""
        login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ops" password="p";'
        file = shell.file(
            f"kafka: {{security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.jaas.config: '{login}'}}\n", "job.yaml"
        )
        for client in ("--user ops", "--user ops --client-id app", "--client-id sluice", "--client-id sluice-1"):
            ended = shell.run(f"hold {client} --reason x --config {file}")
            assert (ended.code, "Sluice itself works as" in ended.error) == (2, True), client
        for client in ("--user opsy --client-id sluicegate", "--user bob --client-id sluice-reports"):
            assert shell.run(f"hold {client} --reason x --config {file}").code == 0
        for client in ("--user ANONYMOUS", "--user ANONYMOUS --client-id sluice"):
            assert shell.run(f"hold {client} --reason x --config {file}").code == 0, "its settings have a login"
        assert shell.run("hold --user ANONYMOUS --client-id noisy --reason x --duration 1m").code == 0

    def test_a_tenant_that_sluice_itself_is_in_is_not_held(self, shell: Shell) -> None:
        login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ops" password="p";'
        with_login = shell.file(
            f"kafka: {{security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.jaas.config: '{login}'}}\n", "job.yaml"
        )
        without = shell.file("{}\n", "none.yaml")
        members = [member(tenant="all", user="*"), member(tenant="gateways", client_id="sluice-*")]
        others = [member(tenant="shop", user="shop-*"), member(tenant="own", user="ops", client_id="sluice-7-x")]
        for settings, held in ((with_login, {"all", "own"}), (without, {"all"})):
            shell.table.alter(lambda _: [*members, *others], "test", datetime.now(UTC))
            for tenant in ("all", "gateways", "shop", "own"):
                ended = shell.run(f"hold --tenant {tenant} --reason x --yes --config {settings}")
                assert (ended.code, "Sluice itself works as" in ended.error) == (
                    (2, True) if tenant in held else (0, False)
                )
        shell.table.alter(lambda _: members[1:], "test", datetime.now(UTC))
        assert shell.run(f"hold --tenant gateways --reason x --yes --config {without}").code == 2


def test_a_hold_that_is_not_waited_for_says_so(shell: Shell, said: type[Said]) -> None:
    said.decider = None

    ended = shell.run("hold --client-id app --reason x --timeout 0")

    assert (ended.code, "written, and not waited for (--timeout 0)" in ended.error) == (1, True)
