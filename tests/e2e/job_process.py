"""The job as a process of its own, and what it publishes, for tests from outside."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from configs.settings import Settings, load_settings
from scripts.broker import Child

Json = dict[str, Any]
QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""No time for Java's second compiler, which takes more of a short test than all else."""

Waits = Callable[[], bool]


class JobProcess:
    """`sluice run` in a folder, with its own topics on the broker; can be killed and started again."""

    def __init__(self, folder: Path, bootstrap_servers: str, quotas: list[Json], **sections: Json) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        seed = folder / "quotas.yaml"
        seed.write_text(yaml.safe_dump(quotas))
        prefix = folder.name
        topics = {name: f"{prefix}-{name}" for name in ("requests", "decisions", "dead_letters")}
        content: Json = {
            "kafka": {"bootstrap.servers": bootstrap_servers},
            "topics": {**topics, "partitions": 1},
            "enforce": {"checkpoint": str(folder / "checkpoints/enforce")},
            "audit": {"checkpoint": str(folder / "checkpoints/audit"), "trigger_s": 1},
            "delta": {
                name: str(folder / "delta" / name) for name in ("quotas", "decisions", "quota_metrics", "dead_letters")
            },
            "quotas": {"seed": str(seed)},
            "spark": QUICK_JAVA,
        }
        for section, values in sections.items():
            content[section] = {**content.get(section, {}), **values}
        self.settings_file = folder / "settings.yaml"
        self.settings_file.write_text(yaml.safe_dump(content))
        self.settings: Settings = load_settings(self.settings_file)
        self.status_file = folder / "status.json"
        self.child: Child | None = None
        self._starts = 0

    def start(self) -> None:
        """Start the job and wait until both queries run."""
        self.status_file.unlink(missing_ok=True)
        self._starts += 1
        log = self.folder / f"job-{self._starts}.log"
        command = [sys.executable, "-m", "streaming.cli", "run", "--config", str(self.settings_file)]
        self.child = Child([*command, "--status-file", str(self.status_file)], log)
        wait_until(lambda: self.status().get("state") == "running" or not self.alive, 120)
        assert self.alive, log.read_text()[-2000:]

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.child is not None and self.child.alive

    def status(self) -> Json:
        """What the job says of itself."""
        if not self.status_file.exists():
            return {}
        status: Json = json.loads(self.status_file.read_text())
        return status

    def log(self) -> list[Json]:
        """The log's entries of the last start."""
        lines = (self.folder / f"job-{self._starts}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def last_line(self) -> str:
        """The last line that the last start wrote."""
        return (self.folder / f"job-{self._starts}.log").read_text().splitlines()[-1]

    def batch_sizes(self) -> list[int]:
        """Requests in each micro-batch since the last start."""
        batches = [entry for entry in self.log() if entry["message"] == "batch"]
        return [batch["events"] for batch in batches if batch["query"] == "enforce"]

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.child is not None:
            self.child.end(signal.SIGTERM, 90)

    def kill(self) -> None:
        """kill -9."""
        if self.child is not None:
            self.child.end(signal.SIGKILL, 10)

    def publish(self, values: Iterable[bytes | None], timestamp_ms: int | None = None) -> None:
        """Send request events, in order."""
        servers = self.settings.kafka["bootstrap.servers"]
        with KafkaProducer(bootstrap_servers=servers, max_request_size=8 * 1024 * 1024) as producer:
            for value in values:
                producer.send(self.settings.topics.requests, value=value, key=b"test", timestamp_ms=timestamp_ms)
            producer.flush()

    def count(self, *names: str) -> int:
        """How many records the topics have."""
        consumer = KafkaConsumer(bootstrap_servers=self.settings.kafka["bootstrap.servers"])
        try:
            partitions = [
                TopicPartition(name, number) for name in names for number in consumer.partitions_for_topic(name) or ()
            ]
            return sum(consumer.end_offsets(partitions).values())
        finally:
            consumer.close()

    def topic(self, name: str) -> list[Any]:
        """All records of a topic, in order."""
        consumer = KafkaConsumer(bootstrap_servers=self.settings.kafka["bootstrap.servers"])
        try:
            partitions = [TopicPartition(name, number) for number in consumer.partitions_for_topic(name)]
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends, records = consumer.end_offsets(partitions), []
            while any(consumer.position(partition) < ends[partition] for partition in partitions):
                for batch in consumer.poll(timeout_ms=500).values():
                    records += batch
            return records
        finally:
            consumer.close()

    def decisions(self) -> list[Json]:
        """Every decision in the topic."""
        return [json.loads(record.value) for record in self.topic(self.settings.topics.decisions)]

    def dead_letters(self) -> list[Json]:
        """Every dead letter in the topic."""
        return [json.loads(record.value) for record in self.topic(self.settings.topics.dead_letters)]

    def answered(self, count: int, seconds: float = 120) -> None:
        """Wait until so many events have a decision or a dead letter."""
        topics = self.settings.topics
        wait_until(lambda: self.count(topics.decisions, topics.dead_letters) >= count, seconds)


def wait_until(done: Waits, seconds: float) -> None:
    """Poll something outside of this process, with a deadline."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not there after {seconds} s"
        time.sleep(0.2)
