"""Java's rounding and division, which every wait in Kafka is computed with."""

import math

LONG_MAX = 9_223_372_036_854_775_807
LONG_MIN = -9_223_372_036_854_775_808


def round_half_up(value: float) -> int:
    """Java's Math.round: halves round up, NaN gives 0, infinities saturate at the bounds of a long.

    >>> [round_half_up(value) for value in (2.5, -2.5, 0.49999999999999994)]
    [3, -2, 0]
    """
    if value != value:
        return 0
    if value >= LONG_MAX:
        return LONG_MAX
    if value <= LONG_MIN:
        return LONG_MIN
    whole = math.floor(value)
    return whole + 1 if value - whole >= 0.5 else whole


def divide(dividend: float, divisor: float) -> float:
    """IEEE division as Java does it: dividing by zero gives an infinity or NaN, never an error.

    >>> divide(1.0, 0.0)
    inf
    """
    if divisor != 0.0:
        return dividend / divisor
    if dividend == 0.0 or dividend != dividend:
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)
