"""The display of `./scripts/run --brokers`: what each client got, and its quota's share of each broker."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from scripts.demo.view import amount, printable
from sluice.state.decisions.request import Share

_SPAN_MS = 10_000

Shares = Mapping[str, Sequence[Share]]
"""Broker -> its shares."""


@dataclass(frozen=True)
class ClientUse:
    """A client, its quota and limit, what it got so far (epoch milliseconds and bytes), and its library's errors.

    The limit is None where it was removed.
    """

    client_id: str
    quota: str
    limit: float | None
    samples: Sequence[tuple[int, float]]
    errors: Sequence[str]

    def rate(self, from_ms: int, to_ms: int) -> float:
        """Bytes per second between two times.

        >>> ClientUse("a", "producer_byte_rate", 1e6, [(1_000, 500.0), (3_000, 700.0)], []).rate(0, 2_000)
        250.0
        """
        got = sum(amount for time_ms, amount in self.samples if from_ms <= time_ms < to_ms)
        return got / max(to_ms - from_ms, 1) * 1000


def clients_table(uses: Sequence[ClientUse], shares: Shares, at_ms: int) -> Table:
    """A row for each client: quota, what it got cluster-wide in the last 10 s, and of each broker share and use."""
    table = Table(title="clients at full speed; of each broker: its share | what it let through", title_justify="left")
    table.add_column("client-id", no_wrap=True)
    for column in ("quota", "cluster-wide", *shares):
        table.add_column(escape(printable(column)), no_wrap=True, justify="right")
    for use in uses:
        got = amount(use.quota, use.rate(at_ms - _SPAN_MS, at_ms))
        parts = (" | ".join(part) for part in _parts(use, shares))
        table.add_row(escape(printable(use.client_id)), _limit(use), got, *parts)
    return table


def client_lines(uses: Sequence[ClientUse], shares: Shares, at_ms: int) -> Iterator[str]:
    """A line for each client."""
    for use in uses:
        got = amount(use.quota, use.rate(at_ms - _SPAN_MS, at_ms))
        parts = (
            f"{printable(broker)} {used} of {share}"
            for broker, (share, used) in zip(shares, _parts(use, shares), strict=True)
        )
        yield f"{use.client_id:<22} {got} of {_limit(use)}; shares: {', '.join(parts) or 'none yet'}"


def summary_lines(uses: Sequence[ClientUse]) -> Iterator[str]:
    """What each client got in all, the first 10 s left out, in which a fresh counter may burst."""
    yield "cluster-wide, the first 10 s left out:"
    for use in uses:
        times = [time_ms for time_ms, _ in use.samples] or [0]
        rate = use.rate(times[0] + _SPAN_MS, times[-1])
        yield (
            f"  {use.client_id:<22} {amount(use.quota, rate)}, {_of_limit(rate, use)};"
            f" {len(use.errors)} errors{''.join(f'; {printable(error)}' for error in use.errors[:1])}"
        )


def _limit(use: ClientUse) -> str:
    return "no limit" if use.limit is None else amount(use.quota, use.limit)


def _of_limit(rate: float, use: ClientUse) -> str:
    return "without a limit at the end" if use.limit is None else f"{rate / use.limit:.2f} of its quota"


def _parts(use: ClientUse, shares: Shares) -> Iterator[tuple[str, str]]:
    """Share and rate of the client's counter at each broker; - where a broker doesn't say."""
    for of_broker in shares.values():
        found = [s for s in of_broker if s.quota == use.quota and s.entity.client_id == use.client_id]
        yield (amount(use.quota, found[0].share), amount(use.quota, found[0].charged)) if found else ("-", "-")
