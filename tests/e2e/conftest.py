"""Fixtures of the tests with brokers that have the plugin."""

from pathlib import Path

import pytest

from tests.broker_plugin import plugin_classes


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What a broker needs on its class path."""
    return plugin_classes(tmp_path_factory.mktemp("classes"))
