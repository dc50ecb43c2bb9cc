"""A fact that is asked twice."""

from sluice.state.troubles import AT_ONCE_MS, Flow, is_stale


def is_doubtful(flow: Flow | None, now_ms: int) -> bool:
    """True if requests wait, and nobody can tell yet for how long: by their times answers are still to come, or old.

    >>> late, ahead = Flow(90_000, 70_000, 7, still_ms=4_000), Flow(90_000, 99_000, 7)
    >>> [is_doubtful(flow, 91_000) for flow in (late, late._replace(still_ms=6_000), ahead, Flow(90_000, 92_000, 7))]
    [True, False, True, False]
    """
    if flow is None or flow.answer_ms is None or not flow.waiting or flow.is_measured:
        return False
    return flow.still_ms <= AT_ONCE_MS and (flow.answer_ms > now_ms + AT_ONCE_MS or is_stale(flow, now_ms))
