"""Entities, counters and limits in words, the same in commands, on pages and in messages."""

from collections.abc import Iterable

from sluice.process.format import moment, percent
from sluice.state.contract.gateway_topics import Override
from sluice.state.quotas.entity import Tags

NO_NAME = "(no name)"
"""A client that gave neither user nor client-id, and one of them in a table that has both."""


def counter_text(counter: Tags) -> str:
    """The counter by its tags.

    >>> counter_text(Tags(user="alice", client_id="app")), counter_text(Tags(topic="orders", partition=3))
    ("user 'alice' and client-id 'app'", "partition 3 of topic 'orders'")
    """
    if counter.topic is not None:
        return f"partition {counter.partition} of topic '{counter.topic}'"
    names = (("user", counter.user), ("client-id", counter.client_id), ("tenant", counter.tenant))
    return " and ".join(f"{label} '{name}'" for label, name in names if name) or NO_NAME


def no_default_text(kinds: Iterable[str]) -> str:
    """The reason why limits don't give way, for quotas of these kinds without a default.

    >>> no_default_text(["consumer_byte_rate"])
    'no default user or client-id has a quota of consumer_byte_rate'
    """
    return f"no default user or client-id has a quota of {' and '.join(kinds)}"


def override_text(override: Override) -> str:
    """An override, and why it is.

    >>> from sluice.state.contract.records import CountedEntity
    >>> override_text(Override("tighten", 0.75, gateway="b-2-1f", reason="b-2: queue wait 34 ms"))
    '75 % of the shares are let through at b-2: queue wait 34 ms'
    >>> override_text(Override("hold", entity=CountedEntity(tenant="shop"), until_ms=0))
    "Producers of tenant 'shop' are throttled until 1970-01-01 00:00:00"
    >>> override_text(Override("hold", entity=CountedEntity(client_id="app"), reason="eve: it floods", consumers=True))
    "Producers and consumers of client-id 'app' are stopped: eve: it floods"
    """
    entity, reason = override.entity, override.reason
    if override.kind == "tighten":
        return f"{percent(override.factor)} of the shares are let through at {reason}"
    until = "" if override.until_ms is None else f" until {moment(override.until_ms)}"
    why = f"{until}{f': {reason}' if reason else ''}"
    if override.consumers and entity is not None:
        return f"Producers and consumers of {counter_text(Tags.of(entity))} are stopped{why}"
    whose = "All producers" if entity is None else f"Producers of {counter_text(Tags.of(entity))}"
    return f"{whose} are throttled{why}"
