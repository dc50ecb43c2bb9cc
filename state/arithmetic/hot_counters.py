"""Hot counters: one entity with so many rows that they are charged sample by sample instead of row by row.

While no sample of a rate ends or is outdated, its rows change one value only. `numpy.add.accumulate` adds one amount
after another, so every sum is that of the scalar engine, to the last bit (a property test compares both).
"""

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from sluice.state.arithmetic.columns import Floats, Integers
from sluice.state.arithmetic.counter import EntityCounters
from sluice.state.arithmetic.counter_arrays import (
    Outcomes,
    charges_by_kind,
    outcomes_of_rates,
    padded_windows_ms,
    single_charges,
)
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.arithmetic.shapes import Charged, Shapes
from sluice.state.quotas.kinds import Family, QuotaKind, QuotaSettings, Window

ROWS_OF_RUN = 32
"""Rows that a run needs to be faster than the scalar engine: 100 us of calls against 3 us a row."""


def charge_hot(
    counters: EntityCounters,
    rows: Sequence[Charged],
    shapes: Shapes,
    settings: QuotaSettings,
    rows_of_run: int = ROWS_OF_RUN,
) -> dict[QuotaKind, Outcomes] | None:
    """Charge one entity with its rows, in order; None, and nothing charged, if that would not be faster.

    It is not if rows step back in time or are few for the samples that they fall into, nor for mutations, whose bucket
    is refilled row by row.
    """
    window, now_ms = settings.client_window, np.array([row.timestamp_ms for row in rows], np.int64)
    runs = 2 * (int(now_ms[-1] - now_ms[0]) // window.window_ms + 1)  # in each window a sample begins, and one ends
    if len(rows) < rows_of_run * runs or (np.diff(now_ms) < 0).any():
        return None
    if not single_charges({"": rows}, shapes, settings):
        return None
    by_kind = charges_by_kind(rows, shapes)
    if any(kind.family is Family.MUTATIONS for kind in by_kind):
        return None
    counters.last_event_ms = max(counters.last_event_ms, int(now_ms[-1]))
    outcomes = {}
    for kind, charges in by_kind.items():
        later = charges.recorded_later(kind)
        measured = _charge_rate(counters.rate(kind), charges.amounts, later, now_ms[charges.rows], window)
        outcomes[kind] = outcomes_of_rates(kind, charges, *measured, window)
    return outcomes


def _charge_rate(
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
    # Samples are added one by one, in their order, as in the scalar engine.
    totals = reduce(add, rate.values[current + 1 :], reduce(add, rate.values[:current], 0.0) + values[1::2])
    windows_ms = padded_windows_ms(now_ms - min(rate.starts_ms), window)
    return totals / (windows_ms / 1000.0), windows_ms
