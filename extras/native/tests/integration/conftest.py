"""The native library for the tests of it."""

import pytest

from sluice_native import build


def pytest_configure(config: pytest.Config) -> None:
    """Build the library, unless it is there."""
    if not hasattr(config, "workerinput"):  # once, by the process that starts the others
        build.main()
