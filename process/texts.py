"""Entities, counters and limits in words, the same in commands, on pages and in messages."""

from collections.abc import Iterable
from urllib.parse import unquote

from sluice.process.format import moment, percent
from sluice.state.contract.gateway_topics import Override
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags

NO_NAME = "(no name)"
"""A client that gave neither user nor client-id, and one of them in a table that has both."""


def entity_text(entity: QuotaEntity) -> str:
    """The entity as kafka-configs.sh prints it.

    >>> entity_text(QuotaEntity(user=DEFAULT, client_id="app"))
    "the default user-principal, client-id 'app'"
    """
    parts = {
        "tenant": entity.tenant,
        "user-principal": entity.user,
        "client-id": entity.client_id,
        "topic": entity.topic,
    }
    return ", ".join(
        f"the default {part}" if name is DEFAULT else f"{part} '{name}'"
        for part, name in parts.items()
        if name is not None
    )


def odd_names(entities: Iterable[QuotaEntity]) -> list[str]:
    """A line for each entity whose name no client has, most likely: Kafka's word for defaults, or an encoded name.

    >>> odd_names([QuotaEntity(user="CN%3Dapp", client_id=DEFAULT), QuotaEntity(client_id="50%off")])
    ["user-principal 'CN%3Dapp', the default client-id: 'CN%3Dapp' looks percent-encoded, and requests have names as \
they are; if 'CN=app' is meant, set it on that name"]
    """
    lines = []
    for entity in dict.fromkeys(entities):
        for name in (entity.user, entity.client_id):
            if name == DEFAULT.value:
                lines.append(f"{entity_text(entity)}: a name of that very text, and not the default entity")
            elif isinstance(name, str) and (decoded := decoded_name(name)) is not None:
                lines.append(
                    f"{entity_text(entity)}: {name!r} looks percent-encoded, and requests have names as they are; if"
                    f" {decoded!r} is meant, set it on that name"
                )
    return lines


def decoded_name(name: str) -> str | None:
    """The name that a percent-encoded one stands for; None if it isn't encoded.

    >>> decoded_name("O%3DA%20client"), decoded_name("50%off"), decoded_name("%ff")
    ('O=A client', None, None)
    """
    try:
        decoded = unquote(name, errors="strict")
    except UnicodeDecodeError:
        return None
    return None if decoded == name else decoded


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
