"""Elastic states of a recorded span, out of the Delta table `elastic`, so that limits of a replay give way alike."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice.insight.errors import QueryError
from sluice.insight.reports.span import Span
from sluice.sinks.errors import storage_reason
from sluice.state.arithmetic.columns import Floats, Integers
from sluice.state.contract.records import BrokerFactor, ElasticState
from sluice.state.quotas.elastic import bound_of_share, factor_of, lent_limit
from sluice.state.quotas.resolution import Resolution


class RecordedElastic:
    """The states of a span; each holds until the next one. Without any, all limits are the quotas.

    >>> from sluice.state.quotas.entity import Tags
    >>> from sluice.state.quotas.resolution import PrecedenceLevel
    >>> states = [ElasticState(1, 10_000, 1.5), ElasticState(2, 20_000, brokers=[BrokerFactor("b-1", 0.7, "queue")])]
    >>> quota = Resolution(Tags("alice"), "alice|", PrecedenceLevel.USER, 100.0, False, ceiling=300.0)
    >>> recorded = RecordedElastic(states)
    >>> [recorded.limit(quota, 100.0, "b-1", at_ms) for at_ms in (9_000, 12_000, 21_000)]
    [100.0, 150.0, 70.0]
    """

    def __init__(self, states: Iterable[ElasticState] = ()) -> None:
        self._states = sorted(states, key=lambda state: state.at_ms)
        self._times_ms = [state.at_ms for state in self._states]

    def __bool__(self) -> bool:
        return bool(self._states)

    def limit(self, found: Resolution, limit: float, instance: str, at_ms: int) -> float:
        """The limit of a counter for a request through a gateway at a time."""
        place = bisect_right(self._times_ms, at_ms) - 1
        if place < 0:
            return limit
        state = self._states[place]
        lent, factor = lent_limit(limit, found.ceiling, state.lend), factor_of(state, instance)
        return lent if factor == 1.0 else lent * bound_of_share(factor, limit, found.reservation)

    def limits(
        self,
        found: Sequence[Resolution | None],
        of: Integers,
        limits: Floats,
        instances: Sequence[str],
        instances_of: Integers,
        times_ms: Integers,
    ) -> Floats:
        """The limits of n requests, (n,): `of` and `instances_of` are the places of their counters and gateways."""
        places = np.searchsorted(self._times_ms, times_ms, side="right")
        codes = (places * len(found) + of) * len(instances) + instances_of
        _, first, alike = np.unique(codes, return_index=True, return_inverse=True)
        values = limits[first]
        for place, row in enumerate(first.tolist()):
            counter = found[of[row]]
            if counter is not None:
                values[place] = self.limit(counter, values[place], instances[instances_of[row]], times_ms[row])
        return values[alike]


STRICT = RecordedElastic()
"""No state: all limits are the quotas."""


def recorded_elastic(path: str, storage_options: Mapping[str, str], span: Span) -> list[ElasticState]:
    """The states of a span and the last one before it; none without a table. Raises QueryError."""
    try:
        table = DeltaTable(path, storage_options=dict(storage_options)).to_pyarrow_table(
            columns=["number", "at_ms", "lend", "brokers", "reason"], filters=[("at_ms", "<", span.end_ms)]
        )
    except TableNotFoundError:
        return []
    except (DeltaError, OSError, ValueError) as error:
        raise QueryError(f"table elastic ({path}) can't be read: {storage_reason(error)}") from error
    states = [
        ElasticState(
            row["number"], row["at_ms"], row["lend"], [BrokerFactor(**each) for each in row["brokers"]], row["reason"]
        )
        for row in table.sort_by("at_ms").to_pylist()
    ]
    before = [state for state in states if state.at_ms < span.start_ms]
    return [*before[-1:], *states[len(before) :]]
