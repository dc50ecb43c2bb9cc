"""`./scripts/cluster`: what it kills, and its options."""

from collections import Counter
from random import Random

import pytest

from sluice_lab.scenarios import cluster
from sluice_lab.scenarios.cluster import Storage, planned


def test_each_kind_is_killed_once_before_any_is_killed_again() -> None:
    victims = planned([], 10, Storage.HDFS.victims, Random(7))

    assert set(victims[:6]) == set(Storage.HDFS.victims)
    assert max(Counter(victims).values()) == 2


def test_a_data_node_of_plain_files_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.main(["--storage", "files", "--kill", "datanode"]) == 2

    assert capsys.readouterr().err == (
        "cluster: error: Invalid value: --kill is datanode with --storage files; expected --storage hdfs with it\n"
    )
