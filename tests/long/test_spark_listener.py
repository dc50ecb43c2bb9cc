"""An operator's own listener of Spark learns of micro-batches, and stages have names in Spark's UI."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any
from uuid import uuid4

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from scripts.java.compiler import compile_java
from sluice.configs.settings import Properties, Settings
from sluice.jvm.class_archive import class_path
from sluice.kafka_io.topics import ensure_topics
from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.audit.query import AuditQuery
from sluice.streaming.enforce.simulation import Simulation
from sluice.streaming.java_bridge import KafkaSink
from tests.audit_tables import tables_in
from tests.builders import changed, quota
from tests.integration.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LONGEST_S = 120
REQUEST = b'{"api": "Fetch", "user": "alice"}'
DATA = Path(__file__).parent.parent / "data"


class Listener(StreamingQueryListener):
    """Keeps what it is told of micro-batches with rows."""

    def __init__(self) -> None:
        self.told: Queue[Any] = Queue()

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802 - Spark's names

    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if event.progress.numInputRows:
            self.told.put(event.progress)


@pytest.fixture
def settings(kafka_broker: str, tmp_path: Path) -> Settings:
    """Empty tables, and topics of their own."""
    names, unique = ("requests", "decisions", "dead_letters", "limits", "sums"), uuid4().hex[:8]
    settings = changed(tables_in(tmp_path), "topics", **{name: f"{name}-{unique}" for name in names})
    settings = changed(settings, "audit", checkpoint=str(tmp_path / "audit"), trigger_s=0)
    settings = replace(settings, kafka=Properties({"bootstrap.servers": kafka_broker}))
    ensure_topics(settings.topics, settings.kafka)
    return settings


def test_a_listener_sees_decisions_throttled_dead_letters_and_lag(spark: SparkSession, settings: Settings) -> None:
    """Heartbeats are no decisions of requests, and a name that looks like a verdict throttles nobody."""
    quotas = Quotas([quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user="alice")])
    waits = [{"quota": "producer_byte_rate", "entity": {"user": "bob"}, "ms": 5}]
    events: list[dict[str, object]] = [
        {"user": '"verdict":"THROTTLE","throttled_by":[{', "bytes": 1},
        {"user": "alice", "bytes": 20_000},
        {"user": "bob", "bytes": 1, "instance": "g-1", "throttled_by": waits},
        {"api": "GatewayHeartbeat", "instance": "g-1", "heartbeat": {"staleness_ms": 1, "counters": 2}},
    ]
    produced = {"api": "Produce", "timestamp_ms": now_ms()}
    values = [*(json.dumps(produced | event).encode() for event in events), b"garbage"]
    made = list(Simulation(quotas, settings).decide(values))
    assert [record.topic for record in made].count(settings.topics.decisions) == len(events)
    with KafkaProducer(bootstrap_servers=settings.kafka["bootstrap.servers"]) as producer:
        for record in made:
            producer.send(record.topic, record.value, record.key)
    spark.streams.addListener(listener := Listener())
    query = AuditQuery(spark, settings)
    query.start()
    try:
        progress = listener.told.get(timeout=LONGEST_S)
    finally:
        query.stop()
        spark.streams.removeListener(listener)

    found = progress.observedMetrics["sluice"].asDict()
    assert 0 <= found.pop("lag_ms") < LONGEST_S * 1000
    assert found == {"decisions": 3, "throttled": 2, "dead_letters": 1}
    assert stages_of(spark, str(progress.runId)) == {"record answers in the tables"}


def test_stages_of_the_enforce_query_have_a_name_that_a_person_knows(spark: SparkSession, settings: Settings) -> None:
    rows = spark.range(3).selectExpr(f"'{settings.topics.decisions}' AS topic", "string(id) AS value", "id % 2 AS key")
    spark.sparkContext.setJobGroup("named", "")
    KafkaSink(spark, settings.kafka).write(rows.repartition("key").selectExpr("topic", "binary(value) AS value"))

    assert stages_of(spark, "named") == {"decide requests and write the answers"}


def test_a_listener_that_blocks_keeps_no_decision_and_not_the_end_of_the_job(kafka_broker: str, tmp_path: Path) -> None:
    compile_java([DATA / "BlockingListener.java"], class_path(), tmp_path, 17)
    spark = {"spark.sql.streaming.streamingQueryListeners": "BlockingListener"}
    spark["spark.driver.extraClassPath"] = str(tmp_path)
    job = JobProcess(tmp_path / "job", kafka_broker, [], spark=spark)
    job.start()
    try:
        job.publish([REQUEST])
        wait_until(lambda: "the listener blocks" in job.log_file.read_text(), LONGEST_S)
        job.publish([REQUEST])
        job.answered(2)
        child = job.running()
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(LONGEST_S) == 0
    finally:
        job.stop()
    assert len(job.decisions()) == 2


def stages_of(spark: SparkSession, group: str) -> set[str]:
    tracker: Any = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(group)]
    return {tracker.getStageInfo(stage).name for job in jobs for stage in job.stageIds}


def test_an_error_of_a_listener_that_stops_spark_is_named_in_the_last_line_of_the_job(
    kafka_broker: str, tmp_path: Path
) -> None:
    """Spark survives its exceptions, and stops for an error such as that of a method that is in another version."""
    compile_java([DATA / "FailingListener.java"], class_path(), tmp_path, 17)
    spark = {"spark.sql.streaming.streamingQueryListeners": "FailingListener"}
    spark["spark.driver.extraClassPath"] = str(tmp_path)
    job = JobProcess(tmp_path / "job", kafka_broker, [], spark=spark)
    child = job.launch()
    try:
        assert child.wait(LONGEST_S) == 1  # at the first micro-batch, though it has no request
    finally:
        job.stop()
    last = job.log_file.read_text().rstrip().splitlines()[-1]
    assert "java.lang.NoSuchMethodError: of another Spark; mend what section spark gives it, such as a listener" in last
