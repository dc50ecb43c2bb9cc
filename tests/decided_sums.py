"""Decisions as records of the sums topic: what the job would have told gateways of them."""

import json
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from msgspec import convert

from sluice.state.contract.records import HEARTBEAT_API, UNMUTE_API, CountedEntity
from sluice.state.quotas.entity import entity_text
from sluice.state.quotas.kinds import KINDS_BY_NAME
from sluice.state.shares.sums import DecidedSums, SummedCharge, gateway_text

SPAN_MS = 10_000
"""The windows of a meter by default."""

_BATCHES = count()


def add_decision(sums: DecidedSums, decision: Mapping[str, Any]) -> None:
    """Add the charges of a decision, which says of them what the job knew when it made them."""
    unmuted = decision.get("api") == UNMUTE_API
    amounts = decision.get("amounts") or {}
    for charge in decision["charges"]:
        kind = KINDS_BY_NAME.get(charge["quota"])
        if kind is None or charge.get("mode") == "shadow" or (charge.get("limit") is None and not unmuted):
            continue
        waits = decision.get("throttled_by")
        applied_ms = [
            wait["ms"] for wait in waits or () if (wait["quota"], wait["entity"]) == (kind.value, charge["entity"])
        ]
        made = SummedCharge(
            kind,
            charge.get("limit"),
            float(charge.get("value", 0.0)),
            decision["timestamp_ms"],
            int(decision.get("decision_id", "r-0-0").rpartition("-")[2]),
            gateway_text(decision.get("instance"), waits is not None),
            max(applied_ms, default=0),
            amounts.get("bytes") is not None,
            charge.get("throttle_ms", 0),
            None if "tokens" in charge else charge.get("rate"),
            withheld=amounts.get("withheld", False),
            is_reset=unmuted,
        )
        sums.add(entity_text(convert(charge["entity"], CountedEntity)), made)


def sums_of(
    decisions: Iterable[Mapping[str, Any]],
    batch: int | None = None,
    job_id: str | None = "test",
    quota_version: int = 1,
    span_ms: int = SPAN_MS,
    decided_at_ms: int = 0,
) -> list[bytes]:
    """The records of the sums topic of one micro-batch that made these decisions, a new one by default."""
    sums, records = DecidedSums(span_ms), []
    for decision in decisions:
        if decision.get("api") == HEARTBEAT_API:
            heartbeat = {name: decision[name] for name in ("instance", "request_id", "timestamp_ms")}
            records.append(json.dumps({"heartbeat": heartbeat}).encode())
        else:
            add_decision(sums, decision)
    number = next(_BATCHES) if batch is None else batch
    return [*records, *sums.records(job_id, number, quota_version, decided_at_ms)]
