"""Settings and tables of a job that recorded something, for the tests of commands that read them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.builders import quota
from tests.recorded import event_at, simulated, write_decisions

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
