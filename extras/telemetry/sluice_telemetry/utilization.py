"""The use of a limit in percent, as the beans of brokers show it."""

from collections.abc import Iterable


def utilization(charges: Iterable[tuple[int, int, float]], limit: float, until_ms: int, span_ms: int = 10_000) -> float:
    """Use of a limit in percent: the charges in the span of a meter over what the limit lets through in it (KIP-1373).

    `charges` are the times, in epoch ms, from and until which something was charged evenly, and how much, by all
    gateways; `limit` is a second's. It is above 100 while a client uses its burst.

    Of a limit of 1 000 bytes a second, 1 000 bytes of two that began before the ten seconds, and 3 000 in them:

    >>> charges = [(500, 1_500, 9_000.0), (1_000, 3_000, 2_000.0), (4_000, 4_000, 3_000.0)]
    >>> utilization(charges, 1_000.0, until_ms=12_000)
    40.0
    """
    charged = 0.0
    for from_ms, end_ms, amount in charges:
        begin_ms = min(from_ms, end_ms - 1)  # one request took a moment
        within_ms = min(end_ms, until_ms) - max(begin_ms, until_ms - span_ms)
        charged += amount * max(0, within_ms) / (end_ms - begin_ms)
    return 100 * charged / (limit * span_ms / 1000)
