"""Clients in words, the same in commands and on pages."""

from sluice.process.texts import counter_text, no_default_text
from sluice.state.contract.records import UnlimitedClient
from sluice.state.quotas.entity import Tags
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


def value_text(entry: QuotaEntry) -> str:
    """The value as Java prints it; a quota that is only metered is marked."""
    return java_double(entry.value) + (" (shadow)" if entry.shadow else "")


def strict_text(quotas: Quotas, *, gives_way: bool) -> str | None:
    """The reason why reservations don't count; None if they do. `gives_way` is what the settings say of limits."""
    if not gives_way:
        return "not in force: elastic.limits is strict"
    return f"not in force: {no_default_text(lacking)}" if (lacking := quotas.without_default()) else None
