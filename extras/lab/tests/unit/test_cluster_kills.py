"""`./scripts/cluster`: what it kills, and its options."""

from collections import Counter
from random import Random

from sluice_lab.scenarios.cluster import Storage, planned


def test_each_kind_is_killed_once_before_any_is_killed_again() -> None:
    victims = planned([], 10, Storage.HDFS.victims, Random(7))

    assert set(victims[:6]) == set(Storage.HDFS.victims)
    assert max(Counter(victims).values()) == 2
