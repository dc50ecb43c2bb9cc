"""Modules of tests: what several of them need is in modules of its own, such as `tests.builders`."""

import re
from pathlib import Path

_IMPORT = re.compile(r"^\s*(?:from|import) tests\b.*\btest_\w+", re.MULTILINE)


def test_no_module_of_tests_is_imported_by_another() -> None:
    """Or a change of one test breaks others, and whoever looks for a helper has to know in which test it is."""
    top = Path(__file__).parents[2]
    paths = [*top.glob("tests/**/*.py"), *top.glob("extras/*/tests/**/*.py")]

    assert {path.name: found for path in paths if (found := _IMPORT.findall(path.read_text()))} == {}
