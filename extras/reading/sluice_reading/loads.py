"""Loads of brokers over time, and the clients without a limit that are behind them."""

from collections.abc import Iterable, Sequence
from heapq import nlargest

from sluice.state.contract.records import MAX_UNLIMITED, Heartbeat, Load, UnlimitedClient

MEAN_OF_MS = 10_000
"""Time that a mean of loads covers."""

_MEASURED = ("bytes_in_per_s", "bytes_out_per_s", "handler_idle", "network_idle", "queue_used", "queue_wait_ms")


def heaviest_unlimited(heartbeats: Iterable[Heartbeat]) -> list[UnlimitedClient]:
    """The clients without a limit that move the most, by the heartbeats of all brokers.

    >>> beats = [Heartbeat(0, 0, unlimited=[UnlimitedClient("", name, 2.0, 1.0)]) for name in ("app", "app", "etl")]
    >>> [(each.client_id, each.bytes_in_per_s) for each in heaviest_unlimited(beats)]
    [('app', 4.0), ('etl', 2.0)]
    """
    found: dict[tuple[str, str], UnlimitedClient] = {}
    for heartbeat in heartbeats:
        for each in heartbeat.unlimited:
            client = found.setdefault((each.user, each.client_id), UnlimitedClient(each.user, each.client_id, 0.0, 0.0))
            client.bytes_in_per_s += each.bytes_in_per_s
            client.bytes_out_per_s += each.bytes_out_per_s
    return nlargest(MAX_UNLIMITED, found.values(), key=lambda each: each.bytes_in_per_s + each.bytes_out_per_s)


def mean_load(loads: Sequence[Load]) -> Load:
    """The mean of each figure over the loads of one broker that have it, at least one load, the newest last.

    >>> mean_load([Load(handler_idle=0.5), Load(handler_idle=0.7, queue_wait_ms=3.0)])
    Load(broker_id=None, bytes_in_per_s=None, bytes_out_per_s=None, handler_idle=0.6, network_idle=None, \
queue_used=None, queue_wait_ms=3.0, log_dirs=[])
    """
    means: dict[str, float] = {}
    for name in _MEASURED:
        figures = [figure for load in loads if (figure := getattr(load, name)) is not None]
        if figures:
            means[name] = sum(figures) / len(figures)
    newest = loads[-1]
    return Load(newest.broker_id, log_dirs=newest.log_dirs, **means)
