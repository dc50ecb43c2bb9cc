"""Overrides of limits: a decider of one file, and what job, gateways, metrics, console and table make of it."""

import itertools
import re
import runpy
from pathlib import Path

import pytest
from deltalake import DeltaTable
from prometheus_client import CollectorRegistry

from sluice import Request, TopicPartition
from sluice.process.texts import override_text
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity, ElasticNote
from sluice.state.decisions.decision import BatchFields
from sluice.state.overrides.decider import DecidedOverrides, Decider
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import LimitsView, overrides_key, overrides_value
from sluice.state.quotas.overrides import OverridesInForce
from sluice.streaming.overrides.watch import OverridesWatch
from tests.builders import quota
from tests.gateway_loop import Clock, gateway_loop

PAGE = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
NOON_MS, NIGHT_MS = 1_760_011_200_000, 1_760_050_000_000  # 12:00 and 22:46:40 UTC of 2025-10-09


@pytest.fixture
def curfew(tmp_path: Path) -> Decider:
    """The decider that docs/architecture.md shows."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "curfew.py").write_text(code)
    decider = runpy.run_path(str(tmp_path / "curfew.py"))["Curfew"]("nightly")
    assert isinstance(decider, Decider)
    return decider


def test_a_decider_of_one_file_holds_a_client_and_is_seen_everywhere(curfew: Decider, tmp_path: Path) -> None:
    clock, registry, view = Clock(), CollectorRegistry(), LimitsView()
    watch = OverridesWatch([curfew], OverridesTable(str(tmp_path / "overrides"), {}), 20, clock)
    watch.remember({})
    registry.register(watch)
    labels = {"decider": "curfew", "kind": "hold", "client_id": "nightly", "gateway": "", "tenant": "", "user": ""}
    waits, shown = [], []
    with gateway_loop([quota(QuotaKind.PRODUCER_BYTE_RATE, 1e9, client_id="daily")]) as loop:
        for clock.ms in (NOON_MS, NIGHT_MS):
            loop.clock.ms = clock.ms
            watch.decide(clock.ms)
            record = overrides_key("curfew"), overrides_value(watch.said["curfew"])
            view.take(*record)
            loop.gateways[0].limits.give(*record)
            answers = [loop.gateways[0].admit(Request("Produce", client_id=name)) for name in ("nightly", "daily")]
            waits.append([(answer.throttle_ms, answer.quota) for answer in answers])
            shown.append(registry.get_sample_value("sluice_override", labels))
    watch.end(clock.ms)

    assert waits == [[(10_000, "curfew"), (0, None)], [(0, None), (0, None)]]
    assert shown == [0.0, None]
    rows = DeltaTable(str(tmp_path / "overrides")).to_pyarrow_table().sort_by("at_ms").to_pylist()
    assert [(row["decider"], [each["client_id"] for each in row["overrides"]]) for row in rows] == [
        ("curfew", ["nightly"]),
        ("curfew", []),
    ]
    [held] = curfew.decide(NOON_MS).overrides
    assert override_text(held) == (
        "Producers of client-id 'nightly' are throttled until 2025-10-09 20:00:00: it runs by night"
    )
    assert view.overrides["curfew"].overrides == []


@pytest.mark.parametrize(("top", "series"), [(20, 100), (0, 1)])
def test_metrics_have_all_holds_that_there_may_be_and_name_nobody_where_names_are_not_published(
    curfew: Decider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: int, series: int
) -> None:
    """Else an alert would miss the hold that is one too many, or all of them."""
    holds = [Override("hold", entity=CountedEntity(client_id=f"app-{number}")) for number in range(100)]
    monkeypatch.setattr(curfew, "decide", lambda _: DecidedOverrides(holds))
    watch = OverridesWatch([curfew], OverridesTable(str(tmp_path / "overrides"), {}), top, lambda: NOON_MS)
    watch.remember({})
    watch.decide(NOON_MS)

    samples = next(iter(watch.collect())).samples
    assert [sample.value for sample in samples] == [0.0] * series
    assert {bool(sample.labels["client_id"]) for sample in samples} == {top > 0}


def test_a_consumer_under_a_hold_gets_no_records_and_is_charged_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose response is on its way already waits afterwards, for 10 s from the call though the clock moves on."""
    stop = Override("hold", entity=CountedEntity(client_id="app"), consumers=True)
    fetch = Request("Fetch", client_id="app", topic_partitions=[TopicPartition("orders", 0, 1_000)])
    with gateway_loop([quota(QuotaKind.CONSUMER_BYTE_RATE, 1e9, client_id="app")]) as loop:
        gateway, at_ms = loop.gateways[0], loop.clock.ms
        gateway.override("operator", Overrides(1, at_ms, 60_000, [stop]))
        answers = [gateway.admit(fetch), gateway.admit(fetch, delivered=True)]
        other = gateway.admit(Request("Fetch", client_id="other", topic_partitions=fetch.topic_partitions))
        moving = itertools.count(at_ms)
        monkeypatch.setattr(Clock, "__call__", lambda _: next(moving))
        assert gateway.throttle_of(None, "app").throttle_ms == 10_000
    assert [(answer.throttle_ms, answer.withhold, answer.quota) for answer in answers] == [
        (10_000, True, "operator"),
        (10_000, False, "operator"),
    ]
    assert other.throttle_ms == 0


def test_of_several_factors_the_least_counts_and_one_ends_at_its_time() -> None:
    in_force = OverridesInForce("b-1")
    in_force.hear(
        {
            "one": Overrides(1, 0, 60_000, [Override("tighten", 0.5, gateway="b-1", until_ms=9)]),
            "two": Overrides(2, 0, 60_000, [Override("tighten", 0.7, gateway="b-1")]),
            "three": Overrides(3, 0, 60_000, [Override("tighten", 0.1, gateway="b-2")]),
        },
        now_ms=0,
    )
    assert [in_force.factor(now_ms) for now_ms in (8, 9, 60_000)] == [0.5, 0.7, 1.0]


def test_a_record_that_is_said_again_is_believed_longer_and_one_that_is_not_isnt() -> None:
    tight = [Override("tighten", 0.5, gateway="b-1")]
    in_force, first = OverridesInForce("b-1"), Overrides(1, 0, 1_000, tight)
    in_force.hear({"one": first}, now_ms=0)
    in_force.hear({"one": first, "two": Overrides(1, 900, 1_000)}, now_ms=900)
    assert [in_force.factor(now_ms) for now_ms in (999, 1_000)] == [0.5, 1.0]
    in_force.hear({"one": Overrides(1, 900, 1_000, tight)}, now_ms=900)
    assert in_force.factor(1_899) == 0.5
    in_force.hear({}, now_ms=1_000)
    assert in_force.factor(1_000) == 1.0


@pytest.mark.parametrize(
    ("kind", "scope"),
    [
        ("tighten", {"factor": 0.5}),
        ("tighten", {"factor": 1.5, "gateway": "b-1"}),
        ("hold", {"factor": 0.5}),
        ("hold", {"consumers": True}),
    ],
)
def test_an_override_that_no_gateway_can_apply_is_never_made(kind: str, scope: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{kind} can't have this factor or scope"):
        Override(kind, **scope)  # type: ignore[arg-type] # the fields of each case


def test_decisions_note_the_least_factor_of_a_gateway() -> None:
    tight = [Override("tighten", factor, gateway="b-1", reason=f"by {factor}") for factor in (0.7, 0.5)]
    batch = BatchFields(3, 9).under(Overrides(7, 9, 5_000, tight))
    assert batch.of_gateways["b-1"] == ElasticNote(7, 0.5, "by 0.5")
