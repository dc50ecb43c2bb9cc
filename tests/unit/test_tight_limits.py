"""An alter that would silence a client that is busy now needs a yes; without tables it says so and goes on."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, bounded_name
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.builders import member
from tests.commands import Ended, invoke

BYTES = QuotaKind.PRODUCER_BYTE_RATE


class Job:
    """The settings and tables of a job."""

    def __init__(self, folder: Path) -> None:
        self._now = datetime.now(UTC).replace(microsecond=0)
        self.metrics = folder / "quota_metrics"
        self.quotas = QuotasTable(str(folder / "quotas"))
        self.quotas.create([QuotaEntry(QuotaEntity(user=DEFAULT), BYTES, 1e6)], "seed", self._now)
        self.config = folder / "settings.yaml"
        delta = {"quotas": self.quotas.path, "quota_metrics": str(self.metrics)}
        self.config.write_text(yaml.safe_dump({"delta": delta}))

    def used(
        self, minutes_ago: float, value: float, mode: str | None = None, quota: str = BYTES, **tags: object
    ) -> None:
        """A row of the metrics: `value` bytes in one minute."""
        start = self._now - timedelta(minutes=minutes_ago)
        start -= timedelta(seconds=start.timestamp() % 60)
        row = {"user": None, "client_id": None, "topic": None, "partition": None, "tenant": None, "mode": mode, **tags}
        row |= {"quota": quota, "window_start": start, "window_s": 60, "value": value, "date": start.date()}
        charged_at = self._now - timedelta(minutes=minutes_ago)
        row |= {"last_timestamp_ms": int(charged_at.timestamp() * 1000)}
        types: dict[str, pa.DataType] = dict.fromkeys(("user", "client_id", "topic", "tenant", "mode"), pa.string())
        types |= {"partition": pa.int32(), "window_start": pa.timestamp("us", "UTC")}
        table = pa.table({name: pa.array([cell], types.get(name)) for name, cell in row.items()})
        write_deltalake(str(self.metrics), table, mode="append", partition_by=["date"])

    def alter(self, limit: float, *options: str, entity: tuple[str, ...] = ("--user", "alice")) -> Ended:
        return self.run(*entity, "--add-config", f"{BYTES}={limit}", "--as", "carol", *options)

    def run(self, *arguments: str) -> Ended:
        return invoke("quotas", "alter", *arguments, "--config", self.config, code=None)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_limit_below_half_of_the_highest_minute_needs_a_yes(job: Job) -> None:
    """Without a terminal it is bad usage, and nothing is changed."""
    job.used(1, 60_000.0, user="alice")
    job.used(5, 120_000.0, user="alice")

    refused = job.alter(999)

    assert refused.code == 2
    assert (
        "rate 999 B/s is less than half of 2 kB/s, the highest minute of the last 15 of user 'alice'" in refused.error
    )
    assert "give --yes if that is meant" in refused.error
    assert job.quotas.version() == 0
    meant = job.alter(999, "--yes", "--json")
    assert (meant.code, job.quotas.version()) == (0, 1)
    assert meant.error.startswith("sluice: warning: producer_byte_rate 999 B/s is less than half")
    assert meant.output.startswith("{")


def test_a_name_that_counters_have_as_a_hash_is_compared_too(job: Job) -> None:
    name = "u" * 257
    job.used(1, 60_000.0, user=bounded_name(name))

    assert job.alter(100, entity=("--user", name)).code == 2


@pytest.mark.parametrize("options", [("--mode", "shadow"), ("--dry-run",)])
def test_what_delays_nobody_needs_no_yes(job: Job, options: tuple[str, ...]) -> None:
    job.used(2, 120_000.0, user="alice")

    assert job.alter(1, *options).code == 0


@pytest.mark.parametrize(
    ("used", "entity"),
    [
        ({"user": "alice", "value": 120_000.0}, ("--user", "alice")),  # half of it is 1000
        ({"user": "bob", "value": 1e9}, ("--user", "alice")),
        ({"user": "alice", "value": 1e9, "minutes_ago": 17}, ("--user", "alice")),
        ({"user": "alice", "value": 1e9, "quota": "consumer_byte_rate"}, ("--user", "alice")),
        ({"user": "alice", "value": 1e9}, ("--client", "app")),  # the user's quota comes first
        ({"tenant": "shop", "value": 1e9}, ("--user-defaults",)),
    ],
)
def test_other_usage_doesnt_count(job: Job, used: dict[str, object], entity: tuple[str, ...]) -> None:
    job.used(**{"minutes_ago": 2, **used})  # type: ignore[arg-type] # the columns' types

    assert job.alter(1000, entity=entity).code == 0


def test_the_minutes_of_the_clients_of_a_user_count_together_and_a_shadow_quota_not_twice(job: Job) -> None:
    for client in ("app", "web"):
        job.used(2, 60_000.0, user="alice", client_id=client)
        job.used(2, 60_000.0, mode="shadow", user="alice", client_id=client)

    assert job.alter(1000).code == 0
    assert job.alter(999).code == 2


def test_a_default_is_compared_with_the_busiest_client_that_it_limits(job: Job) -> None:
    """Alice has a quota of her own."""
    job.alter(10_000_000)
    job.used(2, 6e9, user="alice")
    job.used(2, 120_000.0, user="bob")

    assert "of user 'bob'" in job.alter(999, entity=("--user-defaults",)).error
    assert job.alter(1000, entity=("--user-defaults",)).code == 0


@pytest.mark.parametrize("entity", [("--tenant", "shop"), ("--tenant-defaults",)])
def test_a_tenants_limit_is_compared_with_its_members_together_and_with_its_own_counter(
    job: Job, entity: tuple[str, ...]
) -> None:
    """Its counter was charged what its members were. Clients of no tenant, and topics, don't count."""
    members = [member(tenant="shop", user="shop-*")]
    job.quotas.alter(lambda entries: [*entries, *members], "seed", datetime.now(UTC))
    for used in ({"user": "shop-1"}, {"user": "shop-2"}, {"tenant": "shop"}):
        job.used(2, 60_000.0 * (2 if "tenant" in used else 1), **used)
    job.used(2, 1e9, user="eve")
    job.used(2, 1e9, topic="orders", partition=0)

    refused = job.alter(999, entity=entity)

    assert "less than half of 2 kB/s, the highest minute of the last 15 of tenant 'shop'" in refused.error
    assert job.alter(1000, entity=entity).code == 0


def test_without_a_table_it_says_that_no_usage_is_recorded_yet_and_goes_on(job: Job) -> None:
    result = job.alter(1)

    assert (result.code, job.quotas.version()) == (0, 1)
    assert result.error.startswith("sluice: the limit is not compared with recent usage: no usage is recorded yet in ")
    assert result.error.count("\n") == 1


@pytest.mark.parametrize(
    ("entity", "config", "is_refused"),
    [
        (["--user", "alice"], "producer_byte_rates=1", True),
        (["--user", "alice"], "producer_byte_rate=-1", True),
        (["--tenant-defaults"], "stored_bytes=1", False),  # these have no usage
        (["--tenant-defaults"], "connection_count=2", False),
    ],
)
def test_of_a_limit_that_is_refused_or_has_no_usage_nothing_is_said_of_it(
    job: Job, entity: list[str], config: str, is_refused: bool
) -> None:
    ended = job.run(*entity, "--add-config", config)

    assert (ended.code != 0, ended.error != "") == (is_refused, is_refused)
    assert "recent usage" not in ended.error


def test_a_table_that_cant_be_read_is_no_table_without_usage(job: Job) -> None:
    job.used(1, 1.0, user="alice")
    for commit in (job.metrics / "_delta_log").iterdir():
        commit.write_text("no commit")

    result = job.alter(1)

    assert (result.code, result.error.count("\n")) == (0, 1)
    assert "can't be read" in result.error


def test_an_empty_table_has_no_usage_yet(job: Job) -> None:
    job.used(1, 1.0, user="alice")
    DeltaTable(str(job.metrics)).delete()

    result = job.alter(1)

    assert (result.code, result.error) == (
        0,
        "sluice: the limit is not compared with recent usage: no usage is recorded yet\n",
    )


@pytest.mark.parametrize(
    ("minutes_ago", "note"),
    [
        (1, ""),
        (7, "sluice: the limit is compared with usage until 7 minutes ago; nothing newer is recorded yet\n"),
        (40, "sluice: the limit is not compared with recent usage: what is recorded ends 40 minutes ago\n"),
    ],
)
def test_usage_that_ends_before_now_is_told(job: Job, minutes_ago: int, note: str) -> None:
    """The table is behind for all clients, not for the one that was charged last alone."""
    job.used(minutes_ago, 1.0, user="bob", quota="consumer_byte_rate")

    assert job.alter(1).error == note


def test_old_usage_that_is_compared_still_needs_a_yes(job: Job) -> None:
    job.used(7, 120_000.0, user="alice")

    refused = job.alter(999)

    assert (refused.code, job.quotas.version()) == (2, 0)
    assert "until 7 minutes ago" in refused.error
