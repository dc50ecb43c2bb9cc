"""Settings and tables of a job that recorded something, for the tests of commands that read them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from recorded import event_at, simulated, write_decisions
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.accounts import STRANGER, as_account
from tests.builders import quota
from tests.commands import invoke

TABLES = ("quotas", "decisions", "quota_metrics", "dead_letters", "unreadable", "overrides")
NOW = datetime.now(UTC)


def settings_in(folder: Path) -> Path:
    """Settings of a job with tables in the folder."""
    file = folder / "sluice.yaml"
    tables = ", ".join(f"{name}: {folder}/{name}" for name in TABLES)
    file.write_text(
        f"delta: {{{tables}}}\nenforce: {{checkpoint: {folder}/enforce}}\naudit: {{checkpoint: {folder}/audit}}\n"
        "kafka: {bootstrap.servers: 127.0.0.1:1}\n"
    )
    file.chmod(0o644)
    return file


def recorded(folder: Path, *days_ago: int) -> None:
    """Decisions of these days, and a quota."""
    quotas: list[QuotaEntry] = [quota(QuotaKind.PRODUCER_BYTE_RATE, 100.0, user="alice")]
    QuotasTable(str(folder / "quotas")).create(quotas, "test", NOW)
    for days in days_ago:
        write_decisions(folder / "decisions", simulated([event_at(NOW - timedelta(days), "alice", "Produce")], quotas))


def assert_names_what_a_stranger_may_not_read(command: Sequence[str], everybodys: Path) -> None:
    """Tables in a folder of root alone are named as such by a command of another account, not as absent."""
    tables = everybodys / "tables"
    tables.mkdir()
    recorded(tables, 1)
    settings = settings_in(everybodys)
    settings.write_text(settings.read_text().replace(f"{everybodys}/", f"{tables}/"))
    invoke(*command, "--config", settings, code=None)  # the other account may not read Python's own modules
    tables.chmod(0o700)

    with as_account(STRANGER):
        said = invoke(*command, "--config", settings, code=1).error.splitlines()[-1]

    assert f"this account ({STRANGER}) may not read {tables}, which is of root with mode 700; use the" in said
