"""A loop whose time says how fast the machine was just then."""

import time

STEPS = 5_000_000


def calibration_s() -> float:
    """Seconds that a loop of STEPS additions takes now."""
    started_s = time.perf_counter()
    total = 0
    for step in range(STEPS):
        total += step * step
    return time.perf_counter() - started_s
