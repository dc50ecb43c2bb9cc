"""Hot counters: one entity with so many rows that they are charged sample by sample instead of row by row.

While no sample of a rate ends or is outdated, its rows change one value only. `numpy.add.accumulate` adds one amount
after another, so every sum is that of `sampled_rate`, to the last bit (a property test compares both).
"""

from functools import reduce
from operator import add

import numpy as np

from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.kinds import Window
from sluice_insight.arrays import Floats, Integers


def are_hot(now_ms: Integers, window: Window, rows_of_run: int) -> bool:
    """True if rows at these times (m,) are so many for each run."""
    # in each window a sample begins, and one ends
    runs = 2 * (int(now_ms.max() - now_ms.min()) // window.window_ms + 1)
    return len(now_ms) >= rows_of_run * runs


def charged_ms(now_ms: Integers, newest_ms: int) -> Integers:
    """The times (m,) at which a counter charges events of these times: never back from its newest one.

    >>> charged_ms(np.array([3, 7, 6, 8]), newest_ms=5).tolist()
    [5, 7, 7, 8]
    """
    ascending: Integers = np.maximum.accumulate(np.maximum(now_ms, newest_ms))
    return ascending


def charge_rate(
    rate: SampledRate, amounts: Floats, later: Floats, now_ms: Integers, window: Window
) -> tuple[Floats, Integers]:
    """Record, measure, and record `later`, at ascending times, (m,) each: rates (m,), and their windows (m,) in ms."""
    rates, windows_ms = np.empty(len(amounts)), np.empty(len(amounts), np.int64)
    first = 0
    while first < len(amounts):
        start_ms = int(now_ms[first])
        rate.record(float(amounts[first]), window, start_ms)
        rates[first], windows_ms[first] = rate.observe(window, start_ms)
        if later[first]:
            rate.record(float(later[first]), window, start_ms)
        end = int(np.searchsorted(now_ms, _unchanged_until_ms(rate, window)))
        run = slice(first + 1, max(end, first + 1))
        if run.start < run.stop:
            rates[run], windows_ms[run] = _charge_run(rate, amounts[run], later[run], now_ms[run], window)
        first = run.stop
    return rates, windows_ms


def _unchanged_until_ms(rate: SampledRate, window: Window) -> int:
    """The first time at which the current sample is full, or another one is outdated."""
    span_ms = window.samples * window.window_ms
    outdated_ms = [last_ms + span_ms for slot, last_ms in enumerate(rate.last_events_ms) if slot != rate.current]
    return min([rate.starts_ms[rate.current] + window.window_ms, *outdated_ms])


def _charge_run(
    rate: SampledRate, amounts: Floats, later: Floats, now_ms: Integers, window: Window
) -> tuple[Floats, Integers]:
    """The same for times at which only the value of the current sample changes."""
    current, turns = rate.current, np.stack([amounts, later], axis=1).ravel()
    values = np.add.accumulate(np.concatenate([[rate.values[current]], turns]))
    rate.values[current], rate.last_events_ms[current] = float(values[-1]), int(now_ms[-1])
    # Samples are added one by one, in their order, as `SampledRate.observe` does.
    totals = reduce(add, rate.values[current + 1 :], reduce(add, rate.values[:current], 0.0) + values[1::2])
    windows_ms = padded_windows_ms(now_ms - min(rate.starts_ms), window)
    return totals / (windows_ms / 1000.0), windows_ms


def padded_windows_ms(elapsed_ms: Integers, window: Window) -> Integers:
    """`sluice.state.arithmetic.sampled_rate.padded_window_ms` of each element: (m,) -> (m,).

    >>> padded_windows_ms(np.array([999]), Window(samples=11, window_ms=1000)).tolist()
    [10999]
    """
    full_windows = np.trunc(elapsed_ms / window.window_ms).astype(np.int64)
    missing_windows = np.maximum(window.samples - 1 - full_windows, 0)
    padded_ms: Integers = np.maximum(elapsed_ms + missing_windows * window.window_ms, 1)
    return padded_ms
