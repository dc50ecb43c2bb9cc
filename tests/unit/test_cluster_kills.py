"""`./scripts/cluster`: what it kills, and its options."""

import doctest
from collections import Counter
from random import Random

import pytest

from scripts.scenarios import cluster
from scripts.scenarios.cluster import Victim, planned


def test_worked_examples_hold() -> None:
    results = doctest.testmod(cluster)

    assert results.attempted
    assert not results.failed


def test_the_same_seed_plans_the_same_kills() -> None:
    one, same, other = (planned([], 12, list(Victim), Random(seed)) for seed in (1, 1, 2))

    assert one == same != other


def test_each_kind_is_killed_once_before_any_is_killed_again() -> None:
    victims = planned([], 10, list(Victim), Random(7))

    assert set(victims[:6]) == set(Victim)
    assert max(Counter(victims).values()) == 2


def test_what_is_named_is_killed_first_and_counts() -> None:
    named = [Victim.DRIVER, Victim.DRIVER]

    assert planned(named, 0, list(Victim), Random(1)) == named
    assert planned(named, 3, [Victim.BROKER], Random(1)) == [*named, Victim.BROKER]


def test_a_data_node_of_plain_files_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.main(["--storage", "files", "--kill", "datanode"]) == 2

    assert capsys.readouterr().err == (
        "cluster: error: Invalid value: --kill is datanode with --storage files; expected --storage hdfs with it\n"
    )
