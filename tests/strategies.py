"""Strategies of the property tests: quotas, requests and settings as they may come."""

import json
from typing import Any

from hypothesis import strategies as st

from sluice.state.contract.records import HEARTBEAT_API
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import (
    CLIENT_KINDS,
    TOPIC_KINDS,
    Coexistence,
    ElasticKey,
    Membership,
    QuotaSettings,
    RequestPolicy,
    StorageKey,
    Window,
)
from sluice_toolbox.cluster import ClusterQuota
from sluice_toolbox.cluster_changes import is_mirrored

USERS = ("alice", "bob|x", "", "<default>", "🦊 fox")
CLIENTS = ("app", "app two", "")
TOPICS = ("orders", "clicks")
START_MS = 1_700_000_000_000

_names = st.sampled_from([DEFAULT, "alice", "bob|x", "<default>"])
_client_names = st.sampled_from([DEFAULT, "app", "app two"])
_limits = st.sampled_from([0.5, 1.0, 5.0, 100.0, 1e6])

client_entities = st.one_of(
    st.builds(QuotaEntity, user=_names),
    st.builds(QuotaEntity, client_id=_client_names),
    st.builds(QuotaEntity, user=_names, client_id=_client_names),
)
topic_entities = st.builds(QuotaEntity, topic=st.sampled_from([DEFAULT, *TOPICS]))

tenant_entities = st.builds(QuotaEntity, tenant=st.sampled_from([DEFAULT, "shop", "<default>", "{x}|"]))
_members = st.builds(
    QuotaEntity,
    tenant=st.sampled_from(["shop", "<default>", "{x}|"]),
    user=st.sampled_from(["alice", "bob*", "*", "🦊?fox"]),
    client_id=st.sampled_from([None, "app", "app*"]),
)
tenant_entries = st.lists(
    st.one_of(
        st.builds(QuotaEntry, tenant_entities, st.sampled_from(CLIENT_KINDS), _limits, st.booleans()),
        st.builds(QuotaEntry, _members, st.just(Membership.MEMBER), st.just(1.0)),
        st.builds(QuotaEntry, tenant_entities, st.just(StorageKey.STORED_BYTES), _limits),
    ),
    max_size=6,
)

client_and_topic_entries = st.lists(
    st.one_of(
        st.builds(QuotaEntry, client_entities, st.sampled_from(CLIENT_KINDS), _limits, st.booleans()),
        st.builds(QuotaEntry, topic_entities, st.sampled_from(TOPIC_KINDS), _limits, st.booleans()),
        st.builds(QuotaEntry, client_entities, st.sampled_from(ElasticKey), _limits),
    ),
    max_size=8,
)
quota_entries = st.builds(lambda some, of_tenants: [*some, *of_tenants], client_and_topic_entries, tenant_entries)

windows = st.builds(Window, samples=st.integers(1, 4), window_ms=st.sampled_from([1, 10, 1000]))

quota_settings = st.builds(
    QuotaSettings,
    client_window=windows,
    controller_window=windows,
    policy=st.sampled_from(RequestPolicy),
    coexistence=st.sampled_from(Coexistence),
    validate_only_exempt=st.booleans(),
    max_partitions_per_request=st.sampled_from([1, 5, 10_000]),
)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """A request event, nearly always a good one."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.sampled_from([b"", b"{}", b'{"api": 1}', b"\xff"]))
    api = draw(
        st.sampled_from(["Produce", "Fetch", "CreateTopics", "DeleteTopics", "Metadata", "Heartbeat", HEARTBEAT_API])
    )
    event: dict[str, Any] = {
        "api": api,
        "user": draw(st.sampled_from(USERS)),
        "client_id": draw(st.sampled_from(CLIENTS)),
        "timestamp_ms": START_MS + draw(st.integers(-50, 5000)),
        "api_version": draw(st.integers(0, 8)),
    }
    if draw(st.booleans()):
        event["request_time_ns"] = draw(st.integers(0, 10**9))
        event["network_time_ns"] = draw(st.integers(0, 10**8))
    if api in ("Produce", "Fetch"):
        partition = st.fixed_dictionaries(
            {"topic": st.sampled_from(TOPICS), "partition": st.integers(0, 1), "bytes": st.integers(0, 10**6)}
        )
        if draw(st.integers(0, 3)):
            event["topic_partitions"] = draw(st.lists(partition, max_size=3))
            if draw(st.integers(0, 3)) == 0:
                event["bytes"] = 0
        else:
            event["bytes"] = draw(st.integers(0, 10**6))
        event["withheld"] = draw(st.booleans())
    elif api in ("CreateTopics", "DeleteTopics"):
        mutation = st.fixed_dictionaries({"topic": st.sampled_from(TOPICS), "partitions": st.integers(0, 50)})
        if draw(st.integers(0, 3)):
            event["mutations"] = draw(st.lists(mutation, max_size=3))
        else:
            event["mutations_charged"] = draw(st.integers(0, 50))
        event["validate_only"] = draw(st.booleans())
    elif api == HEARTBEAT_API:
        event["heartbeat"] = {"staleness_ms": 1, "counters": 0}
    return json.dumps(event).encode()


def as_cluster(entries: list[QuotaEntry]) -> list[ClusterQuota]:
    """The enforced client quotas among the entries, as a cluster answers."""
    values: dict[QuotaEntity, dict[str, float]] = {}
    for entry in filter(is_mirrored, entries):
        values.setdefault(entry.entity, {})[entry.kind.value] = entry.value
    return [
        ClusterQuota({part.replace("_", "-"): name for part, name in entity.to_mapping().items()}, own)
        for entity, own in values.items()
    ]
