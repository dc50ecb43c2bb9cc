"""The use of a limit in percent, as the beans of brokers show it."""

from collections.abc import Iterable


def utilization(charges: Iterable[tuple[int, float]], limit: float, until_ms: int, span_ms: int = 10_000) -> float:
    """Use of a limit in percent: the charges in the span of a meter over what the limit lets through in it (KIP-1373).

    `charges` are the time until which something was charged, in epoch ms, and how much, by all gateways; `limit` is a
    second's. It is above 100 while a client uses its burst.

    Of a limit of 1 000 bytes a second, and 4 000 bytes in the ten seconds until 12 000 ms:

    >>> utilization([(1_500, 9_000.0), (4_000, 3_000.0), (11_900, 1_000.0)], 1_000.0, until_ms=12_000)
    40.0
    """
    charged = sum(amount for at_ms, amount in charges if until_ms - span_ms < at_ms <= until_ms)
    return 100 * charged / (limit * span_ms / 1000)
