"""`sluice quotas resolve`: the quota of a request, its level and counter, and what was passed over."""

import json
from pathlib import Path

import pytest

from quota_shell import EXAMPLE, Shell, check_encoded_name, empty_table


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return empty_table(tmp_path)


@pytest.fixture
def example(shell: Shell) -> Shell:
    """The quotas of configs/quotas.yaml and one for every client-id of every user, at version 2."""
    shell.lines(f"apply {EXAMPLE} --yes")
    shell.lines("alter --user-defaults --client-defaults --add-config request_percentage=1e9")
    return shell


def test_resolve_shows_a_trial_after_what_is_enforced(shell: Shell) -> None:
    shell.lines("alter --user alice --add-config producer_byte_rate=1024")
    trial = "--add-config producer_byte_rate=512 --mode shadow"
    shell.lines(f"alter --user alice --client app {trial}")
    shell.lines(f"alter --user-defaults {trial}")
    assert shell.lines("resolve --user alice --client-id app")[:3] == [
        "producer_byte_rate: 1024.0 from user-principal 'alice', counted for user 'alice'",
        "producer_byte_rate: 512.0 (shadow) from user-principal 'alice', client-id 'app',"
        " counted apart for user 'alice' and client-id 'app'",
        "  passed over the default user-principal: 512.0 (shadow)",
    ]


def test_resolve_shows_the_level_the_counter_and_what_was_passed_over(example: Shell) -> None:
    assert example.lines("resolve --user alice --client-id reporting --topic orders") == [
        "producer_byte_rate: 1048576.0 from user-principal 'alice', client-id 'reporting',"
        " counted for user 'alice' and client-id 'reporting'",
        "  passed over user-principal 'alice': 1.048576E7",
        "producer_byte_rate: 5242880.0 (shadow) from the default client-id,"
        " counted apart for client-id 'reporting' of all users",
        "consumer_byte_rate: 2097152.0 from user-principal 'alice', client-id 'reporting',"
        " counted for user 'alice' and client-id 'reporting'",
        "  passed over the default user-principal: 1.048576E7",
        "request_percentage: 25.0 from user-principal 'alice', client-id 'reporting',"
        " counted for user 'alice' and client-id 'reporting'",
        "  passed over the default user-principal, the default client-id: 1.0E9",
        "  passed over the default user-principal: 200.0",
        "controller_mutation_rate: 5.0 from user-principal 'alice', counted for user 'alice'",
        "  passed over the default user-principal: 10.0",
        "producer.byte.rate: 2097152.0 from topic 'orders', counted for each partition of topic 'orders'",
        "consumer.byte.rate: 8388608.0 from topic 'orders', counted for each partition of topic 'orders'",
    ]


def test_resolve_tells_unlimited_from_not_counted(shell: Shell) -> None:
    """Kafka counts nothing while no quota of the kind is set, and counts everybody as soon as one is."""
    shell.lines("alter --user alice --add-config producer_byte_rate=1024")
    assert shell.lines("resolve --user bob --client-id app") == [
        "producer_byte_rate: unlimited, counted for user 'bob'",
        "consumer_byte_rate: unlimited, not counted",
        "request_percentage: unlimited, not counted",
        "controller_mutation_rate: unlimited, not counted",
    ]


def test_resolve_says_which_quotas_proxies_alone_hold(shell: Shell) -> None:
    """They are named once one is set."""
    shell.lines("alter --user alice --add-config connection_rate=0.5,connection_count=10")
    assert shell.lines("resolve --user alice")[-2:] == [
        "connection_rate: 0.5 from user-principal 'alice', counted for user 'alice', held by Kafka proxies alone",
        "connection_count: 10.0 from user-principal 'alice', counted for user 'alice', held by Kafka proxies alone",
    ]


def test_resolve_tells_machines_the_same(example: Shell) -> None:
    answer = json.loads(example.run("resolve --client-id other --json").output)
    assert answer["version"] == 2
    enforced, shadow = answer["quotas"][:2]
    assert enforced == {
        "quota": "producer_byte_rate",
        "mode": "enforce",
        "applies": None,
        "reservation": None,
        "counter": {"client_id": "other"},
        "passed_over": [],
    }
    assert shadow == {
        "quota": "producer_byte_rate",
        "mode": "shadow",
        "applies": {
            "matched": "default client-id",
            "entity": {"client_id": None},
            "value": 5242880.0,
            "mode": "shadow",
        },
        "reservation": None,
        "counter": {"client_id": "other"},
        "passed_over": [],
    }


def test_resolve_needs_a_request(example: Shell) -> None:
    assert "no request; give --user" in example.error("resolve")


def test_a_name_that_is_no_utf_8_is_refused(shell: Shell) -> None:
    assert "a\\udcff isn't UTF-8" in shell.run("resolve --user a\udcff").error


@pytest.mark.parametrize(
    "line",
    [
        "quotas resolve --user CN%3Dapp",
        "quotas resolve --client-id CN%3Dapp",
        "tenants resolve --user CN%3Dapp",
    ],
)
def test_a_name_that_looks_encoded_is_asked_about(shell: Shell, line: str) -> None:
    check_encoded_name(shell, line)
