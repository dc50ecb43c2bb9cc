"""The mirror of a cluster's quotas: one version for each change, and what is in force where the cluster is away."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.kafka_io.errors import KafkaUnavailableError
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.quota_watch import QuotaWatch
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_toolbox.cluster import ClusterQuota, RawEntity
from sluice_toolbox.cluster_quotas import ClusterQuotasReader
from sluice_toolbox.quota_mirror import QuotaMirror

AT = datetime(2026, 1, 1, tzinfo=UTC)
KIND = QuotaKind.PRODUCER_BYTE_RATE

ALICE = QuotaEntry(QuotaEntity(user="alice"), KIND, 1024.0)
BOB = QuotaEntry(QuotaEntity(user="bob"), KIND, 2048.0)
TRIAL = QuotaEntry(QuotaEntity(user="alice"), KIND, 512.0, shadow=True)
ORDERS = QuotaEntry(QuotaEntity(topic="orders"), QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1e6)


class Cluster(ClusterQuotasReader):
    """A cluster in memory, whose faults a broker wouldn't have on demand."""

    def __init__(self) -> None:
        self.quotas: list[tuple[RawEntity, dict[str, float]]] = []
        self.fault: Exception | None = None

    def read(self) -> list[ClusterQuota]:
        if self.fault:
            raise self.fault
        return [ClusterQuota(*quota) for quota in self.quotas]


class Mirrored:
    """A table with quotas of its own, the job's watch on it, and the mirror of a cluster."""

    def __init__(self, folder: Path, *entries: QuotaEntry) -> None:
        self.cluster = Cluster()
        self.table = QuotasAdmin(str(folder / "quotas"))
        self.table.create(entries, "carol", AT)
        self.watch = QuotaWatch(self.table, QuotaSnapshots(Checkpoint(str(folder / "checkpoint"))))
        self.reports: list[tuple[str | None, int]] = []
        self.mirror = QuotaMirror(
            self.cluster, self.table, self.watch.in_force, 1, lambda *report: self.reports.append(report)
        )

    def poll(self, times: int = 1) -> None:
        """Do so often what both threads of the job do."""
        for _ in range(times):
            self.mirror.poll()
            self.watch.poll()


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path, ALICE, BOB, TRIAL, ORDERS)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "sluice.mirror"]


def test_the_first_look_replaces_the_tables_client_quotas_in_one_version(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    """Shadow and topic quotas stay. History names the author, and the log counts the changes."""
    caplog.set_level(logging.INFO)
    mirrored.cluster.quotas = [
        ({"user": "alice"}, {"producer_byte_rate": 4096.0}),
        ({"user": None, "client-id": None}, {"request_percentage": 50.0, "consumer_byte_rate": 1.0}),
    ]
    mirrored.poll()

    default = QuotaEntity(user=DEFAULT, client_id=DEFAULT)
    assert set(mirrored.table.entries()) == {
        TRIAL,
        ORDERS,
        QuotaEntry(ALICE.entity, KIND, 4096.0),
        QuotaEntry(default, QuotaKind.REQUEST_PERCENTAGE, 50.0),
        QuotaEntry(default, QuotaKind.CONSUMER_BYTE_RATE, 1.0),
    }
    changes = [change for change in mirrored.table.history() if change.version == 1]
    assert {change.changed_by for change in changes} == {"kafka"}
    assert len(changes) == 4
    assert messages(caplog) == [
        "quotas version 1 has the cluster's quotas of users and client-ids: 2 added, 1 changed, 1 removed"
    ]
    assert mirrored.watch.quotas.version == 1


def test_only_a_change_makes_a_version(mirrored: Mirrored) -> None:
    mirrored.cluster.quotas = [({"user": "alice"}, {"producer_byte_rate": 4096.0})]
    mirrored.poll(3)
    assert mirrored.table.version() == 1

    mirrored.cluster.quotas = [({"user": "alice"}, {"producer_byte_rate": 8192.0})]
    mirrored.poll(3)
    assert mirrored.table.version() == 2


def test_a_change_that_is_not_yet_in_force_is_not_made_or_logged_again(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    """The mirror may look twice before the watch does."""
    caplog.set_level(logging.INFO)
    mirrored.cluster.quotas = [({"user": "alice"}, {"producer_byte_rate": 4096.0})]
    mirrored.mirror.poll()
    mirrored.mirror.poll()

    assert mirrored.table.version() == 1
    assert len(messages(caplog)) == 1


def test_a_quota_that_was_removed_in_the_cluster_is_removed(mirrored: Mirrored) -> None:
    mirrored.cluster.quotas = [({"user": "alice"}, {"producer_byte_rate": 1024.0, "request_percentage": 5.0})]
    mirrored.poll()
    mirrored.cluster.quotas = [({"user": "alice"}, {"request_percentage": 5.0})]
    mirrored.poll()

    enforced = [entry for entry in mirrored.table.entries() if not entry.shadow and entry.entity.topic is None]
    assert enforced == [QuotaEntry(ALICE.entity, QuotaKind.REQUEST_PERCENTAGE, 5.0)]


def test_a_change_of_the_table_that_is_not_yet_in_force_is_not_lost(mirrored: Mirrored) -> None:
    """Somebody sets a shadow quota while the mirror reads the cluster."""
    mirrored.cluster.quotas = [({"user": "alice"}, {"producer_byte_rate": 4096.0})]
    new_trial = QuotaEntry(QuotaEntity(user="bob"), KIND, 1.0, shadow=True)
    mirrored.table.alter(lambda entries: [*entries, new_trial], "dave", AT)
    mirrored.poll()

    assert set(mirrored.table.entries()) == {TRIAL, new_trial, ORDERS, QuotaEntry(ALICE.entity, KIND, 4096.0)}


def test_what_others_do_to_mirrored_quotas_is_undone(mirrored: Mirrored) -> None:
    """As by Spark SQL, or by a command with other settings."""
    mirrored.cluster.quotas = [({"user": "alice"}, {"producer_byte_rate": 1024.0})]
    mirrored.poll()
    mirrored.table.alter(lambda entries: [*entries, BOB], "dave", AT)
    mirrored.poll(2)

    assert set(mirrored.table.entries()) == {ALICE, TRIAL, ORDERS}


@pytest.mark.parametrize("fault", [KafkaUnavailableError("no broker"), TypeError("an answer nobody foresaw")])
def test_a_cluster_that_cannot_be_read_keeps_what_is_in_force(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    """The log says so once, and once that it is over; the report says so each time."""
    caplog.set_level(logging.INFO)
    mirrored.cluster.fault = fault
    mirrored.poll(3)

    assert mirrored.table.version() == 0
    assert messages(caplog) == [f"{fault}; quotas version 0 stays in force"]
    assert mirrored.reports == [(str(fault), 0)] * 3

    mirrored.cluster.fault = None
    mirrored.cluster.quotas = [
        ({"user": "alice"}, {"producer_byte_rate": 1024.0}),
        ({"user": "bob"}, {"producer_byte_rate": 2048.0}),
    ]
    mirrored.poll(2)
    assert messages(caplog)[1:] == ["the cluster's quotas are mirrored again"]
    assert mirrored.reports[3:] == [(None, 0)] * 2


def test_a_table_that_cannot_be_altered_is_a_trouble_too(mirrored: Mirrored) -> None:
    (Path(mirrored.table.path) / "_delta_log" / f"{0:020d}.json").write_text("{broken")
    mirrored.poll()

    ((trouble, _),) = mirrored.reports
    assert trouble is not None
    assert "can't be read" in trouble


def test_a_look_is_followed_by_the_pause_of_the_settings_or_longer_for_many_entities(mirrored: Mirrored) -> None:
    """A large answer must not take a core from the job; a failed look is not repeated at once, each is a login."""
    mirrored.poll()
    assert mirrored.mirror.pause_s() == 0.001
    mirrored.cluster.quotas = [({"user": str(number)}, {"request_percentage": 1.0}) for number in range(200)]
    mirrored.poll()
    assert mirrored.mirror.pause_s() == 0.1
    mirrored.cluster.fault = KafkaUnavailableError("no broker")
    mirrored.poll()
    assert mirrored.mirror.pause_s() == 2.0


def test_what_sluice_cannot_take_is_left_out_and_said_once(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    """And once more when it comes again after it was away."""
    bad: tuple[RawEntity, dict[str, float]] = ({"user": "eve"}, {"fetch_rate": 1.0})
    for quotas in ([bad], [bad], [], [bad]):
        mirrored.cluster.quotas = [({"user": "alice"}, {"producer_byte_rate": 1024.0}), *quotas]
        mirrored.poll()

    said = [message for message in messages(caplog) if message.startswith("left out fetch_rate of user 'eve': ")]
    assert len(said) == 2
    assert [left_out for _, left_out in mirrored.reports] == [1, 1, 0, 1]
    assert ALICE in mirrored.table.entries()


@pytest.mark.parametrize("name", ["CN%3Dapp", "<default>"])
def test_a_name_that_no_client_has_is_mirrored_and_asked_about_once(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    mirrored.cluster.quotas = [({"user": name}, {"producer_byte_rate": 1024.0})]
    mirrored.poll()
    mirrored.cluster.quotas.append(({"user": "bob"}, {"producer_byte_rate": 2048.0}))
    mirrored.poll()

    (said,) = [message for message in messages(caplog) if message.startswith("is this meant? ")]
    assert f"user-principal '{name}'" in said
    assert {name, "bob"} <= {entry.entity.user for entry in mirrored.table.entries()}
