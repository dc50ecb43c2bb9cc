"""Every worked example in a docstring gives the numbers it shows."""

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = (
    *("sluice", "sluice_demo", "sluice_http", "sluice_insight", "sluice_lab", "sluice_proxy", "sluice_telemetry"),
    *("sluice_elastic", "sluice_toolbox", "scripts"),
)
OWN_PACKAGES = ("sluice_lab.testbed.object_store_server",)  # which run with packages of a lock of their own

MODULES = [
    module.name
    for each in PACKAGES
    for module in pkgutil.walk_packages(importlib.import_module(each).__path__, f"{each}.")
    if module.name not in OWN_PACKAGES
]


@pytest.mark.parametrize("name", MODULES)
def test_worked_examples_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), exclude_empty=True).failed == 0


def test_there_are_worked_examples() -> None:
    """The check above is not empty: every formula has an example."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))

    assert examples >= 20
