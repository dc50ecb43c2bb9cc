"""The use of a limit by a throttled client of two brokers beside a job: all that shows it agrees with its bytes."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.process.clock import now_ms
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_demo.job import wait_until
from sluice_lab.scenarios.closed_loop.brokers import TOPIC
from sluice_lab.scenarios.slow_downs import LIMIT, Brokers, brokers, sluice
from sluice_lab.testbed.jmx import beans
from sluice_proxy.processes import free_ports
from sluice_telemetry.utilization import utilization
from sluice_toolbox.machine import Jvm

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone, pytest.mark.long]

NAMES = {"quota": "producer_byte_rate", "client_id": "app"}
SMALL = {"batch.size": 20_000, "linger.ms": 5, "max.in.flight.requests.per.connection": 5}
SETTLED_MS, MINUTE_MS = 2_000, 60_000
WHOLE_S = 60
"""Seconds of the limit after the burst that are watched."""


def test_beans_metrics_and_top_show_the_use_by_the_clients_bytes(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    bed_of = Brokers(size=2, sections={"health": {"port": port}})
    shown = list[tuple[int, float, float, float]]()
    with brokers(tmp_path, bed_of, {"app": {"producer_byte_rate": LIMIT}}) as bed, Jvm() as jvm:
        readers = [beans(jvm, broker.jmx_port).read for broker in bed.cluster.brokers]
        client = FullSpeedClient("app", Role.PRODUCE, bed.servers, TOPIC, options=SMALL)

        def has_sent(seconds: float) -> bool:
            """True once the client has sent so many seconds of its limit, the burst included; notes what is shown."""
            of_brokers = [
                [*read("sluice:type=Produce,client-id=app", "quota-utilization").values()] for read in readers
            ]
            of_job = of_metrics(port)
            if all(of_brokers) and of_job is not None:
                ((first,), (second,)) = of_brokers
                shown.append((now_ms(), first, second, of_job))
            return sum(amount for _, amount in client.samples) >= seconds * LIMIT

        try:
            wait_until(lambda: has_sent(30), 180)
            shown.clear()
            wait_until(lambda: has_sent(30 + WHOLE_S), 3 * WHOLE_S)
            (row,) = top(sluice(bed.rig, "top", "--once", "--json", "--filter", "app"))
            top_ms = now_ms()
        finally:
            client.stop()
    sent = [(at_ms, at_ms, amount) for at_ms, amount in client.samples]
    used = [utilization(sent, LIMIT, until_ms=at_ms - SETTLED_MS) for at_ms, *_ in shown]
    of_minute = utilization(sent, LIMIT, until_ms=top_ms, span_ms=MINUTE_MS)
    means = [fmean(values) for values in zip(*(values for _, *values in shown), strict=True)]
    print(f"bytes {fmean(used):.1f} %, beans and /metrics {means}; of a minute {of_minute:.1f} %, top {row['usage']}")

    assert means == pytest.approx([fmean(used)] * 3, rel=0.05)
    assert 100 * row["usage"] == pytest.approx(of_minute, rel=0.05)


def of_metrics(port: int) -> float | None:
    """The use by /metrics in percent; None before it has one."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        families = list(text_string_to_metric_families(page.read().decode()))

    def value(name: str) -> float | None:
        samples = (each for family in families for each in family.samples if each.name == name)
        return next((each.value for each in samples if NAMES.items() <= each.labels.items()), None)

    rate, limit = value("sluice_client_rate"), value("sluice_client_limit")
    return 100 * rate / limit if rate is not None and limit else None


def top(shown: str) -> list[Mapping[str, Any]]:
    """The rows of `top --json` for the client's byte rate."""
    return [row for row in json.loads(shown)["counters"] if row["quota"] == NAMES["quota"]]
