"""Why a request has the limits it has: the rung that applies, the counter it is charged to, the rungs passed over."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from state.entity import Tags
from state.quota import CLIENT_KINDS, TOPIC_KINDS, QuotaKind
from state.quota_entry import QuotaEntry
from state.resolution import Quotas, Rung, ladder, topic_ladder
from streaming.quota_formats import entity_text, entry_json, value_text


class Explanation(NamedTuple):
    """How one quota kind applies to a request.

    `configured` are the rungs that are set and match, the one that applies first; `counter` is None while no quota of
    the kind is set anywhere, for then nothing is counted.
    """

    kind: QuotaKind
    configured: list[tuple[Rung, QuotaEntry]]
    counter: Tags | None

    def lines(self) -> list[str]:
        """For people: what applies, then what was passed over."""
        counted = f"counted for {_counter_text(self.counter)}" if self.counter else "not counted"
        if not self.configured:
            return [f"{self.kind}: unlimited, {counted}"]
        (_, applied), *passed_over = self.configured
        return [
            f"{self.kind}: {value_text(applied)} from {entity_text(applied.entity)}, {counted}",
            *(f"  passed over {entity_text(entry.entity)}: {value_text(entry)}" for _, entry in passed_over),
        ]

    def to_mapping(self) -> dict[str, Any]:
        """For machines: the same, with the rungs' names as decisions have them (`matched`)."""
        quotas = [
            {"matched": rung, "entity": entry.entity.to_mapping(), **(entry_json(entry) or {})}
            for rung, entry in self.configured
        ]
        return {
            "quota": self.kind,
            "applies": quotas[0] if quotas else None,
            "counter": _counter_mapping(self.counter) if self.counter else None,
            "passed_over": quotas[1:],
        }


def explain(quotas: Quotas, user: str, client_id: str, topic: str | None) -> Iterator[Explanation]:
    """How each client quota applies to this user and client-id and, given a topic, each topic quota to that."""
    for kind in CLIENT_KINDS:
        limits = quotas.client_limits(kind)
        found = [(rung, limits.entry(key)) for rung, key in ladder(user, client_id)]
        counter = quotas.resolve(kind, user, client_id).tags if limits else None
        yield Explanation(kind, [(rung, entry) for rung, entry in found if entry], counter)
    for kind in TOPIC_KINDS if topic is not None else ():
        found = [(rung, quotas.topic_entry(kind, name)) for rung, name in topic_ladder(str(topic))]
        counter = quotas.resolve_topic(kind, str(topic), -1).tags if quotas.enabled(kind) else None
        yield Explanation(kind, [(rung, entry) for rung, entry in found if entry], counter)


def _counter_text(counter: Tags) -> str:
    if counter.topic is not None:
        return f"each partition of topic '{counter.topic}'"
    if not counter.user:
        return f"client-id '{counter.client_id}' of all users"
    return f"user '{counter.user}'" + (f" and client-id '{counter.client_id}'" if counter.client_id else "")


def _counter_mapping(counter: Tags) -> dict[str, str | int]:
    return {"topic": counter.topic} if counter.topic is not None else counter.to_mapping()
