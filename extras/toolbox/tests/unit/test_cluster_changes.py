"""The changes by which the table becomes a mirror of a cluster's quotas."""

from hypothesis import given

from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_reading.quota_lists import differences
from sluice_toolbox.cluster import client_quotas
from sluice_toolbox.cluster_changes import cluster_changes, is_mirrored, mirrored
from tests.strategies import as_cluster, quota_entries


@given(quota_entries, quota_entries)
def test_a_mirror_has_the_clusters_quotas_and_all_that_no_cluster_has(
    table: list[QuotaEntry], other: list[QuotaEntry]
) -> None:
    cluster = client_quotas(as_cluster(other)).entries

    after = mirrored(table, cluster)

    assert list(filter(is_mirrored, after)) == cluster
    assert [entry for entry in after if not is_mirrored(entry)] == [entry for entry in table if not is_mirrored(entry)]
    assert not any(cluster_changes(after, cluster))


@given(quota_entries, quota_entries)
def test_the_changes_are_counted_as_history_shows_them(table: list[QuotaEntry], other: list[QuotaEntry]) -> None:
    cluster = client_quotas(as_cluster(other)).entries

    pairs = differences(table, mirrored(table, cluster))

    assert cluster_changes(table, cluster) == (
        sum(old is None for old, _ in pairs),
        sum(old is not None and new is not None for old, new in pairs),
        sum(new is None for _, new in pairs),
    )


def test_tenants_stay_as_they_are() -> None:
    entries = [QuotaEntry(QuotaEntity(tenant="shop"), QuotaKind.PRODUCER_BYTE_RATE, 1000.0)]
    of_user = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, 5.0)

    assert mirrored([*entries, of_user], []) == entries
    assert not any(cluster_changes(entries, []))
