"""Names that look percent-encoded, and an address that is missing: asked about by each command."""

from pathlib import Path

import pytest

from quota_shell import Shell, check_encoded_name, empty_table


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return empty_table(tmp_path)


def test_import_asks_for_the_cluster_to_read(shell: Shell) -> None:
    assert "Missing option '--bootstrap-servers'" in shell.error("import")


@pytest.mark.parametrize(
    "line",
    [
        "quotas hold --user CN%3Dapp --reason x --as carol",
        "quotas release --user CN%3Dapp --as carol",
        "tenants import FILE --as carol --yes",
        "tenants alter shop --add-user CN%3Dapp --as carol",
        "tenants alter shop --add-client-id CN%3Dapp --as carol",
    ],
)
def test_a_name_that_looks_encoded_is_asked_about(shell: Shell, line: str) -> None:
    check_encoded_name(shell, line)
