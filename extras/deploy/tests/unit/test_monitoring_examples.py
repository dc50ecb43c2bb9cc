"""The Grafana dashboard and the alert rules ask for metrics and labels that the job and the gateways really publish."""

import itertools
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from deployment import DASHBOARD, EXAMPLES, RULES
from sluice import Gateway, GatewayCollector, GatewayOptions
from sluice.jvm.jars import REPOSITORY
from sluice.process.clock import now_ms
from sluice.sinks.tables.overrides import OverridesTable
from sluice.state.contract.gateway_topics import Measured, Override
from sluice.state.contract.records import CountedEntity, Share
from sluice.state.overrides.decider import DecidedOverrides, Decider
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.load import DiskFloor
from sluice.streaming.overrides.watch import OverridesWatch
from sluice.streaming.queries.reasons import QueryState, RunState
from sluice.streaming.runtime.health import JobHealth
from sluice_elastic.disks import DisksWatch
from sluice_insight.client_metrics import ClientMetrics
from sluice_toolbox.gateway_metrics import GatewayMetrics
from tests.builders import AT_MS, decision, heartbeat_of

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

_PROXY = (REPOSITORY / "extras/proxy/src/main/java/sluice/proxy/Proxy.java").read_text()
OF_PROXIES = [
    f"sluice_gateway_{name}{'_total' if kind in ('counter', 'builder') else ''}"
    for kind, name in re.findall(r'\b(counter|gauge|builder)\((?:PREFIX \+ )?"(\w+)"', _PROXY)
]
"""The metrics of a proxy, by its source: Prometheus has counters under a name that ends so."""

OF_PROMETHEUS = {"__name__", "instance", "job"}
"""Labels that every series has."""

_LABEL_IN_TEXT = re.compile(r"(?:\$labels\.|\{\{\s*(?!(?:if|else|end)\b))(\w+)")
_VARIABLE = re.compile(r"\$\{?(\w+)")


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def _targets() -> list[dict[str, Any]]:
    return [target for panel in PANELS for target in panel["targets"]]


def _as_promql(expression: str) -> str:
    """The expression with a value for Grafana's variable that stands outside of a text."""
    return expression.replace("$__rate_interval", "5m")


ASKED = [
    *((rule["alert"], rule["expr"], " ".join(rule["annotations"].values())) for rule in _rules()),
    *((panel["title"], target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]),
]
"""Place, expression, and the text that is shown with it."""


class BusyGateway(Gateway):
    """A gateway that has a share of a limit."""

    def shares(self) -> list[Share]:
        return [Share(QuotaKind.PRODUCER_BYTE_RATE, CountedEntity(user="alice"), limit=10.0, share=5.0, charged=1.0)]


class HoldsOne(Decider):
    """Holds a tenant."""

    name = "stored_bytes"
    tells_measured = True

    def decide(self, _: int) -> DecidedOverrides:
        return DecidedOverrides([Override("hold", entity=CountedEntity(tenant="shop"))], [Measured("shop", 7, 5.0)])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric of a job that has run a while, and of a gateway."""
    health = JobHealth("enforce", stalled_after_s=600)
    health.count_batch({"query": "enforce", "batch_ms": 240, "events": 7, "lag": 5})
    health.heartbeat({"enforce": QueryState(RunState.RUNNING)}, 1)
    health.report_mirror(None, 0)
    clients, gateways = ClientMetrics(QuotaSettings(), 20, lambda: AT_MS), GatewayMetrics(clock_ms=lambda: AT_MS)
    clients.on_record(json.dumps(decision()).encode())
    log_dirs = [{"path": "/data", "free_bytes": 1, "total_bytes": 2}]
    gateways.on_record(json.dumps(heartbeat_of(load={"handler_idle": 0.5, "log_dirs": log_dirs})).encode())
    health.registry.register(clients)
    health.registry.register(gateways)
    health.registry.register(DisksWatch(Quotas, DiskFloor(), 60_000))
    overrides = OverridesWatch([HoldsOne()], OverridesTable(str(tmp_path_factory.mktemp("overrides")), {}), 20)
    overrides.remember({})
    overrides.decide(now_ms())
    health.registry.register(overrides)
    of_gateway = CollectorRegistry()
    with BusyGateway({"bootstrap.servers": "127.0.0.1:1"}, GatewayOptions(name="g", close_timeout_s=0)) as gateway:
        of_gateway.register(GatewayCollector(gateway))
        labels = defaultdict[str, set[str]](set)
        for family in itertools.chain(health.registry.collect(), of_gateway.collect()):
            for sample in family.samples:
                labels[sample.name] |= set(sample.labels)
    return dict(labels) | {name: {"gateway"} for name in OF_PROXIES}


def _selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """The parts of an expression that name metrics."""
    found: list[promql_parser.VectorSelector] = []

    def note(part: object) -> None:
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)

    promql_parser.walk(promql_parser.parse(_as_promql(expression)), note)
    return iter(found)


def _unpublished(expression: str, published: dict[str, set[str]]) -> list[str]:
    """Metrics, and labels asked of them, that nobody publishes."""
    gone = []
    for selector in _selectors(expression):
        if selector.name not in published:
            gone.append(str(selector.name))
            continue
        asked = {matcher.name for matcher in selector.matchers.matchers}
        gone += sorted(asked - published[selector.name] - OF_PROMETHEUS)
    return gone


@pytest.mark.parametrize(("where", "expression", "text"), ASKED, ids=[where for where, *_ in ASKED])
def test_every_metric_and_label_is_published(
    where: str, expression: str, text: str, published: dict[str, set[str]]
) -> None:
    names = [selector.name for selector in _selectors(expression)]
    there = set[str]().union(*(published.get(str(name), set()) for name in names)) | OF_PROMETHEUS
    grouped = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(",")}

    assert names, where
    assert _unpublished(expression, published) == []
    assert (grouped | set(_LABEL_IN_TEXT.findall(text))) - there == set()


@pytest.mark.parametrize("expression", ["sluice_gone > 0", 'rate(sluice_events_total{kind="x"}[5m])'])
def test_what_nobody_publishes_is_found(expression: str, published: dict[str, set[str]]) -> None:
    assert len(_unpublished(expression, published)) == 1


def test_the_page_of_the_proxy_names_all_its_metrics() -> None:
    page = (EXAMPLES.parent / "proxy.md").read_text()

    assert len(OF_PROXIES) == 18
    assert [name for name in OF_PROXIES if f"`{name.removeprefix('sluice_gateway')}`" not in page] == []


def test_each_rule_has_what_prometheus_and_a_reader_need() -> None:
    rules = _rules()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) <= {"summary", "description"}
        assert rule["annotations"]["summary"]
        assert promql_parser.parse_duration(rule.get("for", "1m"))
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        assert set(group) == {"name", "rules"}


def test_each_panel_has_a_place_of_its_own() -> None:
    panels = DASHBOARD["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_each_query_of_the_dashboard_goes_to_the_source_that_the_user_chooses() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = {name for target in _targets() for name in _VARIABLE.findall(target["expr"] + target["datasource"]["uid"])}

    assert used - {"__rate_interval"} <= variables
    assert {target["datasource"]["uid"] for target in _targets()} == {"${datasource}"}


def test_variables_of_the_dashboard_take_labels_that_are_published(published: dict[str, set[str]]) -> None:
    queries = [variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    asked = [re.fullmatch(r"label_values\((.*), (\w+)\)", query["query"]) for query in queries]

    assert asked
    for match in asked:
        assert match is not None
        assert _unpublished(match[1], published) == []
        assert match[2] in published[match[1].partition("{")[0]]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool")
def test_prometheus_own_tool_accepts_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True, capture_output=True)  # noqa: S607 - any Prometheus will do


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool")
def test_alerts_fire_when_they_should() -> None:
    cases = Path(__file__).parents[1] / "data" / "prometheus-rules-test.yaml"
    subprocess.run(["promtool", "test", "rules", str(cases)], check=True, capture_output=True)  # noqa: S607 - any Prometheus will do
