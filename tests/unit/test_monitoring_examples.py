"""The example dashboard and alerts: they name metrics that the job and gateways publish, in right syntax."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from gateways.client.metrics import GatewayCollector
from sluice import Gateway, GatewayOptions
from streaming.runtime.health import JobHealth

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "prometheus"
ALERTS, DASHBOARD = EXAMPLES / "alerts.yaml", EXAMPLES / "dashboard.json"
_METRIC = re.compile(r"\bsluice_\w+")
_TYPE = re.compile(r"^# TYPE (\w+) (\w+)$", re.MULTILINE)
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


def published(registry: CollectorRegistry) -> set[str]:
    """The names that samples of this registry have."""
    types = _TYPE.findall(generate_latest(registry).decode())
    return {name + suffix for name, kind in types for suffix in _SUFFIXES.get(kind, ("",))}


def expressions() -> Iterator[str]:
    """Every PromQL expression of the examples."""
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    yield from (variable["query"] for variable in dashboard["templating"]["list"])


@pytest.fixture
def known() -> Iterator[set[str]]:
    """What a job and a gateway publish."""
    health, gateways = JobHealth("enforce"), CollectorRegistry()
    health.count_batch({"query": "enforce", "batch_ms": 1, "events": 1, "lag": 0})
    with Gateway({"bootstrap.servers": "127.0.0.1:1"}, GatewayOptions(name="gateway")) as gateway:
        gateways.register(GatewayCollector(gateway))
        yield published(health.registry) | published(gateways)


def test_every_metric_in_the_examples_is_published(known: set[str]) -> None:
    named = {name for expression in expressions() for name in _METRIC.findall(expression)}

    assert len(named) > 10
    assert named - known == set()


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}

    assert len(places) == len(panels) == len({panel["title"] for panel in panels})


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool on the path")
def test_prometheus_takes_the_rules_and_the_dashboards_expressions(tmp_path: Path) -> None:
    written = [re.sub(r"\$(quota|user)", ".*", text) for text in expressions() if "label_values" not in text]
    rules = [{"record": f"r:n{number}", "expr": text} for number, text in enumerate(written) if "sluice_" in text]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    promtool = str(shutil.which("promtool"))
    for path in (ALERTS, file):
        checked = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
