"""Amounts that clients got, measured against their quota."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scripts.scenarios.closed_loop.simulation import Served
from scripts.scenarios.closed_loop.situation import Counters, Situation

FIRST_MS = 10_000
"""The beginning that figures called `..._after` leave out: a new counter may burst for a window of its quota."""


FIRST_MINUTE_MS = 60_000


@dataclass(frozen=True)
class Measures:
    """Served amounts over the quota, the longest silence in seconds, and the part of the quota that was not used.

    `worst_minute` and `worst_5s` are the most in any sliding 60 and 5 s. `..._after` leaves out the first 10 s,
    `worst_later_minute` the first minute. The silence is the longest time in which clients that wanted to send were
    served nothing, all of a counter together. `unused` is 1 - served / min(demand, quota).
    """

    mean: float
    mean_after: float
    worst_minute: float
    worst_minute_after: float
    worst_later_minute: float
    worst_5s: float
    worst_5s_after: float
    longest_silence_s: float
    unused: float
    requests: int


def measure(situation: Situation, served: Served) -> Measures:
    """The figures of one simulation."""
    end_ms = situation.seconds * 1000.0
    rows = list(zip(served.times_ms, served.amounts, strict=True))
    after = [row for row in rows if row[0] >= FIRST_MS]
    total, allowed = sum(served.amounts), situation.allowed(0, end_ms)
    on = situation.on_ms / (situation.on_ms + situation.off_ms) if situation.off_ms else 1.0
    wanted = min(situation.demand * situation.seconds * on, allowed)
    return Measures(
        mean=total / allowed,
        mean_after=sum(amount for _, amount in after) / situation.allowed(FIRST_MS, end_ms),
        worst_minute=_worst(situation, rows, 60_000),
        worst_minute_after=_worst(situation, after, 60_000),
        worst_later_minute=_worst(situation, [row for row in rows if row[0] >= FIRST_MINUTE_MS], 60_000),
        worst_5s=_worst(situation, rows, 5_000),
        worst_5s_after=_worst(situation, after, 5_000),
        longest_silence_s=max(_silence_ms(situation, times) for times in _by_counter(situation, served)) / 1000,
        unused=1 - total / wanted,
        requests=len(rows),
    )


def _worst(situation: Situation, rows: Iterable[tuple[float, float]], span_ms: int) -> float:
    """The most that was served in a sliding window, over what the quota allows in it."""
    span_ms = min(span_ms, situation.seconds * 1000)
    window: deque[tuple[float, float]] = deque()
    inside = worst = 0.0
    for time_ms, amount in rows:
        window.append((time_ms, amount))
        inside += amount
        while window[0][0] <= time_ms - span_ms:
            inside -= window.popleft()[1]
        from_ms = max(0.0, time_ms - span_ms)
        worst = max(worst, inside / situation.allowed(from_ms, from_ms + span_ms))
    return worst


def _by_counter(situation: Situation, served: Served) -> list[list[float]]:
    """The times at which requests on each counter were served."""
    if situation.counters is Counters.SHARED:
        return [served.times_ms]
    times: list[list[float]] = [[] for _ in range(situation.clients)]
    for time_ms, client in zip(served.times_ms, served.clients, strict=True):
        times[client].append(time_ms)
    return times


def _silence_ms(situation: Situation, times_ms: Sequence[float]) -> float:
    """The longest time between two served requests, pauses of the clients left out."""
    edges = [0.0, *times_ms, situation.seconds * 1000.0]
    return max(_sending_ms(situation, later) - _sending_ms(situation, time) for time, later in pairwise(edges))


def _sending_ms(situation: Situation, time_ms: float) -> float:
    """Time in which clients wanted to send, until a moment."""
    if not situation.off_ms:
        return time_ms
    periods, rest = divmod(time_ms, situation.on_ms + situation.off_ms)
    return periods * situation.on_ms + min(rest, situation.on_ms)
