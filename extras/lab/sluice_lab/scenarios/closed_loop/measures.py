"""Amounts that clients got, measured against their quota."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice_insight.arrays import Floats
from sluice_lab.scenarios.closed_loop.situation import Counters, Situation

FIRST_MS = 10_000
"""Beginning that figures called `..._after` leave out: a new counter may burst for a window of its quota."""

FIRST_MINUTE_MS = 60_000

Served = list[tuple[float, float, int]]
"""Time in ms, amount and client of each served request, in order."""


@dataclass(frozen=True)
class Measures:
    """Served amounts over the quota, the longest silence in seconds, and the part of the quota that was not used.

    `worst_minute` and `worst_5s` are the most in any sliding 60 and 5 s. `..._after` leaves out the first 10 s,
    `worst_later_minute` the first minute. The silence is the longest time in which clients were
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
    """The figures of one run."""
    end_ms = situation.seconds * 1000.0
    rows = np.array(served, float).reshape(-1, 3)
    after = rows[rows[:, 0] >= FIRST_MS]
    total, allowed = float(rows[:, 1].sum()), situation.allowed(0, end_ms)
    wanted = min(situation.demand * situation.seconds, allowed)
    own = situation.counters is Counters.OWN
    by_counter = [rows[rows[:, 2] == client, 0] for client in range(situation.clients)] if own else [rows[:, 0]]
    return Measures(
        mean=total / allowed,
        mean_after=float(after[:, 1].sum()) / situation.allowed(FIRST_MS, end_ms),
        worst_minute=_worst(situation, rows, 60_000),
        worst_minute_after=_worst(situation, after, 60_000),
        worst_later_minute=_worst(situation, rows[rows[:, 0] >= FIRST_MINUTE_MS], 60_000),
        worst_5s=_worst(situation, rows, 5_000),
        worst_5s_after=_worst(situation, after, 5_000),
        longest_silence_s=max(_silence_ms(situation, times_ms) for times_ms in by_counter) / 1000,
        unused=1 - total / wanted,
        requests=len(rows),
    )


def _worst(situation: Situation, rows: Floats, span_ms: int) -> float:
    """The greatest amount in a sliding window, over the amount that the quota allows in it."""
    span_ms = min(span_ms, situation.seconds * 1000)
    times_ms, sums = rows[:, 0], np.concatenate(([0.0], np.cumsum(rows[:, 1])))
    first = np.searchsorted(times_ms, times_ms - span_ms, side="right")
    from_ms = np.maximum(0.0, times_ms - span_ms).tolist()
    allowed = [situation.allowed(begin_ms, begin_ms + span_ms) for begin_ms in from_ms]
    return float(np.max((sums[1:] - sums[first]) / allowed, initial=0.0))


def _silence_ms(situation: Situation, times_ms: Sequence[float] | Floats) -> float:
    """The longest time between two served requests."""
    edges_ms = np.concatenate(([0.0], times_ms, [situation.seconds * 1000.0]))
    return float(np.diff(edges_ms).max())
