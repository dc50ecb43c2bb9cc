"""Minutes in which clients waited although what they waited for was below its limit, by the table of decisions.

A counter is at its limit in a minute if it was charged NEAR_LIMIT of what the limit allows in that minute, or more, or
still had to make up for charges above the limit in earlier ones. A minute of a client counts if it waited, and none of
the counters that it waited for was at its limit. Waits that no limit asked for, because of a low disk or of a storage
budget, don't count.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow.compute as pc

from sluice.sinks.tables.query import Tables
from sluice.state.quotas.kinds import KINDS_BY_NAME, QuotaKind
from sluice_insight.live import NEAR_LIMIT
from sluice_insight.reports.columns import column_of, distinct, distinct_codes, is_valid, numbers, plain
from sluice_insight.reports.events import EVENTS_AT_ONCE, Events
from sluice_insight.reports.recorded_waits import CHARGED_FIELDS, COUNTER_FIELDS, Names, RecordedWaits, enforced_charges
from sluice_insight.reports.span import Span
from sluice_insight.waits import COUNTER, CounterNames, WaitEnds

_CONSUMER = {kind.value for kind in QuotaKind if kind.consumer}

_USED_FIELDS = (*CHARGED_FIELDS, "charges.value", "charges.limit", "amounts.withheld")

_MINUTES = 2**32
"""More than there are; the number of a counter times this, and a minute, are one code."""

_Used = list[tuple[int, float, float]]


def below_quota(tables: Tables, span: Span, ends: WaitEnds) -> dict[Names, set[int]]:
    """The minutes since 1970 by client (user and client-id). Raises QueryError."""
    waits = RecordedWaits(ends)
    for events in Events(tables.decisions, tables.storage_options, span, COUNTER_FIELDS).batches(EVENTS_AT_ONCE):
        waits.take_of_counters(events, of_clients=True)
    of_all = waits.minutes(span)  # also of clients that are held, whatever their quotas are
    waited = {name: minutes for name, minutes in of_all.items() if len(minutes) and name[2] in KINDS_BY_NAME}
    waiting = {name[2:] for name in waited}
    end = -(-span.end_ms // 60_000)
    full = {counter: full_minutes(used, end) for counter, used in _used(tables, span, waiting).items()}
    below: dict[Names, set[int]] = {}
    at_limit: dict[Names, set[int]] = {}
    for (user, client_id, *counter), found in waited.items():
        minutes, of_counter = set(found.tolist()), full.get(tuple(counter), set())
        below.setdefault((user, client_id), set()).update(minutes - of_counter)
        at_limit.setdefault((user, client_id), set()).update(minutes & of_counter)
    return {client: minutes - at_limit[client] for client, minutes in below.items()}


def _used(tables: Tables, span: Span, waiting: set[CounterNames]) -> Mapping[CounterNames, _Used]:
    """The minutes in which these counters were charged under a limit, as `full_minutes` takes them.

    Bytes that a Fetch took back are no use of it: nobody got them.
    """
    counters = sorted(waiting)
    number_of = {counter: number for number, counter in enumerate(counters)}
    used: dict[int, tuple[float, float]] = {}
    for events in Events(tables.decisions, tables.storage_options, span, _USED_FIELDS).batches(EVENTS_AT_ONCE):
        charges = enforced_charges(events, "value", "limit")
        rows, amounts = numbers(charges["row"]), [charges["value"], charges["limit"]]
        names, name_of = distinct(charges, COUNTER)
        numbered = np.array([number_of.get(name, -1) for name in names])[name_of]
        is_consumer = np.array([name[0] in _CONSUMER for name in names])[name_of]
        withheld = numbers(pc.struct_field(events["amounts"], "withheld"))[rows] > 0
        kept = (numbered >= 0) & is_valid(amounts[0]) & is_valid(amounts[1]) & ~(is_consumer & withheld)
        minutes = numbers(events["timestamp_ms"])[rows] // 60_000
        values, limits = (plain(amount.filter(column_of(kept))) for amount in amounts)
        codes, group = distinct_codes((numbered * _MINUTES + minutes)[kept])
        lowest = np.full(len(codes), np.inf)
        np.minimum.at(lowest, group, limits)
        sums = np.bincount(group, values, len(codes))
        for code, value, limit in zip(codes.tolist(), sums.tolist(), lowest.tolist(), strict=True):
            known, known_limit = used.get(code, (0.0, limit))
            used[code] = known + value, min(known_limit, limit)
    found: dict[CounterNames, _Used] = {}
    for code, summed in sorted(used.items()):
        found.setdefault(counters[code // _MINUTES], []).append((code % _MINUTES, *summed))
    return found


def full_minutes(used: Sequence[tuple[int, float, float]], end: int) -> set[int]:
    """The minutes before `end` in which a counter is at its limit.

    `used` are the minutes in which it was charged, in their order: the minute, the charges, and its limit per second.

    Of 150 charged in a minute in which 60 are allowed, 90 are made up for in the two minutes after it:

    >>> sorted(full_minutes([(10, 150.0, 1.0), (14, 54.0, 1.0), (15, 53.0, 1.0)], end=20))
    [10, 11, 12, 14]
    """
    full: set[int] = set()
    excess, allowed, after = 0.0, 0.0, 0
    for minute, value, limit in [*used, (end, 0.0, 0.0)]:
        while excess > 0.0 and after < minute:  # minutes without charges
            full.add(after)
            excess, after = excess - allowed, after + 1
        excess, allowed, after = max(0.0, excess), 60.0 * limit, minute + 1
        if minute < end and (excess > 0.0 or value >= NEAR_LIMIT * allowed):
            full.add(minute)
        excess += value - allowed
    return full
