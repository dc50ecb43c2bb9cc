"""A dead job, garbage and a hold on a real broker, as each viewer shows them: topics as a killed job leaves them."""

import json
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka import KafkaProducer

from sluice.cli import doctor
from sluice.configs.settings import Properties, Settings
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.limits import VERSION_KEY, overrides_key, overrides_value, version_end
from sluice.state.troubles import HOUR_MS, BrokersSeen, Facts, Trouble, Unwritten
from sluice.streaming.runtime.health import JobHealth
from sluice_demo.counts import audited
from sluice_insight.console.pages import PAGES
from sluice_insight.console.server import running
from sluice_reading.job_probe import asked, job_answer
from sluice_toolbox.troubles_watch import TroublesWatch
from tests.builders import DEFAULTS, changed, decision
from tests.commands import SLUICE, invoke
from tests.deciding_side import own_topics
from tests.integration.job_process import JobProcess, wait_until
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

CHARGES = b'[{"topic": "t", "partitions": 1}]'
CHARGED = b'{"api": "CreateTopics", "api_version": 7, "user": "alice", "timestamp_ms": %d, "mutations": %s}' % (
    now_ms(),
    CHARGES,
)
GARBAGE = json.dumps({"error": {"field": "value", "problem": "is no JSON"}}).encode()
HOLD = Override(
    "hold", entity=CountedEntity(user="alice"), reason="eve: it floods", until_ms=now_ms() + 3_600_000, consumers=True
)


class Left(NamedTuple):
    """The topics of a job that was killed, and the time of its last decision."""

    settings: Settings
    answered_ms: int


@pytest.fixture(scope="module")
def left(kafka_broker: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Left:
    """The last decision is 90 s old, seven requests are newer, 30 dead letters are older, and a hold is in force.

    No answer is in a table, and one table has a damaged log. A parameter is by how much the job's clock was ahead.
    """
    folder, topics, at_ms = tmp_path_factory.mktemp("left"), own_topics(partitions=1), now_ms() - 90_000
    answered_ms = at_ms + getattr(request, "param", 0)
    kafka = Properties({"bootstrap.servers": kafka_broker})
    ensure_topics(topics, kafka)
    with closing(KafkaProducer(bootstrap_servers=kafka_broker)) as producer:

        def send(topic: str, values: Mapping[bytes | None, bytes] | list[bytes], sent_ms: int) -> None:
            items = values.items() if isinstance(values, Mapping) else [(None, value) for value in values]
            for key, value in items:
                producer.send(topic, value, key, timestamp_ms=sent_ms)

        send(topics.requests, [b"{}"] * 3, at_ms - 1_000)
        send(topics.dead_letters, [GARBAGE] * 30, at_ms - 1_000)
        made = decision(at_ms, decision_id=f"{topics.requests}-0-2")
        send(topics.decisions, [json.dumps(made).encode()], answered_ms)
        send(topics.requests, [b"{}"] * 7, now_ms())
        overrides = overrides_value(Overrides(7, now_ms(), 3_600_000, [HOLD]))
        send(topics.limits, {VERSION_KEY: version_end(1, 0), overrides_key("operator"): overrides}, now_ms())
    settings = replace(DEFAULTS, kafka=kafka, topics=topics)
    settings = changed(settings, "enforce", checkpoint=str(folder / "checkpoint"))
    tables = {
        name: str(folder / name) for name in ("quotas", "decisions", "quota_metrics", "dead_letters", "unreadable")
    }
    log = folder / "unreadable" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("no commit")
    settings = changed(settings, "audit", checkpoint=str(folder / "audit"))
    return Left(changed(settings, "delta", **tables), answered_ms)


@pytest.mark.parametrize("left", [0, -HOUR_MS, HOUR_MS], ids=["right", "behind", "ahead"], indirect=True)
def test_doctor_fails_for_a_job_that_is_away_while_requests_wait(left: Left) -> None:
    lines: list[str] = []

    code = doctor.run_doctor(left.settings, lines.append)

    found = {line[6:].split(":")[0]: line for line in lines}
    assert found["job"].startswith("FAIL  job: no job runs, 7 requests wait since ")
    assert found["dead letters"].startswith(
        'warn  dead letters: 30 dead letters in the last hour, most "value: is no JSON": '
    )
    assert "clients of user alice until" in found["overrides"]
    assert found["audit query"].startswith("warn  audit query: 31 decisions and dead letters should be in tables ")
    assert found["tables"].startswith(f"FAIL  tables: {left.settings.delta.unreadable} can't be read (")
    assert found["broker"].startswith("ok    broker: ")
    assert found["replicas"].startswith("ok    replicas: ")
    assert code == 1


def test_a_job_tells_what_its_topics_and_brokers_show(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker without the plugin, garbage, requests that nobody decides, and answers that nobody writes."""
    monkeypatch.setattr("sluice_toolbox.troubles_watch._BROKERS_EVERY", 1)
    watch = TroublesWatch(left.settings, lambda _: Facts(), tuple, clock_s=iter(range(0, 10**6, 120)).__next__)
    health = JobHealth("enforce", 600)
    health.report_facts(watch.facts)
    health.count_batch({"query": "enforce", "batch_ms": 1, "events": 1, "lag": 0})  # it has started
    with running(watch.services()):
        polled = ("own_login", "unwritten", "tables", "flow", "dead_letters")
        eventually(lambda: all(getattr(watch.facts(), name) not in (None, Unwritten(0)) for name in polled))

    troubles = ["decisions_stale", "table_unreadable", "audit_behind", "dead_letters"]
    assert [each.name for each in health.troubles()] == troubles
    assert watch.facts().brokers == BrokersSeen([], {}, [])
    assert set((watch.facts().plugins or {}).values()) == {"missing"}


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        ("decisions", "decisions isn't there any more: somebody has moved or removed its folder; move it back"),
        ("quota_metrics/date=*", "are in the log of "),
    ],
)
def test_a_table_that_lost_its_files_is_named_with_the_cure_and_written_on_once_they_are_back(
    shared_job: JobProcess, moved: str, words: str
) -> None:
    """Nothing is written in its place, no row is missing afterwards, and requests are decided meanwhile."""
    job, place = shared_job, f"http://{shared_job.settings.health.place}/readyz"

    def troubles() -> dict[str, Trouble]:
        return {each.name: each for each in job_answer(asked(place, 5.0)).known_troubles()}

    job.publish([b"garbage", *[CHARGED] * 5])
    wait_until(lambda: audited(job.settings) >= job.count(job.settings.topics.requests), 120)
    (folder,) = Path(job.settings.delta.decisions).parent.glob(moved)
    away = folder.rename(job.folder / "away")
    job.publish([CHARGED] * 5)
    eventually(lambda: b"audit_down" in asked(place, 5.0), 120)
    job.answered(job.count(job.settings.topics.requests))
    others = {"job_away", "decisions_stale", "enforce_down", "broker_away", "no_leader"}
    eventually(lambda: not troubles().keys() & others)
    assert " in the last hour, most " in troubles()["dead_letters"].text
    eventually(lambda: words in troubles()["audit_down"].text)
    assert "Parquet" not in troubles()["audit_down"].line

    assert not folder.exists()
    away.rename(folder)

    wait_until(lambda: audited(job.settings) == job.count(job.settings.topics.requests), 120)
    assert "\nok    job: one runs on " in invoke("doctor", "--config", job.settings_file, code=None).output


def settings_file(left: Left, folder: Path, **more: object) -> Path:
    settings, path = left.settings, folder / "settings.yaml"
    topics = {name: getattr(settings.topics, name) for name in ("requests", "decisions", "dead_letters", "limits")}
    tables = {"quotas": settings.delta.quotas, "decisions": settings.delta.decisions}
    found = {"kafka": dict(settings.kafka), "topics": topics, "delta": tables}
    path.write_text(json.dumps(found | {"enforce": {"checkpoint": settings.enforce.checkpoint}} | more))
    return path


def test_top_says_that_no_job_runs_and_shows_no_figures_of_then(left: Left, tmp_path: Path) -> None:
    """A rate of 0 and an empty bucket would say that the client is idle, while it waits."""
    file = settings_file(left, tmp_path)
    table = invoke("top", "--once", "--since", "600", "--config", file)
    snapshot = json.loads(invoke("top", "--json", "--since", "600", "--config", file).output)

    first, second, third, *_ = table.output.splitlines()
    assert first.startswith("FAIL  no job runs, 7 requests wait since ")
    assert "clients of user alice until" in second
    assert third.startswith('warn  30 dead letters in the last hour, most "value: is no JSON"')
    (row,) = (line for line in table.output.splitlines() if line.startswith("alice"))
    assert row.split()[:7] == ["alice", "producer_byte_rate", "—", "1", "kB/s", "—", "—"]
    assert [each["name"] for each in snapshot["troubles"]] == ["job_away", "hold", "dead_letters"]
    assert snapshot["stale"] is True
    assert [row["rate"] for row in snapshot["counters"]] == [None]


def test_each_page_of_the_console_says_that_no_job_runs(left: Left, tmp_path: Path) -> None:
    command = [*SLUICE, "console", "--port", "0", "--config", str(settings_file(left, tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1].rstrip("/")
        told = ("no job runs, 7 requests wait since ", "30 dead letters in the last hour, most ")
        eventually(lambda: all(each.encode() in asked(f"{url}/", 30.0) for each in told))
        pages = {path: asked(f"{url}{path}", 30.0).decode() for path, _, _ in PAGES.values()}
        process.terminate()

    assert [path for path, page in pages.items() if not all(each in page for each in told)] == []
    assert "clients of user alice until" in pages["/overview"]
    assert "throttled in the last minute: —" in pages["/"]
