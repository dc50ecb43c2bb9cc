"""`sluice quotas import`: which quotas it removes with --prune."""

from datetime import UTC, datetime
from itertools import filterfalse
from pathlib import Path

import pytest
from hypothesis import given

from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import ElasticKey, QuotaKind
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_toolbox import cluster_quotas
from sluice_toolbox.cluster import ClusterQuota, client_quotas
from sluice_toolbox.cluster_changes import is_mirrored
from sluice_toolbox.import_command import absent_from
from tests.builders import quota
from tests.commands import invoke
from tests.strategies import as_cluster, quota_entries


@given(quota_entries, quota_entries)
def test_a_table_without_what_is_absent_has_nothing_that_a_cluster_could_have_and_has_not(
    table: list[QuotaEntry], other: list[QuotaEntry]
) -> None:
    cluster = client_quotas(as_cluster(other)).entries
    limits = {(entry.entity, entry.kind) for entry in cluster}

    stay = list(filterfalse(absent_from(cluster), table))

    assert {(entry.entity, entry.kind) for entry in filter(is_mirrored, stay)} <= limits
    beside = [(entry, entry.kind.quota) for entry in table if isinstance(entry.kind, ElasticKey)]
    assert [entry for entry in stay if isinstance(entry.kind, ElasticKey)] == [
        entry for entry, quota in beside if (entry.entity, quota) in limits
    ]
    others = [entry for entry in table if not is_mirrored(entry) and not isinstance(entry.kind, ElasticKey)]
    assert [entry for entry in stay if entry in others] == others


def test_what_is_no_address_is_bad_usage() -> None:
    ended = invoke("quotas", "import", "--bootstrap-servers", "nowhere", code=2)

    assert ended.error_line.endswith("bootstrap.servers has 'nowhere'; expected host:port, such as kafka-1:9092")


@pytest.mark.parametrize("has", [[], [({"ip": "127.0.0.9"}, {"connection_creation_rate": 9.0})]], ids=["empty", "ips"])
def test_a_cluster_without_quotas_prunes_nothing(
    has: list[tuple[dict[str, str | None], dict[str, float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address, such as that of a new cluster, would take the limits from all clients."""
    monkeypatch.setattr(cluster_quotas, "read_cluster_quotas", lambda _: [ClusterQuota(*each) for each in has])
    table = QuotasAdmin(str(tmp_path / "quotas"))
    table.create([quota(QuotaKind.PRODUCER_BYTE_RATE, 5.0, user="old")], "seed", datetime.now(UTC))
    arguments = ["quotas", "import", "--bootstrap-servers", "k:9092", "--table", table.path, "--yes"]

    ended = invoke(*arguments, "--prune", code=2)
    invoke(*arguments)

    assert "the cluster at k:9092 has no quotas of users and client-ids, and --prune would remove all" in ended.error
    assert len(table.entries()) == 1
