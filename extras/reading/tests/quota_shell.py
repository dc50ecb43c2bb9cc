"""The commands `sluice quotas ...` on a table of their own."""

import shlex
from datetime import UTC, datetime
from pathlib import Path

from sluice.configs.settings import DEFAULTS
from sluice_reading.quotas_admin import QuotasAdmin
from tests.commands import Ended, invoke

EXAMPLE = DEFAULTS.with_name("quotas.yaml")


class Shell:
    """Runs `sluice quotas ...` on one table, as carol."""

    def __init__(self, table: Path) -> None:
        self.table = QuotasAdmin(str(table))

    def run(self, line: str, answer: str | None = None) -> Ended:
        command, *rest = shlex.split(line)
        author = ["--as", "carol"] if command in ("alter", "apply", "import", "revert") else []
        return invoke("quotas", command, *rest, *author, "--table", self.table.path, answer=answer, code=None)

    def lines(self, line: str, answer: str | None = None) -> list[str]:
        """The lines printed by a command that succeeds."""
        ended = self.run(line, answer)
        assert ended.code == 0, ended
        return ended.output.splitlines()

    def file(self, content: str, name: str = "quotas.yaml") -> Path:
        """A file beside the table with this content."""
        file = Path(self.table.path).with_name(name)
        file.write_text(content)
        return file

    def error(self, line: str) -> str:
        """The message of a command that is refused as bad input, or contradicts itself."""
        ended = self.run(line)
        assert ended.code == 2, ended
        return ended.error.splitlines()[-1].removeprefix("sluice: error: ")


def empty_table(folder: Path) -> Shell:
    """A table without quotas, as the job makes it: version 0."""
    shell = Shell(folder / "quotas")
    shell.table.create([], "seed", datetime(2026, 1, 1, tzinfo=UTC))
    return shell


def check_encoded_name(shell: Shell, line: str) -> None:
    """Run a command with the name CN%3Dapp, which it asks about; FILE stands for a file with it."""
    file = shell.file("- {entity: {user: CN%3Dapp}, quotas: {producer_byte_rate: 1024}}\n")
    odd = "- {tenant: shop, users: [CN%3Dapp], quotas: {producer_byte_rate: 1024}}\n"
    file = shell.file(odd) if line.startswith("tenants import") else file

    ended = invoke(*shlex.split(line.replace("FILE", str(file))), "--table", shell.table.path, code=None)

    (warning,) = (each for each in ended.error.splitlines() if "percent-encoded" in each)
    assert warning.startswith("sluice: warning: ")
    assert "'CN%3Dapp' looks percent-encoded, and requests have names as they are; if 'CN=app' is meant" in warning
    assert "CN=app" not in ended.output  # nothing is changed of the name
