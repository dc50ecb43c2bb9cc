"""Shares of many counters at once, by the rules of `sluice.state.shares.counter_share`, where traffic is a flow.

Waits are shorter than a step then, and gateways stay the same. Decisions arrive `delay_s` after what they decide.
"""

from collections import deque
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from sluice.state.arithmetic.columns import Flags, Floats
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.shares.counter_share import (
    CORRECTION_S,
    GROWTH,
    MAX_CREDIT_S,
    MAX_DEBT_S,
    RAMP_S,
    SILENT_S,
    Metering,
)

SPAN_S = Metering.of(QuotaSettings()).span_ms / 1000.0
"""Shortest time that a meter covers."""

REQUEST_S = 0.1
"""Time in which a client's limit lets one of its requests through."""

_NEVER_S = -1e6


class FlowShares:
    """The shares of n counters on g gateways. Arrays are (n, g), limits (n, 1); times are seconds that only grow."""

    def __init__(self, counters: int, gateways: int, delay_s: float, step_s: float) -> None:
        shape = (counters, gateways)
        self._delay_s = delay_s
        self._step_s = step_s
        self._share = np.zeros(shape)
        self._share_s = np.full(shape, _NEVER_S)  # of the last charge
        self._throttled_s = np.full(shape, _NEVER_S)  # until when a client waited
        self._active_s = np.full(shape, _NEVER_S)  # of the first charge after an idle time
        self._charged = np.zeros(shape)  # as decided; fades, and divided by SPAN_S it is a rate
        self._charged_s = np.full(shape, _NEVER_S)
        self._decided_s = np.full((counters, 1), _NEVER_S)
        self._hungry_s = np.full(shape, _NEVER_S)  # until when a gateway wants more
        self._left = np.full((counters, 1), np.inf)
        self._undecided: deque[tuple[float, Floats, Flags]] = deque()

    def shares(self, limits: Floats, uses: Flags, now_s: float) -> Floats:
        """The shares now, where traffic `uses` them; elsewhere they stay as they were."""
        while self._undecided and self._undecided[0][0] <= now_s - self._delay_s + 1e-9:
            self._decide(*self._undecided.popleft(), limits, now_s)
        first = limits / self._share.shape[1]
        is_idle = now_s > np.maximum(self._share_s, self._throttled_s) + SPAN_S
        grown = self._share + limits * (now_s - self._share_s) / RAMP_S
        most = np.where(self._charged_s < self._active_s, np.maximum(first, self._share), grown)
        shares = np.minimum(self._targets(limits, now_s), np.where(is_idle, first, most))
        self._share = np.where(uses, shares, self._share)
        self._active_s[uses & is_idle] = now_s
        self._share_s[uses] = now_s
        return self._share

    def record(self, served: Floats, waited: Flags, now_s: float) -> None:
        """Charge what was served in a step, and where clients waited. At its end, they wait for a request more."""
        self._undecided.append((now_s, served, waited))
        self._throttled_s[waited] = now_s + self._step_s + REQUEST_S

    def _decide(self, at_s: float, served: Floats, waited: Flags, limits: Floats, now_s: float) -> None:
        is_charged = served > 0
        faded = self._charged * np.exp((self._charged_s - at_s) / SPAN_S) + served
        self._charged = np.where(is_charged, faded, self._charged)
        self._charged_s[is_charged] = at_s
        self._decided_s[is_charged.any(axis=1)] = at_s
        self._hungry_s[waited] = now_s + SPAN_S
        left = self._left + limits * self._step_s - served.sum(axis=1, keepdims=True)
        self._left = np.clip(left, -MAX_DEBT_S * limits, MAX_CREDIT_S * limits)

    def _targets(self, limits: Floats, now_s: float) -> Floats:
        """The shares that max-min fairness gives the gateways."""
        gateways = self._share.shape[1]
        if gateways == 1:
            return limits
        floor = limits / (2 * gateways)
        ages_s = self._decided_s - self._charged_s
        rates = self._charged / SPAN_S * np.exp(-ages_s * (1 / SPAN_S + 1 / SILENT_S))
        is_hungry = self._hungry_s > now_s
        content = _of_others(np.where(is_hungry, 0.0, rates))
        wanted = _of_others(np.where(is_hungry, np.maximum(floor, GROWTH * rates), 0.0))
        free = limits + np.minimum(self._left, MAX_CREDIT_S * limits) / CORRECTION_S - sum(content)
        return np.maximum(floor, equal_parts(free, wanted))


def _of_others(amounts: Floats) -> list[Floats]:
    """For each gateway the amount of the next one, of the one after that, and so on."""
    return [np.roll(amounts, -step, axis=1) for step in range(1, amounts.shape[1])]


def equal_parts(free: Floats, wanted: Sequence[Floats]) -> Floats:
    """An equal part of what is free for one more than want these amounts; those that want less get what they want.

    To serve any of them whole, and the rest alike, leaves at most as much as to serve the right ones does.

    >>> equal_parts(np.array([1000.0]), [np.array([600.0]), np.array([100.0])])
    array([450.])
    """
    parts = free / (1 + len(wanted))
    for count in range(1, len(wanted) + 1):
        for whole in combinations(wanted, count):
            parts = np.maximum(parts, (free - sum(whole)) / (1 + len(wanted) - count))
    return parts
