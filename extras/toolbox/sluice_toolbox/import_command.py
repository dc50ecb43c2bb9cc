"""`sluice quotas import`: the quotas of a Kafka cluster into the table, once."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.kafka_io.client import OF_COMMANDS, OF_PERSONS
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import ElasticKey
from sluice_reading.options import TableOptions, grouped
from sluice_reading.texts import odd_names
from sluice_toolbox.cluster import client_quotas, raw_text
from sluice_toolbox.cluster_changes import is_mirrored
from sluice_toolbox.quota_commands import DryRunOption, edit, merging
from sluice_toolbox.quota_options import AuthorOption, YesOption
from sluice_toolbox.quota_text import read_properties

EXIT_FAILED = 1


@grouped
def import_quotas(
    table: TableOptions,
    author: AuthorOption,
    bootstrap_servers: Annotated[
        str, typer.Option("--bootstrap-servers", "--bootstrap-server", help="The Kafka cluster to read.")
    ],
    command_config: Annotated[
        Path | None, typer.Option("--command-config", help="Properties file for reaching the cluster.")
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove quotas of users and client-ids that the cluster doesn't have.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Import the client quotas of a Kafka cluster.

    Shows the changes and asks. Quotas that no cluster has stay, also with --prune: those of tenants and topics, those
    in mode shadow, and those that Kafka proxies alone hold.
    """
    wanted, refused = _cluster_quotas(bootstrap_servers, command_config)
    if prune and not wanted:
        raise UsageError(
            f"the cluster at {bootstrap_servers} has no quotas of users and client-ids, and --prune would remove all;"
            " check the address, or remove them by `sluice quotas alter --delete-config`"
        )
    for line in odd_names(entry.entity for entry in wanted):
        typer.echo(f"sluice: warning: {line}", err=True)
    edit(table, merging(table, wanted, absent_from(wanted) if prune else None), author, dry_run=dry_run, yes=yes)
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _cluster_quotas(bootstrap_servers: str, command_config: Path | None) -> tuple[list[QuotaEntry], bool]:
    """The cluster's quotas, and whether one was refused; standard error says which are left out."""
    from sluice_toolbox.cluster_quotas import read_cluster_quotas  # Kafka's client is slow to import

    # another cluster: no login of the settings goes there
    properties = read_properties(command_config) if command_config else {}
    cluster = read_cluster_quotas(OF_PERSONS | properties | OF_COMMANDS | {"bootstrap.servers": bootstrap_servers})
    for entity in [quota.entity for quota in cluster if "ip" in quota.entity]:
        typer.echo(f"left out {raw_text(entity)}: Sluice has no quotas on ips", err=True)
    entries, refused = client_quotas(cluster)
    for line in refused:
        typer.echo(f"refused {line}", err=True)
    return entries, bool(refused)


def absent_from(cluster: Iterable[QuotaEntry]) -> Callable[[QuotaEntry], bool]:
    """A test that is true for quotas of users and client-ids which this cluster could have and hasn't.

    So it is for a reservation beside such a quota.
    """
    limits = {(entry.entity, entry.kind) for entry in cluster}

    def is_absent(entry: QuotaEntry) -> bool:
        if isinstance(entry.kind, ElasticKey):
            return entry.entity.tenant is None and (entry.entity, entry.kind.quota) not in limits
        return is_mirrored(entry) and (entry.entity, entry.kind) not in limits

    return is_absent
