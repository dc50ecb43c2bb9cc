"""The commands `sluice quotas ...`: what they print, change and refuse."""

import json
import math
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from pwd import getpwuid
from socket import gethostname

import pytest

from quota_shell import EXAMPLE, Shell, check_encoded_name, empty_table
from sluice.configs.quotas import load_quotas_file
from sluice.jvm.jars import REPOSITORY
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import ENTRY_KINDS, Membership, QuotaKind
from sluice_reading.holds_table import HoldsTable
from sluice_reading.quota_text import quotas_yaml
from sluice_reading.texts import java_double
from sluice_toolbox.quota_text import read_configs, read_properties
from tests.commands import Ended, invoke


@pytest.fixture
def no_table(tmp_path: Path) -> Shell:
    """A table that no job has made yet."""
    return Shell(tmp_path / "quotas")


@pytest.fixture
def shell(no_table: Shell) -> Shell:
    """An empty table, as the job makes it: version 0."""
    return empty_table(Path(no_table.table.path).parent)


ALICE = QuotaEntity(user="alice")
ANY_CLIENT = QuotaEntity(client_id=DEFAULT)
CLIENT_APP = "--entity-type clients --entity-name app"


# --- alter ---


ANY_USERS_APP = QuotaEntity(user=DEFAULT, client_id="app")


@pytest.mark.parametrize(
    ("options", "line", "entity"),
    [
        ("--entity-type users --entity-name alice", "config for user alice.", ALICE),
        ("--user alice", "config for user alice.", ALICE),
        ("--client app", "config for client app.", QuotaEntity(client_id="app")),
        ("--entity-type users --entity-default", "default config for users in the cluster.", QuotaEntity(user=DEFAULT)),
        ("--client-defaults", "default config for clients in the cluster.", ANY_CLIENT),
        ("--entity-type=clients --entity-name=", "default config for clients in the cluster.", ANY_CLIENT),
        ("--user alice --client app", "config for user alice.", QuotaEntity(user="alice", client_id="app")),
        ("--user-defaults --client app", "config for client app.", ANY_USERS_APP),
        (f"{CLIENT_APP} --entity-type users --entity-default", "config for client app.", ANY_USERS_APP),
        (
            f"--entity-type users --entity-default {CLIENT_APP}",
            "default config for users in the cluster.",
            ANY_USERS_APP,
        ),
        ("--topic orders", "config for topic orders.", QuotaEntity(topic="orders")),
        ("--topic-defaults", "default config for topics in the cluster.", QuotaEntity(topic=DEFAULT)),
        ("--entity-type topics --entity-name orders", "config for topic orders.", QuotaEntity(topic="orders")),
    ],
)
def test_alter_takes_and_prints_what_kafka_configs_does(
    shell: Shell, options: str, line: str, entity: QuotaEntity
) -> None:
    """The line names only the first of two entity types."""
    kind = QuotaKind.TOPIC_PRODUCER_BYTE_RATE if entity.topic else QuotaKind.PRODUCER_BYTE_RATE
    assert shell.lines(f"alter {options} --add-config {kind}=1024") == [f"Completed updating {line}"]
    assert shell.table.entries() == [QuotaEntry(entity, kind, 1024.0)]


def test_the_help_of_alter_explains_every_key() -> None:
    """Also those that Kafka doesn't have, whose names nobody knows."""
    help_text = "\n".join(invoke("quotas", "alter", "--help").output.split("Keys:")[1:])

    keys = {line.split()[0] for line in help_text.splitlines() if line.startswith("  ") and line[2] != " "}

    assert keys == ENTRY_KINDS.keys() - {Membership.MEMBER}
    assert "Held by Kafka proxies alone." in " ".join(help_text.split())


def test_one_call_sets_and_removes(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=1,consumer_byte_rate=2")
    shell.lines("alter --user alice --add-config request_percentage=3 --delete-config consumer_byte_rate")
    assert {entry.kind: entry.value for entry in shell.table.entries()} == {
        QuotaKind.PRODUCER_BYTE_RATE: 1.0,
        QuotaKind.REQUEST_PERCENTAGE: 3.0,
    }
    assert shell.table.version() == 2


def test_the_names_of_the_proposals_set_and_remove_the_same_quotas(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config request_time_percent=1,controller_mutations_rate=2")
    shell.lines("alter --user alice --delete-config request_percentage,controller_mutations_rate")
    assert shell.table.entries() == []


def test_configs_can_come_from_a_properties_file(shell: Shell) -> None:
    file = shell.file("# alice\nproducer_byte_rate = 1024\nrequest_percentage: 50\n", name="alice.properties")
    shell.lines(f"alter --user alice --add-config-file {file}")
    assert [entry.value for entry in shell.table.entries()] == [1024.0, 50.0]


@pytest.mark.parametrize(
    "line",
    [
        "alter --user alice --add-config producer_byte_rate=1024",
        "alter --user alice --add-config producer_byte_rate=1024 --dry-run",
        f"apply {EXAMPLE} --yes",
        "revert --to-version 0",
        *("describe", "export", "history"),
    ],
)
def test_no_command_makes_a_table(no_table: Shell, line: str) -> None:
    """A new table would be one that no job reads. The error says how to go on."""
    said = no_table.run(line).error

    assert "the job makes it when it starts (`sluice run`)" in said
    assert "name the settings of the one you mean (--config)" in said
    assert not Path(no_table.table.path).exists()


def test_a_shadow_quota_stands_beside_the_enforced_one(shell: Shell) -> None:
    """Setting and removing one leaves the other."""
    shell.lines("alter --user alice --add-config producer_byte_rate=1024")
    shell.lines("alter --user alice --add-config producer_byte_rate=512 --mode shadow")
    both = "Quota configs for user-principal 'alice' are producer_byte_rate=1024.0, producer_byte_rate=512.0 (shadow)"
    assert shell.lines("describe") == [both]
    shell.lines("alter --user alice --delete-config producer_byte_rate")
    assert [(entry.value, entry.shadow) for entry in shell.table.entries()] == [(512.0, True)]
    shell.lines("alter --user alice --add-config producer_byte_rate=2048")
    shell.lines("alter --user alice --delete-config producer_byte_rate --mode shadow")
    assert [(entry.value, entry.shadow) for entry in shell.table.entries()] == [(2048.0, False)]
    changes = [line.split("  ")[-1] for line in shell.lines("history")]
    assert changes == [
        "- user-principal 'alice': producer_byte_rate 512 (shadow)",
        "+ user-principal 'alice': producer_byte_rate 2048",
        "- user-principal 'alice': producer_byte_rate 1024",
        "+ user-principal 'alice': producer_byte_rate 512 (shadow)",
        "+ user-principal 'alice': producer_byte_rate 1024",
    ]


def test_removing_a_quota_that_is_set_in_the_other_mode_only_names_that_mode(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=512 --mode shadow")
    shell.lines("alter --user alice --add-config request_percentage=5")
    assert shell.error("alter --user alice --delete-config producer_byte_rate").endswith(
        "Invalid config(s): producer_byte_rate not set on user 'alice';"
        " producer_byte_rate is set in mode shadow: add --mode shadow"
    )
    assert shell.error("alter --user alice --delete-config request_percentage --mode shadow").endswith(
        "Invalid config(s): request_percentage not set on user 'alice';"
        " request_percentage is set in mode enforce: add --mode enforce"
    )
    assert len(shell.table.entries()) == 2


def test_a_dry_run_of_a_shadow_quota_looks_at_shadow_quotas_alone(shell: Shell) -> None:
    """An enforced quota of alice's doesn't keep her out of a trial on all users; a trial of bob's own does."""
    shell.lines("alter --user alice --add-config producer_byte_rate=1024")
    shell.lines("alter --user bob --add-config producer_byte_rate=1024 --mode shadow")
    trial = "alter --user-defaults --add-config consumer_byte_rate=1,producer_byte_rate=512"
    assert shell.lines(f"{trial} --mode shadow --dry-run") == [
        "+ the default user-principal: consumer_byte_rate 1 (shadow)",
        "+ the default user-principal: producer_byte_rate 512 (shadow)",
        "applies to every user, all clients of a user counted together",
        "producer_byte_rate is set more specifically for user-principal 'bob'",
    ]


def test_a_file_may_have_both_modes_and_export_gives_it_back(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "quotas.yaml"
    content = (
        "- entity:\n    user: alice\n  quotas:\n    producer_byte_rate: 1024\n"
        "- entity:\n    user: alice\n  mode: shadow\n  quotas:\n    producer_byte_rate: 512\n"
    )
    file.write_text(content)
    assert shell.lines(f"apply {file} --yes")[:-1] == [
        "+ user-principal 'alice': producer_byte_rate 1024",
        "+ user-principal 'alice': producer_byte_rate 512 (shadow)",
    ]
    assert shell.run("export").output == content
    assert shell.lines(f"apply {file} --yes") == ["Nothing changes."]
    file.write_text(content[: content.index("- entity", 1)])
    assert shell.lines(f"apply {file} --prune --dry-run") == [
        "- user-principal 'alice': producer_byte_rate 512 (shadow)"
    ]


def test_a_dry_run_shows_the_change_and_whom_it_hits_and_writes_nothing(shell: Shell) -> None:
    shell.lines(f"apply {EXAMPLE} --yes")
    assert shell.lines("alter --user-defaults --add-config producer_byte_rate=1024 --dry-run") == [
        "+ the default user-principal: producer_byte_rate 1024",
        "applies to every user, all clients of a user counted together",
        "producer_byte_rate is set more specifically for user-principal 'alice'; "
        "user-principal 'alice', client-id 'reporting'; user-principal 'greedy'",
    ]
    assert shell.table.version() == 1


def test_alter_answers_machines_with_the_version_and_the_changes(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=1024")
    answer = shell.run("alter --user alice --add-config producer_byte_rate=2048 --json").output
    assert json.loads(answer) == {
        "version": 2,
        "changes": [
            {
                "entity": {"user": "alice"},
                "key": "producer_byte_rate",
                "old": {"value": 1024.0, "mode": "enforce"},
                "new": {"value": 2048.0, "mode": "enforce"},
            }
        ],
    }


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--user alice --add-config producer_byte_rate=0", "producer_byte_rate is 0; expected a number > 0"),
        ("--user alice --add-config producer_byte_rate=1.5", "expected a whole number"),
        ("--user alice --add-config producer_byte_rate=NaN", "expected a finite number > 0"),
        ("--user alice --add-config producer_byte_rate=1_000", "producer_byte_rate is '1_000'; expected a number > 0"),
        ("--user alice --add-config producer_byte_rate=lots", "producer_byte_rate is 'lots'; expected a number > 0"),
        ("--user alice --add-config producer_byte_rate=1MB", "'1MB'; expected a number > 0, such as 1000000"),
        ("--user alice --add-config producer_byte_rates=1", "did you mean producer_byte_rate?"),
        ("--user alice --add-config producer_byte_rate", "expected key=value,key=value"),
        ("--user alice --add-config producer_byte_rate=1,producer_byte_rate=2", "producer_byte_rate is given twice"),
        ("--user alice --add-config request_percentage=1,request_time_percent=2", "are the same quota"),
        ("--user alice --add-config producer_byte_rate=1 --delete-config producer_byte_rate", "given twice"),
        ("--user alice --add-config connection_creation_rate=1", "Sluice has no quotas on ips"),
        ("--user alice --add-config request_percentage=9,producer_byte_rate=0", "producer_byte_rate is 0"),
        ("--user alice --delete-config consumer_byte_rate", "Invalid config(s): consumer_byte_rate"),
        (
            "--user a --user-defaults --add-config request_percentage=9",
            "user is given twice; expected it once, by name or",
        ),
        (
            "--user alice --delete-config nope,request_percentage,nada",
            "Invalid config(s): nope,nada not set on user 'alice'",
        ),
        ("--topic orders --user alice --add-config request_percentage=5", "can't be combined"),
        ("--add-config request_percentage=5", "no entity; give --user"),
        ("--user alice", "nothing to alter"),
        ("--entity-type users --user alice", "can't be mixed"),
        ("--entity-type users --add-config request_percentage=5", "the user has no name"),
        ("--entity-name alice --add-config request_percentage=5", "more names than entity types"),
        ("--entity-type brokers --entity-name 1", "expected one of users, clients, topics, tenants"),
        ("--entity-type ips --entity-name 127.0.0.1", "Sluice has no quotas on ips"),
        ("--ip 127.0.0.1", "Sluice has no quotas on ips"),
        ("--user alice --add-config a=1 --add-config-file f", "are both given"),
        ("--user alice --mode off", "off"),
        ("--user a\udcff --add-config producer_byte_rate=9", "a\\udcff isn't UTF-8"),
        ("--entity-type groups", "groups"),
        (
            "--user bob --add-config request_percentage_reservation=50",
            "request_percentage_reservation is 50 without request_percentage; expected both or none",
        ),
        (
            "--user alice --add-config producer_byte_rate_reservation=1001",
            "producer_byte_rate_reservation is 1001; expected at most 1000, the producer_byte_rate",
        ),
        (
            "--user alice --add-config producer_byte_rate=300",
            "producer_byte_rate_reservation is 400; expected at most 300, the producer_byte_rate",
        ),
        (
            "--user alice --delete-config producer_byte_rate",
            "producer_byte_rate_reservation is 400 without producer_byte_rate; expected both or none",
        ),
        (
            "--user alice --mode shadow --add-config producer_byte_rate=1,producer_byte_rate_reservation=1",
            "producer_byte_rate_reservation is set in mode shadow; expected mode enforce",
        ),
        (
            "--user alice --add-config producer_byte_rate_reservation=100.5",
            "producer_byte_rate_reservation is 100.5; expected a whole number",
        ),
        (
            "--user alice --add-config controller_mutation_rate_reservation=5",
            "unknown quota key 'controller_mutation_rate_reservation'; did you mean",
        ),
        ("--topic orders --add-config producer_byte_rate_reservation=5", "expected one of producer.byte.rate"),
    ],
)
def test_alter_refuses_in_one_line_what_kafka_refuses_or_contradicts_itself_and_changes_nothing(
    shell: Shell, options: str, problem: str
) -> None:
    given = {"producer_byte_rate": 1000.0, "producer_byte_rate_reservation": 400.0, "request_percentage": 5.0}
    configs = ",".join(f"{key}={value:g}" for key, value in given.items())
    shell.lines(f"alter --user alice --add-config {configs}")
    assert problem in shell.error(f"alter {options}")
    assert {str(entry.kind): entry.value for entry in shell.table.entries()} == given
    assert shell.table.version() == 1


# --- describe ---


@pytest.fixture
def example(shell: Shell) -> Shell:
    """The quotas of configs/quotas.yaml and one for every client-id of every user, at version 2."""
    shell.lines(f"apply {EXAMPLE} --yes")
    shell.lines("alter --user-defaults --client-defaults --add-config request_percentage=1e9")
    return shell


REPORTING = (
    "Quota configs for user-principal 'alice', client-id 'reporting' are "
    "consumer_byte_rate=2097152.0, producer_byte_rate=1048576.0, request_percentage=25.0"
)
ANYBODY = "Quota configs for the default user-principal, the default client-id are request_percentage=1.0E9"
ALICE_LINE = "Quota configs for user-principal 'alice' are controller_mutation_rate=5.0, producer_byte_rate=1.048576E7"
ANY_USER = (
    "Quota configs for the default user-principal are "
    "consumer_byte_rate=1.048576E7, controller_mutation_rate=10.0, request_percentage=200.0"
)
GREEDY = "Quota configs for user-principal 'greedy' are producer_byte_rate=1000000.0"
ORDERS = "Quota configs for topic 'orders' are consumer.byte.rate=8388608.0, producer.byte.rate=2097152.0"


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ("--user alice", [ALICE_LINE]),
        ("--user alice --client reporting", [REPORTING]),
        ("--entity-type users", [ANY_USER, ALICE_LINE, GREEDY]),
        ("--entity-type users --entity-type clients", [ANYBODY, REPORTING]),
        ("--entity-type users --entity-name alice --entity-type clients", [REPORTING]),
        ("--user-defaults", [ANY_USER]),
        ("--entity-type topics", [ORDERS]),
        ("--topic other", []),
    ],
)
def test_describe_shows_entities_with_exactly_the_types_asked_for(
    example: Shell, options: str, lines: list[str]
) -> None:
    assert example.lines(f"describe {options}") == lines


def test_describe_without_an_entity_shows_all(example: Shell) -> None:
    assert len(example.lines("describe")) == 8


def test_describe_tells_machines_who_set_a_quota(shell: Shell) -> None:
    shell.lines("alter --user-defaults --add-config request_percentage=5 --mode shadow")
    answer = json.loads(shell.run("describe --json").output)
    (quota,) = answer["quotas"]
    assert answer["version"] == 1
    assert quota.pop("changed_at").endswith("Z")
    assert quota == {
        "entity": {"user": None},
        "key": "request_percentage",
        "value": 5.0,
        "mode": "shadow",
        "changed_by": "carol",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1024.0, "1024.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.0, "1.2345678E7"),
        (0.001, "0.001"),
        (0.00015, "1.5E-4"),
        (1e23, "1.0E23"),
        (9.223372036854775807e18, "9.223372036854776E18"),
        (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (0.1, "0.1"),
    ],
)
def test_numbers_are_printed_as_java_prints_doubles(value: float, text: str) -> None:
    assert java_double(value) == text
    assert math.isclose(float(text), value, rel_tol=0.0, abs_tol=0.0)


def test_commas_in_brackets_belong_to_the_value() -> None:
    assert read_configs("a=[1,2], b = 3") == {"a": "1,2", "b": "3"}


def test_properties_files_continue_lines_and_keep_equals_signs_in_values(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        '! login\nsasl.jaas.config=Login required \\\n    username="a" password="b=c";\nsasl.mechanism PLAIN\n'
    )
    assert read_properties(file) == {
        "sasl.jaas.config": 'Login required username="a" password="b=c";',
        "sasl.mechanism": "PLAIN",
    }


# --- history and revert ---


def test_history_tells_who_changed_what_newest_first(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=1024")
    shell.lines("alter --user alice --add-config producer_byte_rate=2048")
    shell.lines("alter --client app --add-config producer_byte_rate=1")
    shell.lines("alter --user alice --delete-config producer_byte_rate")
    lines = [line.split("  ") for line in shell.lines("history --user alice")]
    carol = f"carol ({getpwuid(os.getuid()).pw_name}@{gethostname()})"
    assert [(version, author, change) for version, _, author, change in lines] == [
        ("version 4", carol, "- user-principal 'alice': producer_byte_rate 2048"),
        ("version 2", carol, "~ user-principal 'alice': producer_byte_rate 1024 -> 2048"),
        ("version 1", carol, "+ user-principal 'alice': producer_byte_rate 1024"),
    ]
    assert len(shell.lines("history --limit 2")) == 2
    assert json.loads(shell.run("history --json").output)["changes"][0]["version"] == 4


def test_a_holds_table_that_cant_be_read_hides_no_change_of_quotas(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=1024")
    Path(HoldsTable(shell.table.path).path).write_text("no table")
    told = shell.run("history")

    assert (told.code, "+ user-principal 'alice': producer_byte_rate 1024" in told.output) == (0, True)
    assert "sluice: holds are left out: the table of holds" in told.error
    assert json.loads(shell.run("history --json").output)["changes"][0]["version"] == 1


def test_history_has_the_os_user_and_the_principal_whatever_the_author_says(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--as` and the environment are what somebody says; the process and its login are not."""
    monkeypatch.setenv("LOGNAME", "mallory")
    settings = tmp_path / "login.yaml"
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ops" password="secret";'
    settings.write_text(
        f"kafka: {{bootstrap.servers: 'k:9', security.protocol: SASL_SSL, sasl.mechanism: PLAIN,"
        f" sasl.jaas.config: '{login}'}}\n"
    )
    shell.lines(f"alter --user alice --add-config producer_byte_rate=1024 --yes --config {settings}")

    (change, *_) = json.loads(shell.run("history --json").output)["changes"]

    assert change["changed_by"] == "carol"
    assert change["changed_from"] == {
        "os_user": getpwuid(os.getuid()).pw_name,
        "host": gethostname(),
        "principal": "User:ops",
    }
    assert "secret" not in (Path(shell.table.path) / "_delta_log" / f"{1:020}.json").read_text()


def test_revert_restores_a_version_as_a_new_one(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=1024 --mode shadow")
    shell.lines("alter --user alice --delete-config producer_byte_rate --mode shadow")
    assert shell.lines("revert --to-version 1 --dry-run") == [
        "+ user-principal 'alice': producer_byte_rate 1024 (shadow)"
    ]
    assert shell.lines("revert --to-version 1")[-1] == "Quotas are now at version 3."
    assert shell.table.entries() == shell.table.entries(version=1)
    assert shell.lines("revert --to-version 1 --yes") == ["Nothing changes."]


# --- apply, export, import ---


def test_apply_shows_what_changes_asks_and_commits_once(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=1024,request_percentage=5")
    file = shell.file(
        "- {entity: {user: alice}, quotas: {producer_byte_rate: 2048}}\n"
        "- {entity: {client_id: app}, quotas: {request_percentage: 1}}\n"
    )
    changes = ["+ client-id 'app': request_percentage 1", "~ user-principal 'alice': producer_byte_rate 1024 -> 2048"]
    assert shell.lines(f"apply {file} --dry-run") == changes
    refused = shell.run(f"apply {file}", answer="n\n")
    assert (refused.code, shell.table.version()) == (130, 1)
    asked = shell.lines(f"apply {file}", answer="y\n")
    assert asked == [*changes, "Apply 2 changes? [y/N]: y", "Quotas are now at version 2."]
    assert len(shell.table.entries()) == 3


def test_apply_where_nobody_can_answer_names_the_option(shell: Shell) -> None:
    """As in a pipeline: standard input is at its end."""
    file = shell.file("- {entity: {user: alice}, quotas: {producer_byte_rate: 2048}}\n")

    refused = shell.run(f"apply {file}", answer="")

    assert (refused.code, shell.table.version()) == (2, 0)
    assert "give --yes if that is meant" in refused.error


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        ("request_percentage: 0", "quotas.yaml[1]: request_percentage is 0; expected a number > 0"),
        (
            "request_percentage: 50, request_percentage_reservation: 60",
            "request_percentage_reservation is 60; expected at most 50",
        ),
    ],
)
def test_apply_of_a_file_with_one_error_changes_nothing(shell: Shell, quotas: str, words: str) -> None:
    file = shell.file(
        "- {entity: {user: alice}, quotas: {request_percentage: 2}}\n"
        f"- {{entity: {{user: bob}}, quotas: {{{quotas}}}}}\n"
    )
    assert words in shell.error(f"apply {file} --yes")
    assert shell.table.version() == 0


def test_an_export_says_exactly_what_is_set(example: Shell, tmp_path: Path) -> None:
    example.lines("alter --user null --add-config request_percentage=0.1,producer_byte_rate=9e18")
    file = tmp_path / "export.yaml"
    for entries in (set(example.table.entries()), set[QuotaEntry]()):
        example.table.alter(lambda _, entries=entries: [*entries], "carol", datetime(2026, 1, 2, tzinfo=UTC))  # type: ignore[misc]
        file.write_text(example.run("export").output)
        assert set(load_quotas_file(file)) == entries
        assert example.lines(f"apply {file} --prune") == ["Nothing changes."]


@pytest.mark.parametrize("name", ["1e3", "123e45", "-1e3", "0e0", "1e+308", "1.5", "12:30", "yes", "null"])
def test_a_name_that_looks_like_a_number_is_exported_as_a_name(name: str, tmp_path: Path) -> None:
    """PyYAML writes `1e3` without quotes, for YAML 1.1, and YAML 1.2 reads a number; ids are often such."""
    entries = [QuotaEntry(QuotaEntity(user=name), QuotaKind.PRODUCER_BYTE_RATE, 5.0)]
    file = tmp_path / "export.yaml"
    file.write_text(quotas_yaml(entries))
    assert load_quotas_file(file) == entries


@pytest.mark.parametrize(
    ("entity", "option"),
    [
        ("--user '<default>'", "the default give --user-defaults"),
        ("--client-id '<default>'", "the default give --client-defaults"),
        ("--topic '<default>'", "the default give --topic-defaults"),
        ("--tenant '<default>'", "the default give --tenant-defaults"),
        ("--user alice --client '<default>'", "the default give --client-defaults"),
        ("--entity-type users --entity-name '<default>'", "the default give --entity-default"),
    ],
)
def test_kafkas_word_for_the_default_is_answered_with_the_option_for_it(shell: Shell, entity: str, option: str) -> None:
    for command in (f"alter {entity} --add-config producer_byte_rate=1", f"describe {entity}"):
        assert option in shell.error(command)
    assert shell.table.entries() == []


def test_a_quota_on_the_very_name_default_stops_no_export_and_can_be_removed(shell: Shell) -> None:
    """A mirror takes it from a cluster, which may have it."""
    keys = (QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.PRODUCER_BYTE_RATE)
    odd = [QuotaEntry(QuotaEntity(user="<default>"), key, 1.0) for key in keys]
    others = [QuotaEntry(ALICE, QuotaKind.REQUEST_PERCENTAGE, 1.0), QuotaEntry(ANY_CLIENT, keys[0], 2.0)]
    shell.table.alter(lambda _: [*odd, *others], "kafka", datetime(2026, 1, 2, tzinfo=UTC))

    exported = shell.run("export")

    assert set(load_quotas_file(shell.file(exported.output))) == set(others)
    assert exported.code == 0
    removal = f"--delete-config {keys[0]},{keys[1]}"
    assert exported.error.splitlines() == [
        f"sluice: left out {keys[0]}, {keys[1]} of user-principal '<default>', which would be the default entity"
        f" in a quota file; if it is meant to be that, set it there, and remove this one with {removal}"
    ]
    shell.lines(f"alter --user '<default>' {removal}")
    assert set(shell.table.entries()) == set(others)


@pytest.mark.parametrize(
    "line",
    [
        "quotas alter --user CN%3Dapp --add-config producer_byte_rate=1024 --as carol --yes",
        "quotas alter --client CN%3Dapp --add-config producer_byte_rate=1024 --as carol --dry-run",
        "quotas alter --entity-type users --entity-name CN%3Dapp --add-config producer_byte_rate=1 --as carol --yes",
        "quotas describe --user CN%3Dapp",
        "quotas history --client CN%3Dapp",
        "quotas apply FILE --as carol --yes",
        "quotas hold --user CN%3Dapp --reason x --as carol",
        "quotas release --user CN%3Dapp --as carol",
        "tenants import FILE --as carol --yes",
        "tenants alter shop --add-user CN%3Dapp --as carol",
        "tenants alter shop --add-client-id CN%3Dapp --as carol",
    ],
)
def test_every_command_asks_about_a_name_that_looks_encoded(shell: Shell, line: str) -> None:
    """No client has such a name: copied from a metric, it would have no effect."""
    check_encoded_name(shell, line)


@pytest.mark.parametrize("name", ["50%off", "%ff", "100%", "José", "a%b"])
def test_a_name_with_a_percent_sign_of_its_own_is_not_asked_about(shell: Shell, name: str) -> None:
    ended = shell.run(f"alter --user '{name}' --add-config producer_byte_rate=1024 --yes")

    assert "encoded" not in ended.error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--user ''", "the empty name is the default user, as it was in kafka-configs.sh; --user-defaults says so"),
        ("--entity-type clients --entity-name ''", "is the default client-id, .*; --client-defaults says so"),
        ("--user alice --client ''", "is the default client-id"),
        ("--user-defaults", ""),
        ("--entity-type users --entity-default", ""),
    ],
)
def test_an_empty_name_is_told_as_the_default_entity(shell: Shell, options: str, said: str) -> None:
    """A script's variable may be empty, and the limit would be everybody's."""
    for command in ("alter --add-config producer_byte_rate=1024 --yes", "describe"):
        error = shell.run(f"{command} {options}").error
        assert re.search(said, error) if said else "empty name" not in error


# --- the commands as programs ---


def test_a_command_loads_neither_spark_nor_pandas_nor_a_kafka_client(example: Shell) -> None:
    """It answers at once for that."""
    program = (
        "import sys; from sluice_toolbox.quota_commands import describe\n"
        "describe(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'pyspark', 'pandas', 'kafka'} & set(sys.modules), 'heavy'\n"
    )
    arguments = ["--table", example.table.path]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, cwd=REPOSITORY)


# --- quotas.source: kafka ---

MIRRORED = [
    QuotaEntry(ALICE, QuotaKind.PRODUCER_BYTE_RATE, 1024.0),
    QuotaEntry(QuotaEntity(client_id=DEFAULT), QuotaKind.REQUEST_PERCENTAGE, 50.0),
]
ALTER = "kafka-configs.sh --bootstrap-server kafka:9092 --alter"


class MirroringShell(Shell):
    """A shell whose settings say that the job mirrors a cluster's quotas into the table."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "quotas")
        self.table.create(MIRRORED, "kafka", datetime(2026, 1, 1, tzinfo=UTC))
        self.settings = folder / "sluice.yaml"
        self.settings.write_text(
            f"quotas: {{source: kafka}}\nkafka: {{bootstrap.servers: 'kafka:9092'}}\n"
            f"delta: {{quotas: '{self.table.path}'}}\n"
        )

    def run(self, line: str, answer: str | None = None) -> Ended:
        return super().run(f"{line} --config {self.settings}", answer)


@pytest.fixture
def mirroring(tmp_path: Path) -> MirroringShell:
    return MirroringShell(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            "--user alice --add-config producer_byte_rate=2048,request_time_percent=0.5",
            "--entity-type users --entity-name alice --add-config producer_byte_rate=2048,request_percentage=0.5",
        ),
        (
            "--user-defaults --client 'my app' --delete-config producer_byte_rate --dry-run",
            "--entity-type clients --entity-name 'my app' --entity-type users --entity-default"
            " --delete-config producer_byte_rate",
        ),
        (
            "--client-defaults --add-config consumer_byte_rate=1 --delete-config request_percentage",
            "--entity-type clients --entity-default --add-config consumer_byte_rate=1"
            " --delete-config request_percentage",
        ),
    ],
)
def test_alter_of_mirrored_quotas_names_the_kafka_configs_command(
    mirroring: MirroringShell, arguments: str, command: str
) -> None:
    said = mirroring.error(f"alter {arguments}")

    rule = "quotas.source is kafka, so quotas of users and client-ids are set with kafka-configs.sh"
    assert said.endswith(f"{rule}: {ALTER} {command}")
    assert mirroring.table.version() == 0


def test_quotas_that_no_broker_has_stay_in_the_table(mirroring: MirroringShell) -> None:
    """kafka-configs.sh would refuse them; of a call with both, the command has the cluster's alone."""
    mirroring.lines("alter --user alice --add-config connection_rate=5,connection_count=9")
    mirroring.lines("alter --user alice --delete-config connection_rate")
    assert mirroring.lines("describe --user alice") == [
        "Quota configs for user-principal 'alice' are connection_count=9.0, producer_byte_rate=1024.0"
    ]
    said = mirroring.error("alter --user alice --add-config connection_rate=5,producer_byte_rate=2")
    assert said.endswith("--entity-name alice --add-config producer_byte_rate=2")


def test_a_login_of_the_settings_is_named_in_the_command(mirroring: MirroringShell) -> None:
    login = "9092', security.protocol: SASL_SSL, sasl.mechanism: GSSAPI"
    mirroring.settings.write_text(mirroring.settings.read_text().replace("9092'", login))
    said = mirroring.error("alter --user alice --add-config producer_byte_rate=1")
    assert "--bootstrap-server kafka:9092 --command-config login.properties --alter" in said


def test_topic_and_shadow_quotas_stay_in_the_table(mirroring: MirroringShell) -> None:
    mirroring.lines("alter --topic orders --add-config producer.byte.rate=1e6")
    mirroring.lines("alter --user alice --add-config producer_byte_rate=512 --mode shadow")
    mirroring.lines("alter --topic orders --delete-config producer.byte.rate")
    assert [line.split("  ")[-1] for line in mirroring.lines("history")][:3] == [
        "- topic 'orders': producer.byte.rate 1000000",
        "+ user-principal 'alice': producer_byte_rate 512 (shadow)",
        "+ topic 'orders': producer.byte.rate 1000000",
    ]


def test_the_reservation_of_a_mirrored_limit_stays_in_the_table(mirroring: MirroringShell) -> None:
    limit = next(entry for entry in MIRRORED if entry.kind is QuotaKind.REQUEST_PERCENTAGE)
    reservation = f"request_percentage_reservation={limit.value / 2:g}"
    mirroring.lines(f"alter --client-defaults --add-config {reservation}")
    assert "request_percentage_reservation" in mirroring.lines("history --limit 1")[0]

    said = mirroring.error(f"alter --client-defaults --add-config request_percentage=1,{reservation}")
    assert said.endswith(f"{ALTER} --entity-type clients --entity-default --add-config request_percentage=1")


def test_apply_and_revert_of_mirrored_quotas_are_refused(mirroring: MirroringShell) -> None:
    """All or nothing: the topic quota of the same file is not set either."""
    file = mirroring.file(
        "- {entity: {topic: orders}, quotas: {producer.byte.rate: 1}}\n"
        "- {entity: {client_id: null}, quotas: {request_percentage: 60, consumer_byte_rate: 7}}\n"
        "- {entity: {user: alice}, quotas: {producer_byte_rate: 2048}}\n"
    )
    mirroring.table.alter(lambda _: [], "kafka", datetime(2026, 1, 2, tzinfo=UTC))

    applied = mirroring.error(f"apply {file} --yes")
    assert "and 3 of the changes are of such quotas; for the first entity: " in applied
    assert applied.endswith(
        "--entity-type clients --entity-default --add-config consumer_byte_rate=7,request_percentage=60"
    )
    reverted = mirroring.error("revert --to-version 0")
    assert reverted.endswith(f"{ALTER} --entity-type clients --entity-default --add-config request_percentage=50")
    assert mirroring.table.version() == 1


def test_a_file_without_mirrored_quotas_can_be_applied_with_prune(mirroring: MirroringShell) -> None:
    """It prunes topic and shadow quotas alone; so does an export with a change of these."""
    mirroring.lines("alter --topic orders --add-config producer.byte.rate=1e6")
    file = mirroring.file("- {entity: {user: alice}, mode: shadow, quotas: {producer_byte_rate: 512}}\n")
    assert mirroring.lines(f"apply {file} --prune --yes")[:-1] == [
        "- topic 'orders': producer.byte.rate 1000000",
        "+ user-principal 'alice': producer_byte_rate 512 (shadow)",
    ]
    file.write_text(mirroring.run("export").output.replace("512", "256"))
    assert mirroring.lines(f"apply {file} --prune --yes")[:-1] == [
        "~ user-principal 'alice': producer_byte_rate 512 (shadow) -> 256 (shadow)"
    ]
    mirroring.lines("revert --to-version 2")
    assert {entry for entry in mirroring.table.entries() if not entry.shadow} == set(MIRRORED)


def test_a_table_that_is_not_the_jobs_is_altered_freely(mirroring: MirroringShell, tmp_path: Path) -> None:
    other = Shell(tmp_path / "other")
    other.table.create([], "seed", datetime(2026, 1, 1, tzinfo=UTC))
    result = other.run(f"alter --user a --add-config request_percentage=1 --config {mirroring.settings}")
    assert (result.code, len(other.table.entries())) == (0, 1)


def test_alter_tells_what_brokers_let_through_under_a_lowered_limit_and_how_to_stop_a_client(shell: Shell) -> None:
    set_to = "alter --client-id app --yes --add-config producer_byte_rate="
    told = [shell.run(f"{set_to}{value}").error.partition("sluice: for 5 minutes")[2] for value in (1000, 1, 2)]
    assert [bool(line) for line in told] == [False, True, False]
    assert told[1].endswith("sluice quotas hold --client-id app --for 10m --reason ...\n")


@pytest.mark.parametrize("content", ["", "# all is commented out\n"])
def test_an_empty_file_prunes_nothing_unless_it_says_so(shell: Shell, content: str) -> None:
    shell.lines("alter --user alice --add-config request_percentage=5")
    file = shell.file(content)

    assert shell.error(f"apply {file} --prune --yes").endswith(
        "would remove all of them; write [] into it if that is meant"
    )
    assert len(shell.table.entries()) == 1
    file.write_text("[]\n")
    shell.lines(f"apply {file} --prune --yes")
    assert shell.table.entries() == []


def test_a_version_below_0_and_an_import_of_no_cluster_are_bad_usage(shell: Shell) -> None:
    assert shell.run("revert --to-version -1").code == 2
    assert "Missing option '--bootstrap-servers'" in shell.error("import")
