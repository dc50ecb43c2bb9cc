"""Overrides of a recorded span, out of the Delta table `overrides`, so that limits of a replay give way alike."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sluice.sinks.tables.trouble import missing_rights, table_trouble
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.overrides import bound_of_share, factor_of
from sluice.state.quotas.resolution import Resolution
from sluice_insight.arrays import Floats, Integers
from sluice_insight.reports.span import Span
from sluice_reading.errors import UnreadableTableError


class RecordedOverrides:
    """The overrides of a span; each record holds until the next one. Without any, all limits are the quotas.

    >>> from sluice.state.quotas.entity import Tags
    >>> from sluice.state.quotas.resolution import PrecedenceLevel
    >>> tight = Override("tighten", 0.7, gateway="b-1")
    >>> quota = Resolution(Tags("alice"), "alice|", PrecedenceLevel.USER, 100.0, False)
    >>> recorded = RecordedOverrides([Overrides(1, 10_000, 1, [tight]), Overrides(2, 20_000, 1)])
    >>> [recorded.limit(quota, 100.0, "b-1", at_ms) for at_ms in (9_000, 12_000, 21_000)]
    [100.0, 70.0, 100.0]
    """

    def __init__(self, records: Iterable[Overrides] = ()) -> None:
        self._records = sorted(records, key=lambda record: record.at_ms)
        self._times_ms = [record.at_ms for record in self._records]

    def __bool__(self) -> bool:
        return bool(self._records)

    def limit(self, found: Resolution, limit: float, instance: str, at_ms: int) -> float:
        """The limit of a counter for a request through a gateway at a time."""
        place = bisect_right(self._times_ms, at_ms) - 1
        if place < 0:
            return limit
        factor = factor_of(self._records[place].overrides, instance)
        return limit if factor == 1.0 else limit * bound_of_share(factor, limit, found.reservation)

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


STRICT = RecordedOverrides()
"""Nothing is overridden: all limits are the quotas."""


def recorded_overrides(path: str, storage_options: Mapping[str, str], span: Span) -> list[Overrides]:
    """All by which limits gave way at each change in a span, and at the last one before it; none without a table.

    Raises QueryError.
    """
    present: dict[str, list[Override]] = {}
    records = []
    for decider, record in overrides_said(path, storage_options, span.end_ms):
        present[decider] = [each for each in record.overrides if each.kind != "hold"]
        records.append(Overrides(record.number, record.at_ms, 1, list(chain.from_iterable(present.values()))))
    before = [record for record in records if record.at_ms < span.start_ms]
    return [*before[-1:], *records[len(before) :]]


def last_overrides(path: str, storage_options: Mapping[str, str], now_ms: int) -> dict[str, Overrides]:
    """The last record of each decider, as if it were of now: the table has changes alone. Raises QueryError."""
    changes = overrides_said(path, storage_options, now_ms)
    return {decider: msgspec.structs.replace(record, at_ms=now_ms) for decider, record in changes}


def overrides_said(
    path: str, storage_options: Mapping[str, str], end_ms: int, since_ms: int = 0
) -> list[tuple[str, Overrides]]:
    """The changes of deciders between two times, in their order; none without a table. Raises QueryError."""
    try:
        # to_pyarrow_table() isn't used: it refuses tables with deletion vectors, which Spark's DELETE may write
        rows = DeltaTable(path, storage_options=dict(storage_options)).scan(
            columns=["decider", "number", "at_ms", "fresh_ms", "overrides"],
            predicate=f"at_ms >= {since_ms} AND at_ms < {end_ms}",
        )
        changes = pa.table(rows.read_all()).to_pylist()
    except TableNotFoundError:
        if reason := missing_rights(path):
            raise UnreadableTableError(f"table overrides ({path}) can't be read: {reason}") from None
        return []
    except Exception as error:  # arro3 raises no narrower class
        raise UnreadableTableError(f"table overrides ({path}) can't be read: {table_trouble(path, error)}") from error
    return [
        (
            row["decider"],
            Overrides(row["number"], row["at_ms"], row["fresh_ms"], list(map(_override, row["overrides"]))),
        )
        for row in sorted(changes, key=itemgetter("at_ms"))
    ]


def _override(columns: Mapping[str, Any]) -> Override:
    entity = CountedEntity(columns["user"], columns["client_id"], tenant=columns["tenant"])
    said = {name: columns[name] for name in ("kind", "factor", "gateway", "reason", "until_ms")}
    return Override(**said, entity=None if entity == CountedEntity() else entity, consumers=bool(columns["consumers"]))
