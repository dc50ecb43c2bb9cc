"""Clients in words, the same in commands and on pages."""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from sluice.process.texts import counter_text, no_default_text
from sluice.state.contract.records import UnlimitedClient
from sluice.state.quotas.entity import DEFAULT, QuotaEntity, Tags
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice_reading.format import MAX_NAME, amount, short


def client_text(user: str | None, client_id: str | None) -> str:
    """The client by the names that are given, long ones cut.

    >>> client_text("alice", None)
    "user 'alice'"
    """
    return counter_text(Tags(short(user or "", MAX_NAME // 2), short(client_id or "", MAX_NAME // 2)))


def unlimited_text(client: UnlimitedClient) -> str:
    """A client without a limit, and what it moves.

    >>> unlimited_text(UnlimitedClient("ANONYMOUS", "noisy", 24e6, 0.0))
    "user 'ANONYMOUS' and client-id 'noisy' 24 MB/s in, 0 B/s out"
    """
    moved = (client.bytes_in_per_s, client.bytes_out_per_s)
    amount_in, amount_out = (amount(QuotaKind.PRODUCER_BYTE_RATE, rate) for rate in moved)
    return f"{client_text(client.user, client.client_id)} {amount_in} in, {amount_out} out"


def java_double(value: float) -> str:
    """A positive finite number as Java's Double.toString prints it.

    >>> [java_double(value) for value in (1024.0, 1e7, 0.001, 1.5e-5, 2e23, 5e-324)]
    ['1024.0', '1.0E7', '0.001', '1.5E-5', '2.0E23', '4.9E-324']
    """
    shortest = repr(value)
    if 1e-3 <= value < 1e7:
        return shortest
    # the fewest digits that identify the number, but at least two
    digits = shortest.split("e")[0].replace(".", "").strip("0")
    mantissa, exponent = f"{value:.{max(2, len(digits)) - 1}e}".split("e")
    return f"{mantissa}E{int(exponent)}"


def property_line(name: str, value: str) -> str:
    """A line of a file of Java properties: read as Latin-1, with backslashes as escapes and without leading spaces."""
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace("\r", r"\r")
    escaped = re.sub(r"^(?=\s)", r"\\", escaped)
    units = escaped.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    return f"{name}=" + "".join(chr(code) if code < 0x80 else f"\\u{code:04x}" for code in codes)


def value_text(entry: QuotaEntry) -> str:
    """The value as Java prints it; a quota that is only metered is marked."""
    return java_double(entry.value) + (" (shadow)" if entry.shadow else "")


def strict_text(quotas: Quotas, *, gives_way: bool) -> str | None:
    """The reason why reservations don't count; None if they do. `gives_way` is what the settings say of limits."""
    if not gives_way:
        return "not in force: elastic.limits is strict"
    return f"not in force: {no_default_text(lacking)}" if (lacking := quotas.without_default()) else None


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
