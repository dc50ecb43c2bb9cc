"""`sluice quotas exposure`: what a cluster's own quotas let through while each broker enforces them alone."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.jvm.plugin import CALLBACK_CLASS
from sluice.kafka_io.client import OF_PERSONS
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_reading.format import amount, short
from sluice_reading.options import JsonOption
from sluice_reading.output import print_json, print_lines
from sluice_reading.quota_text import plain_number
from sluice_reading.text_tables import table_lines, terminal_width
from sluice_reading.texts import entity_text, odd_names
from sluice_toolbox.cluster import client_quotas
from sluice_toolbox.exposure import ClusterFacts, Exposed, exposed, shadowed, unlimited, unseen
from sluice_toolbox.quota_text import read_properties

_MOST_NAMES = 10
"""Most users that a line names."""


def quotas_exposure(
    bootstrap_servers: Annotated[
        str, typer.Option("--bootstrap-servers", "--bootstrap-server", help="The Kafka cluster to ask.")
    ],
    command_config: Annotated[
        Path | None, typer.Option("--command-config", help="Properties file for reaching the cluster.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show what a Kafka cluster's quotas let through, as each of its brokers enforces them alone. Changes nothing.

    It needs no plugin, job or Java: it asks the cluster for its quotas, leaders, rights, logins and consumer groups.
    """
    from sluice_toolbox.cluster_facts import read_cluster  # Kafka's client is slow to import

    properties = read_properties(command_config) if command_config else {}
    cluster, facts = read_cluster(OF_PERSONS | properties | {"bootstrap.servers": bootstrap_servers}, CALLBACK_CLASS)
    entries, left_out = client_quotas(cluster)
    found = exposed(entries, facts)
    notes = list(_notes(entries, facts, left_out))
    if json_output:
        print_json(_json(found, facts, notes), indent=True)
        return
    print_lines([f"{len(facts.leaders)} of {len(facts.brokers)} brokers lead partitions; {_enforced(facts)}"])
    if found:
        columns = ("quota", "key", "set", "possible today", "times", "known by")
        print_lines(table_lines(columns, map(_row, found), terminal_width(), ("known by", "times"), ("quota",)))
    print_lines(notes or ["nothing else stands out"])


def _enforced(facts: ClusterFacts) -> str:
    if not facts.sharing:
        return "each enforces a quota alone"
    if facts.sharing >= facts.brokers:
        return "all have Sluice's plugin and share each quota"
    return f"{len(facts.sharing)} have Sluice's plugin and share each quota, the others enforce it alone"


def _row(each: Exposed) -> tuple[str, ...]:
    kind, value = each.entry.kind, each.entry.value
    assert isinstance(kind, QuotaKind)  # noqa: S101 # for mypy: a cluster has no other kinds
    texts = (amount(kind, value), amount(kind, each.possible), str(each.times), each.source)
    return short(entity_text(each.entry.entity)), str(kind), *texts


def _notes(entries: list[QuotaEntry], facts: ClusterFacts, left_out: Iterable[str]) -> Iterator[str]:
    """A line for each thing that its owner may not know."""
    if not entries:
        yield "no quotas on users or client-ids: nobody is limited"
    for under, over in shadowed(entries):
        yield f"never used: {_quota(under)}; {entity_text(over.entity)} comes before it for all of its clients"
    for entity in unseen(entries, facts):
        yield f"matches nobody, it seems: {entity_text(entity)} has no SCRAM login and no right on a topic"
    for line in odd_names(entry.entity for entry in entries):
        yield f"is this meant? {line}"
    for kind, users in unlimited(entries, facts).items():
        more = f" and {len(users) - _MOST_NAMES} more" if len(users) > _MOST_NAMES else ""
        yield f"no {kind}: {', '.join(map(short, users[:_MOST_NAMES]))}{more}, unless by a client-id"
    for line in left_out:
        yield f"not looked at: {line}"
    for line in facts.unknown:
        yield f"not known: {line}"


def _quota(entry: QuotaEntry) -> str:
    return f"{entry.kind} of {entity_text(entry.entity)}"


def _json(found: Iterable[Exposed], facts: ClusterFacts, notes: list[str]) -> dict[str, Any]:
    quotas = [
        {
            "entity": each.entry.entity.to_mapping(),
            "key": each.entry.kind,
            "set": plain_number(each.entry.value),
            "possible": plain_number(each.possible),
            "times": each.times,
            "known_by": each.source,
        }
        for each in found
    ]
    return {
        "brokers": len(facts.brokers),
        "leading": len(facts.leaders),
        "sharing": len(facts.sharing),
        "quotas": quotas,
        "notes": notes,
    }
