"""Quotas, requests as events, and the decisions on them: the parts that many tests are made of."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.configs.settings import Settings, load_settings
from sluice.state.contract.records import RELEASE
from sluice.state.quotas.entity import QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import EntryKind, Membership, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from sluice_reading.operator_holds import OperatorHold

Json = dict[str, Any]
DEFAULTS = load_settings(environment={})
T0 = 1_700_000_000_000
AT_MS = 1_800_000_000_000
"""The time of a `decision` that has been read, in epoch milliseconds."""

ALICE = QuotaEntity(user="alice")


def changed(settings: Settings, section: str, **values: Any) -> Settings:
    """The settings with other values in a section."""
    return replace(settings, **{section: replace(getattr(settings, section), **values)})


def file_of(path: Path, text: str) -> Path:
    """A file with this text."""
    path.write_text(text)
    return path


def quota(kind: EntryKind, value: float, entity: QuotaEntity = ALICE, shadow: bool = False, **names: Any) -> QuotaEntry:
    """A quota on an entity, which may be given by its names."""
    return QuotaEntry(QuotaEntity(**names) if names else entity, kind, value, shadow)


def member(tenant: str, **names: Any) -> QuotaEntry:
    """A member of a tenant."""
    return quota(Membership.MEMBER, 1.0, tenant=tenant, **names)


def hold_of(client: Tags, at_ms: int, lasting_ms: int, number: int = 0, reason: str = "it floods") -> OperatorHold:
    """A command of the operator carol."""
    whose = reason, "carol", "root", "vm", None
    return OperatorHold(client.user, client.client_id, client.tenant, number, at_ms, lasting_ms, *whose)


def decide(entries: list[QuotaEntry], *events: Json, settings: QuotaSettings | None = None) -> list[Json]:
    """The decision on each event; events are alice's at T0 unless they say otherwise."""
    chosen = replace(DEFAULTS, quota=settings or QuotaSettings())
    filled = [{"user": "alice", "client_id": "app", "timestamp_ms": T0, **event} for event in events]
    simulation = Simulation(Quotas(entries, version=7), chosen)
    return [json.loads(record.value) for record in simulation.decide(json.dumps(event).encode() for event in filled)]


def part_of(found: Any, expected: Any) -> Any:
    """The part of an answer that `expected` names: fields, of lists all elements, or some of them by their numbers."""
    if isinstance(expected, dict):
        numbered = isinstance(found, list)
        return {name: part_of(found[name] if numbered else found.get(name), each) for name, each in expected.items()}
    if isinstance(expected, list) and len(found) == len(expected):
        return [part_of(*pair) for pair in zip(found, expected, strict=True)]
    return found


def creates(*partitions: int, **more: Any) -> Json:
    topics = [{"topic": f"t{number}", "partitions": count} for number, count in enumerate(partitions)]
    return {"api": "CreateTopics", "mutations": topics, **more}


def creates_event(user: str, partitions: list[int], at_ms: int, request_id: str) -> bytes:
    """A CreateTopics of the client c, as it is published."""
    named = {"user": user, "client_id": "c", "timestamp_ms": at_ms, "request_id": request_id}
    return json.dumps(creates(*partitions, **named)).encode()


def moves(api: str, size: int, topic: str = "orders", **more: Any) -> Json:
    return {"api": api, "topic_partitions": [{"topic": topic, "partition": 0, "bytes": size}], **more}


def works(milliseconds: float, api: str = "Metadata", **more: Any) -> Json:
    return {"api": api, "request_time_ns": int(milliseconds * 1_000_000), **more}


def decision(at_ms: int = AT_MS, user: str = "alice", **fields: Any) -> Json:
    """A decision on a Produce of the client app, as it is read from the topic."""
    wait_ms = fields.pop("wait_ms", 0)
    charge = {
        "quota": "producer_byte_rate",
        "entity": {"user": user},
        "matched": "user",
        "limit": 1000.0,
        "value": 10.0,
        "rate": 800.0,
        "throttle_ms": wait_ms,
        "violated": wait_ms > 0,
    }
    return {
        "decision_id": "requests-0-1",
        "request_id": "r",
        "timestamp_ms": at_ms,
        "user": user,
        "client_id": "app",
        "api": "Produce",
        "verdict": "THROTTLE" if wait_ms else "ALLOW",
        "throttle_time_ms": wait_ms,
        "mute_until_ms": at_ms + wait_ms if wait_ms else None,
        "decided_by": "producer_byte_rate" if wait_ms else None,
        "charges": [charge | fields.pop("charge", {})],
        "quota_version": 3,
        "decided_at_ms": at_ms,
    } | fields


def unlimited_of(client_id: str = "noisy", **more: Any) -> Json:
    """A client without a limit in a heartbeat."""
    return {"user": "ANONYMOUS", "client_id": client_id, "bytes_in_per_s": 24e6, "bytes_out_per_s": 0.0} | more


def heartbeat_of(gateway: str = "g", instance: str = "g-1", threads_down: int = 0, **more: Any) -> Json:
    """A decided heartbeat."""
    own = {"threads_down": threads_down, "release": RELEASE}
    heartbeat = {"staleness_ms": 40, "counters": 7, "shares": []} | own | more
    named = {"gateway": gateway, "instance": instance}
    return decision(AT_MS, api="GatewayHeartbeat", heartbeat=heartbeat, charges=[], **named)
