"""Measures of what decisions charged to each counter, from which the rows of the table `quota_metrics` are made.

`measure` takes the rows of one task, `add_up` puts the measures of all tasks together, and `metrics_rows` makes the
table's rows of them.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sinks.tables.quota_metrics import METRIC_NAMES
from sluice.state.quotas.kinds import QuotaKind

_COUNTER = ("window_start_ms", "quota", "mode", "user", "client_id", "topic", "partition", "tenant")
_SUMS = ("count", "value", "violated_count", "throttled_count", "waited_ms")
_GREATEST = ("throttle_time_max_ms", "last_timestamp_ms", "order")
_LATEST = ("limit", "metered", "rate", "tokens")
_CONSUMER_QUOTAS = [kind.value for kind in QuotaKind if kind.consumer]

_ORDER_BITS = 62
"""Bits of the number that orders decisions by time, then by offset: a positive BIGINT."""


def measure(decisions: pa.Table, window_s: int) -> pa.Table:
    """Charges of rows of the decisions table, by counter and by window of `window_s` seconds of event time."""
    charges = pc.list_flatten(decisions["charges"])
    decided = decisions.select(["timestamp_ms", "source_offset", "decided_by", "throttle_time_ms"])
    amounts = decisions["amounts"]
    requests = pc.fill_null(pc.struct_field(amounts, "requests").cast(pa.int64()), 1)
    withheld = pc.fill_null(pc.struct_field(amounts, "withheld"), False)
    decided = decided.append_column("requests", requests).append_column("withheld", withheld)
    parents = pc.list_parent_indices(decisions["charges"])
    decided = decided.take(parents)

    def of(field: str) -> pa.ChunkedArray:
        return pc.struct_field(charges, field)

    window_ms, timestamp_ms = window_s * 1000, decided["timestamp_ms"].to_numpy()
    in_window_ms = timestamp_ms % window_ms
    offsets = _order_offsets(window_ms)
    # The counters took withheld bytes back: nobody got them.
    taken_back = pc.and_(decided["withheld"], pc.is_in(of("quota"), pa.array(_CONSUMER_QUOTAS)))
    # As in Kafka, a wait counts for the quota that decided it; of its counters for those that ask for the longest one.
    may_decide = pc.and_(pc.equal(of("quota"), decided["decided_by"]), pc.is_null(of("mode")))
    asked_ms = pc.fill_null(pc.if_else(may_decide, of("throttle_ms"), None), 0).to_numpy()
    longest_ms, of_decision = np.zeros(len(decisions), np.int64), parents.to_numpy()
    np.maximum.at(longest_ms, of_decision, asked_ms)
    waits = pa.array((asked_ms > 0) & (asked_ms == longest_ms[of_decision]))
    wait_ms = pc.if_else(waits, decided["throttle_time_ms"], None)
    requests = decided["requests"]
    flat = pa.table(
        {
            "window_start_ms": timestamp_ms - in_window_ms,
            **{name: of(name) for name in ("quota", "mode")},
            **{
                name: pc.struct_field(charges, ["entity", name])
                for name in ("user", "client_id", "topic", "partition", "tenant")
            },
            "count": requests,
            "value": pc.if_else(taken_back, 0.0, of("value")),
            "violated_count": pc.if_else(pc.fill_null(of("violated"), False), requests, 0),
            "throttled_count": pc.if_else(waits, requests, 0),
            "waited_ms": pc.multiply(wait_ms.cast(pa.float64(), safe=False), requests.cast(pa.float64())),
            "throttle_time_max_ms": wait_ms,
            "last_timestamp_ms": timestamp_ms,
            "order": in_window_ms * offsets + decided["source_offset"].to_numpy() % offsets,
            "limit": of("limit"),
            "metered": pc.is_valid(of("rate")),
            "rate": of("rate"),
            "tokens": of("tokens"),
        }
    )
    return add_up([flat])


def _order_offsets(window_ms: int) -> int:
    """The offsets that the order of a window's decisions tells apart, at `in_window_ms * offsets + offset % offsets`.

    Only decisions of one millisecond need the offset: as many low bits of it as are free.

    >>> _order_offsets(60_000) == 2**46
    True
    """
    return 1 << (_ORDER_BITS - window_ms.bit_length())


def add_up(measures: Sequence[pa.Table]) -> pa.Table:
    """Measures of the same counters and windows in one row."""
    together = pa.concat_tables(measures).sort_by("order")
    nulls_count = pc.ScalarAggregateOptions(skip_nulls=False)
    aggregations = [
        *((name, "sum", None) for name in _SUMS),
        *((name, "max", None) for name in _GREATEST),
        *((name, "last", nulls_count) for name in _LATEST),
    ]
    # In one thread, as the latest is the last in order.
    grouped = together.group_by([*_COUNTER], use_threads=False).aggregate(aggregations)
    names = {f"{name}_{function}": name for name, function, _ in aggregations}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names]).select(
        together.column_names
    )


def metrics_rows(measured: pa.Table, window_s: int) -> pa.Table:
    """Rows of the table `quota_metrics`, with its columns in any order."""
    # Where no counter keeps a rate (exempt time, partitions without any quota): the amount over the window's length.
    rate = pc.if_else(measured["metered"], measured["rate"], pc.divide(measured["value"], float(window_s)))
    throttled = measured["throttled_count"]
    average_ms = pc.if_else(
        pc.greater(throttled, 0), pc.divide(measured["waited_ms"], throttled.cast(pa.float64())), None
    )
    start = pc.cast(measured["window_start_ms"], pa.timestamp("ms", "UTC"))
    quotas = measured["quota"].to_pylist()
    kept = measured.drop_columns(["window_start_ms", "rate", "waited_ms", "order"])
    added = {
        "rate": rate,
        "throttle_time_avg_ms": average_ms,
        "window_start": start.cast(pa.timestamp("us", "UTC")),
        "window_s": np.full(len(measured), window_s, np.int32),
        "metric_group": pa.array((METRIC_NAMES[quota][0] for quota in quotas), pa.string()),
        "rate_metric": pa.array((METRIC_NAMES[quota][1] for quota in quotas), pa.string()),
        "date": start.cast(pa.date32()),
    }
    for name, column in added.items():
        kept = kept.append_column(name, pa.chunked_array([column]) if isinstance(column, np.ndarray) else column)
    return kept
