"""Incidents made for real on three brokers with a job, and each asked for in doctor, top, console, port and alerts.

They go on beside each other, as no one of them hides another; those that need the job gone come last.
"""

import html
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import psutil
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from deployment import RULES
from scripts.java.build import PLUGIN
from scripts.java.compiler import compile_java
from sluice.process.clock import now_ms
from sluice_demo.cluster import Cluster
from sluice_demo.jars import BROKER_JARS
from sluice_insight.console.pages import PAGES
from sluice_proxy.processes import free_ports
from sluice_reading.job_probe import NO_ANSWER, asked, job_answer
from tests.broker_plugin import SECRET, plugin_properties
from tests.commands import SLUICE, run_sluice
from tests.integration.job_process import AUDITED, TOPICS, JobProcess
from tests.waiting import eventually, eventually_equal

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.alone]

FREE = {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9}
"""A default quota that limits nobody here: without one, limits don't give way, and Sluice's own login has none."""

LIVE: dict[str, tuple[str, str]] = {
    "broker_away": ("doesn't answer", "SluiceTroubleWarns"),
    "plugin_missing": ("broker 2 of 2 is without client.quota.callback.class", "SluiceTrouble"),
    "plugin_old": ("broker 1 of 1 with the plugin has 0.1.9 of it, the job is 0.2.0", "SluiceTroubleWarns"),
    "own_login": ("which is Sluice's own, is limited: producer_byte_rate", "SluiceTroubleWarns"),
    "tightened": ("brokers are tightened", "SluiceBrokerTightened"),
    "hold": ("it floods", "SluiceClientStopped"),
    "disk_low": ("producers are stopped", "SluiceDiskLow"),
    "dead_letters": ("in the last hour, most", "SluiceTroubleWarns"),
    "table_unreadable": ("overrides can't be read (", "SluiceTrouble"),
    "audit_behind": ("decisions and dead letters should be in tables by now and are in none", "SluiceTroubleWarns"),
}
"""Words of each trouble, and the alert that fires for it."""


class Shown(NamedTuple):
    """The output of each place, and the samples of /metrics."""

    texts: Mapping[str, str]
    names: Mapping[str, list[str]]
    metrics: list[Metric]


@pytest.fixture(scope="module")
def cluster(classes: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers; the second is without the plugin, which the others have in an older release."""
    (now,), older = PLUGIN.sources[0].rglob("Events.java"), tmp_path_factory.mktemp("older") / "Events.java"
    older.write_text(re.sub(r'RELEASE = "[\d.]+"', 'RELEASE = "0.1.9"', now.read_text()))
    compile_java([older], [*BROKER_JARS.paths(), *classes], older.parent, PLUGIN.release)

    def properties(servers: str, node: int) -> Mapping[str, str]:
        own = {"sluice.bootstrap.servers": servers, "sluice.gateway.name": f"broker-{node}"}
        return {} if node == 2 else plugin_properties() | own

    with Cluster(tmp_path_factory.mktemp("brokers"), 3, properties, [older.parent, *classes]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    """A job with the names of topics that brokers know, whose brokers have too little capacity and too small disks."""
    job = JobProcess(
        tmp_path_factory.mktemp("job"),
        cluster.bootstrap_servers,
        [{"entity": {"client_id": None}, "quotas": FREE}],
        kafka={"client.id": SECRET},
        topics={name: f"quota-{name.replace('_', '-')}" for name in TOPICS} | {"replication_factor": 3},
        audit=AUDITED,
        health={"port": free_ports(1)[0]},
        elastic={"limits": "elastic"},
        brokers={"capacity_in_bytes_per_s": 1, "disk_min_free_percent": 99},
    )
    job.start()
    yield job
    job.kill()


@pytest.fixture(scope="module")
def live(cluster: Cluster, job: JobProcess) -> Shown:
    """All places while the incidents of LIVE go on."""
    url, delta = f"http://{job.settings.health.place}", job.settings.delta

    def has(name: str) -> bool:
        return name in {each.name for each in job_answer(asked(f"{url}/readyz", 30.0)).known_troubles()}

    job.publish([b"garbage"] * 5)
    config = ("--config", job.settings_file)
    run_sluice("quotas", "hold", "--client-id", "batch", "--for", "20m", "--reason", "it floods", *config)
    cluster.brokers[2].kill()
    eventually(lambda: has("broker_away") and has("tightened"), 240)
    commit = Path(delta.overrides) / "_delta_log" / f"{0:020}.json"
    eventually(commit.exists)
    commit.write_text("no commit")
    # one that starts again now would say why it is down, which hides that it is behind
    eventually(lambda: has("table_unreadable") and not has("audit_down"), 240)
    readable = run_sluice("doctor", *config)
    os.mkfifo(Path(delta.decisions) / "_delta_log" / "_last_checkpoint")  # as storage that hangs: reading never ends
    for name in LIVE:
        eventually(partial(has, name), 240)
    shown = look(job, *(words for words, _ in LIVE.values()))
    assert "FAIL  tables: no answer in 10 s; the storage of tables or checkpoints hangs: " in shown.texts["doctor"]
    return shown._replace(texts={**shown.texts, "doctor": readable.output + shown.texts["doctor"]})


@pytest.fixture(scope="module")
def standing(live: Shown, job: JobProcess) -> Shown:
    """All places while the job's Java is stopped: the job answers, and decides nothing."""
    assert live
    (java,) = (each for each in psutil.Process(job.running().pid).children(recursive=True) if each.name() == "java")
    java.suspend()
    job.publish([b"{}"] * 7, now_ms() + 20_000)
    url = f"http://{job.settings.health.place}"
    eventually(lambda: bool({"decisions_stale", "enforce_down"} & {*names_at(f"{url}/healthz")}))
    try:
        return look(job, "no decision, ")
    finally:
        java.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def killed(standing: Shown, job: JobProcess) -> Shown:
    """All places after the job was killed."""
    assert standing
    job.kill()
    job.publish([b"{}"] * 7, now_ms() + 40_000)
    return look(job, "no job runs, ")


def names_at(url: str) -> list[str]:
    return [each.name for each in job_answer(asked(url, 30.0)).known_troubles()]


def look(job: JobProcess, *until: str) -> Shown:
    """Ask each place once, the console when its first page has all these words."""
    url, texts, names, metrics = f"http://{job.settings.health.place}", dict[str, str](), {}, list[Metric]()
    texts["doctor"] = run_sluice("doctor", "--config", job.settings_file).output
    texts["top"] = run_sluice("top", "--json", "--config", job.settings_file).output
    names["top"] = [each["name"] for each in json.loads(texts["top"])["troubles"]]
    for path in ("/healthz", "/readyz"):
        try:
            names[path] = names_at(url + path)
            texts[path] = "\n".join(each.line for each in job_answer(asked(url + path, 30.0)).known_troubles())
        except NO_ANSWER:
            names[path] = []
    try:
        metrics = list(text_string_to_metric_families(asked(f"{url}/metrics", 30.0).decode()))
    except NO_ANSWER:
        assert not names["/readyz"]
    command = [*SLUICE, "console", "--port", "0", "--config", str(job.settings_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        console = process.stdout.readline().split()[-1].rstrip("/")

        def page_of(path: str) -> str:
            return html.unescape(asked(console + path, 30.0).decode())

        eventually_equal(lambda: [words for words in until if words not in page_of("/")], list)
        eventually(lambda: "have not been read yet" not in page_of("/quotas"))
        for path, _, _ in PAGES.values():
            texts[f"page {path}"] = page_of(path + ("?client_id=batch" if path == "/client" else ""))
        process.terminate()
    return Shown(texts, names, metrics)


def alerts(metrics: list[Metric]) -> set[str]:
    """The alert rules whose expression holds; those of rates and times are left out."""
    samples = [(each.name, each.labels, each.value) for family in metrics for each in family.samples]
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"] for rule in rules if found(promql_parser.parse(rule["expr"]), samples)}


def found(part: Any, samples: list[tuple[str, dict[str, str], float]]) -> list[float]:
    """The values of an expression; of a maximum or minimum all values, which bounds compare alike."""
    match part:
        case promql_parser.VectorSelector():
            return [value for name, labels, value in samples if name == part.name and takes(part, labels)]
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr():
            return found(part.expr, samples)
        case promql_parser.BinaryExpr() if str(part.op) == "or":
            return found(part.lhs, samples) + found(part.rhs, samples)
        case promql_parser.BinaryExpr() if isinstance(part.rhs, promql_parser.NumberLiteral):
            holds = {">": float.__gt__, "<": float.__lt__, "==": float.__eq__}[str(part.op)]
            return [value for value in found(part.lhs, samples) if holds(value, part.rhs.val)]
    return []


def takes(selector: Any, labels: Mapping[str, str]) -> bool:
    """True if a series with these labels is meant."""
    for matcher in selector.matchers.matchers:
        value, kind = labels.get(matcher.name, ""), str(matcher.op)
        fits = re.fullmatch(matcher.value, value) is not None if kind.endswith("Re") else value == matcher.value
        if fits == ("Not" in kind):
            return False
    return True


@pytest.mark.parametrize("name", LIVE)
def test_what_is_wrong_is_in_all_places(live: Shown, name: str) -> None:
    words, alert = LIVE[name]

    places = {place: text for place, text in live.texts.items() if place != "top"}
    assert [place for place, text in places.items() if words not in text] == []
    assert [place for place, names in live.names.items() if name not in names] == []
    assert {each.name for each in live.metrics} >= {"sluice_trouble"}
    assert [
        each.value
        for family in live.metrics
        for each in family.samples
        if each.name == "sluice_trouble" and each.labels["name"] == name and each.value
    ] == [1.0]
    assert alert in alerts(live.metrics)


def test_a_job_that_stands_still_is_in_all_places(standing: Shown) -> None:
    """It answers at its port, so that a probe of the port alone says that all is well."""
    words = ("no decision, ", "query enforce decides nothing")
    places = {place: text for place, text in standing.texts.items() if place != "top"}

    assert [place for place, text in places.items() if not any(each in text for each in words)] == []
    assert all({"decisions_stale", "enforce_down"} & {*names} for names in standing.names.values())
    assert "SluiceTrouble" in alerts(standing.metrics)


def test_a_killed_job_is_in_all_places_that_are_left(killed: Shown) -> None:
    """Its port answers nothing: the alert is on that."""
    assert [place for place, text in killed.texts.items() if "no job runs, " not in text] == []
    assert killed.metrics == []
