"""Clients in words, the same in commands and on pages."""

from sluice.process.format import MAX_NAME, amount, short
from sluice.process.texts import counter_text
from sluice.state.contract.records import UnlimitedClient
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind


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
