"""Bounds on the amounts that Kafka admits under a quota on any machine, by the times of their samples."""

from collections.abc import Iterable, Sequence

from sluice_demo.full_speed_client import Client
from tests.waiting import eventually

BURST_S = 10.0
"""Seconds of its quota that a meter lets through at once: with Kafka's defaults, ten windows of one second."""

LARGEST_REQUEST = 2.0**20
"""Bytes that a client asks for or sends in one request, by the defaults of librdkafka and Java's clients."""

Samples = Iterable[tuple[float, float]]
"""Epoch milliseconds and amounts."""


def came(samples: Samples, since_ms: float = 0) -> float:
    """The amount of the samples since a moment."""
    return sum(amount for at_ms, amount in samples if at_ms >= since_ms)


def check_bound(samples: Samples, quota: float, since_ms: float, under_way: float) -> None:
    """Fails if more came than Kafka admits under a quota: its burst, and the quota for the time since `since_ms`.

    `samples` are those of all clients that share the quota. The time of each counts, so a slow machine is within the
    bound. `under_way` is the amount of requests that may be admitted beyond it, as Kafka charges a request whole and
    throttles the client after it.
    """
    total = 0.0
    for at_ms, amount in sorted(samples):
        if at_ms >= since_ms:
            total += amount
            most = quota * (BURST_S + (at_ms - since_ms) / 1000) + under_way
            assert total <= most, f"{total:,.0f} after {at_ms - since_ms:,.0f} ms; Kafka admits {most:,.0f}"


def check_held(clients: Sequence[Client], quota: float, since_ms: int, under_way: float) -> None:
    """Fails if clients with a common quota get more than Kafka admits since a moment, or less than a sixth of it.

    Waits until they have got so much that unlimited clients would be beyond the bound, however late they begin.
    How near to the quota they come is tested by a clock of the test's own (test_broker_plugin_core.py).
    """

    def samples() -> list[tuple[float, float]]:
        return [sample for client in clients for sample in [*client.samples] if sample[0] >= since_ms]

    eventually(lambda: bool(samples()))
    late_s = (min(samples())[0] - since_ms) / 1000
    eventually(lambda: came(samples()) > quota * (2 * BURST_S + late_s), 6 * (2 * BURST_S + late_s))
    check_bound(samples(), quota, since_ms, under_way)
