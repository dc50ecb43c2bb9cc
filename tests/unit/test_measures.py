"""Measures of what decisions charged: the rows of quota_metrics, batch by batch, whatever the tasks."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sluice.sinks.tables.decisions import decision_rows
from sluice.sinks.tables.delta import Commit, create_table
from sluice.sinks.tables.faults import Faults
from sluice.sinks.tables.measures import add_up, measure, metrics_rows
from sluice.sinks.tables.quota_metrics import merge_metrics, quota_metrics_table
from sluice.state.quotas.kinds import QuotaKind
from tests.audit_records import BOUNDS, LAST, READ_AT_MS, REQUESTS, T0, as_records, decision, some_decisions
from tests.audit_tables import records
from tests.builders import Json, part_of

_CONSUMER = {kind.value for kind in QuotaKind if kind.consumer}


def decided(decisions: Sequence[Json]) -> pa.Table:
    """Rows of the decisions table."""
    faults = Faults(len(decisions))
    made, _ = decision_rows(records(as_records([*decisions])), faults, REQUESTS, BOUNDS, READ_AT_MS)
    assert faults.good.all()
    return made


def measured(decisions: Sequence[Json], parts: int = 1) -> pa.Table:
    """Rows of quota_metrics, measured by so many tasks."""
    measures = [measure(decided(decisions[part::parts]), window_s=60) for part in range(parts)]
    return metrics_rows(add_up(measures), window_s=60)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """An empty table."""
    create_table(quota_metrics_table(str(tmp_path)), {})
    return str(tmp_path)


def merge(path: str, decisions: Sequence[Json], batch_id: int) -> None:
    merge_metrics(measured(decisions), DeltaTable(path), Commit("test", batch_id))


def merged(path: str) -> list[Json]:
    found: list[Json] = DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist()
    return sorted(found, key=lambda row: row["window_start"])


def expected(decisions: Sequence[Json]) -> dict[tuple[object, ...], Json]:
    """The rows by window and counter, one charge after another."""
    found: dict[tuple[object, ...], Json] = {}
    newest: dict[tuple[object, ...], tuple[int, int]] = defaultdict(lambda: (-1, -1))
    for number, one in enumerate(decisions):
        amounts = one["amounts"] or {}
        requests, order = amounts.get("requests") or 1, (one["timestamp_ms"], number)
        asked = {id(charge): charge["throttle_ms"] for charge in one["charges"] if may_decide(charge, one)}
        for charge in one["charges"]:
            entity = charge["entity"]
            key = (
                one["timestamp_ms"] // 60_000 * 60_000,
                charge["quota"],
                charge.get("mode"),
                entity["user"],
                entity["client_id"],
            )
            row = found.setdefault(
                key,
                {"count": 0, "value": 0.0, "violated_count": 0, "throttled_count": 0, "waited_ms": 0.0, "max": None},
            )
            waits = asked.get(id(charge), 0) == max(asked.values(), default=0) > 0
            row["count"] += requests
            row["value"] += 0.0 if amounts.get("withheld") and charge["quota"] in _CONSUMER else charge["value"]
            row["violated_count"] += requests * charge["violated"]
            if waits:
                row["throttled_count"] += requests
                row["waited_ms"] += requests * one["throttle_time_ms"]
                row["max"] = max(row["max"] or 0, one["throttle_time_ms"])
            if order >= newest[key]:
                newest[key] = order
                row |= {name: charge[name] for name in ("rate", "tokens", "limit")} | {"last": one["timestamp_ms"]}
    return found


def may_decide(charge: Json, of: Json) -> bool:
    return charge["quota"] == of["decided_by"] and not charge.get("mode")


@pytest.mark.parametrize("parts", [1, 3])
def test_measures_of_all_parts_together_are_those_of_all_charges(parts: int) -> None:
    """Counts, sums, latest values and waits of every counter and window."""
    made = some_decisions(400, seed=parts)

    rows = measured(made, parts).to_pylist()

    known = expected(made)
    assert len(rows) == len(known) > 50
    for row in rows:
        start_ms = int(row["window_start"].timestamp() * 1000)
        want = known[start_ms, row["quota"], row["mode"], row["user"], row["client_id"]]
        for name in ("count", "violated_count", "throttled_count", "tokens", "limit"):
            assert row[name] == want[name]
        assert row["value"] == pytest.approx(want["value"])
        assert (row["tokens"], row["limit"], row["metered"]) == (
            want["tokens"],
            want["limit"],
            want["rate"] is not None,
        )
        assert row["rate"] == (pytest.approx(want["value"] / 60) if want["rate"] is None else want["rate"])
        average_ms = want["waited_ms"] / want["throttled_count"] if want["throttled_count"] else None
        assert row["throttle_time_avg_ms"] == (average_ms and pytest.approx(average_ms))
        assert (row["throttle_time_max_ms"], row["last_timestamp_ms"]) == (want["max"], want["last"])


def test_decisions_without_charges_measure_nothing() -> None:
    """There is nothing to merge then."""
    assert len(measured([decision(1) | {"charges": []}, decision(2) | {"charges": None}])) == 0


def test_metrics_have_one_row_for_each_window_and_counter(path: str) -> None:
    """Count, sum, last rate, and the waits that this quota decided; batches add up, a repeated one adds nothing."""
    merge(path, [decision(1), decision(2, T0 + 1, throttle_ms=300, rate=7.0)], batch_id=0)
    later = [decision(3, T0 + 2, throttle_ms=100, rate=9.0), decision(4, T0 + 60_000)]
    merge(path, later, batch_id=1)
    merge(path, later, batch_id=1)

    first, second = merged(path)
    assert (first["metric_group"], first["rate_metric"], first["user"]) == ("Produce", "byte-rate", "a|b")
    assert (first["count"], first["value"], first["rate"], first["limit"]) == (3, 300.0, 9.0, 10.0)
    assert (first["throttled_count"], first["violated_count"]) == (2, 2)
    assert (first["throttle_time_avg_ms"], first["throttle_time_max_ms"]) == (200.0, 300)
    assert (second["count"], second["throttled_count"], second["throttle_time_avg_ms"]) == (1, 0, None)


EXEMPT: Json = {"quota": "exempt-request-time", "entity": {}, "limit": None, "rate": None}
TRIED = decision(1, mode="shadow")
TRIED["charges"][0] |= {"throttle_ms": 500, "violated": True}


@pytest.mark.parametrize(
    ("batches", "metrics"),
    [
        # The rate shown is the one of the newest event time, whichever batch it came in.
        (
            [[decision(1, T0 + 500, rate=9.0)], [decision(2, T0, rate=1.0)]],
            {"rate": 9.0, "count": 2, "last_timestamp_ms": T0 + 500},
        ),
        # Of two decisions at the same time the one read later is the latest, also where offsets are as large as can be.
        ([[decision(LAST, rate=2.0), decision(LAST - 1, rate=1.0)]], {"rate": 2.0, "count": 2}),
        # A rate that no counter keeps is the window's amount over its length: exempt request time, and partitions
        # while no topic has a quota.
        (
            [[decision(1, **EXEMPT)], [decision(2, **EXEMPT)]],
            {"rate_metric": "exempt-request-time", "metered": False, "value": 200.0}
            | {"rate": pytest.approx(200.0 / 60)},
        ),
        # A shadow quota throttles nobody: it is counted as violated only.
        ([[TRIED]], {"violated_count": 1, "throttled_count": 0}),
        # Every request of a sum counts: three and one, those over the limit, those that wait, and their average.
        (
            [[decision(1, throttle_ms=300) | {"amounts": {"requests": 3}}, decision(2, throttle_ms=100), decision(3)]],
            {"count": 5, "violated_count": 4, "throttled_count": 4, "value": 300.0}
            | {"throttle_time_avg_ms": 250.0, "throttle_time_max_ms": 300},
        ),
    ],
)
def test_a_window_of_a_counter_has(path: str, batches: list[list[Json]], metrics: Json) -> None:
    for number, decisions in enumerate(batches):
        merge(path, decisions, number)

    (row,) = merged(path)
    assert part_of(row, metrics) == metrics


def test_withheld_bytes_count_as_nothing_served(path: str) -> None:
    """The request and its wait count, and so does its request time."""
    both = decision(1, throttle_ms=300, quota="consumer_byte_rate") | {"amounts": {"withheld": True}}
    both["charges"] += decision(1, quota="request_percentage")["charges"]
    both["decided_by"] = "consumer_byte_rate"
    merge(path, [both], batch_id=0)

    rows = {row["quota"]: (row["count"], row["value"], row["throttled_count"]) for row in merged(path)}
    assert rows == {"consumer_byte_rate": (1, 0.0, 1), "request_percentage": (1, 100.0, 0)}


def test_a_wait_for_a_tenant_counts_for_the_counter_of_the_tenant_alone(path: str) -> None:
    """Both limits are exceeded; the client waits for the longer one."""
    of_tenant = decision(1, throttle_ms=900)
    own = decision(1, throttle_ms=300)["charges"][0]
    of_tenant["charges"][0] |= {"entity": dict.fromkeys(own["entity"]) | {"tenant": "shop"}}
    merge(path, [of_tenant | {"charges": [own, *of_tenant["charges"]]}], batch_id=0)

    waits = {row["user"]: (row["throttled_count"], row["throttle_time_max_ms"]) for row in merged(path)}
    assert waits == {own["entity"]["user"]: (0, None), None: (1, 900)}


def test_a_shadow_charge_is_measured_apart_from_the_enforced_one(path: str) -> None:
    """Charges of one decision, on counters with the same tags: the shadow one must not count in the enforced one."""
    both = decision(1)
    both["charges"] += decision(1, mode="shadow", limit=5.0)["charges"]
    merge(path, [both], batch_id=0)
    merge(path, [both | {"decision_id": "my-requests-3-2"}], batch_id=1)

    rows = {row["mode"]: (row["count"], row["value"], row["limit"]) for row in merged(path)}
    assert rows == {None: (2, 200.0, 10.0), "shadow": (2, 200.0, 5.0)}
