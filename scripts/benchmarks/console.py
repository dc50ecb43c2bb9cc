"""The console with many clients: time of the first page, age of what is shown, processor time and memory.

A broker, the console as a process, one viewer of the page of all clients, and decisions at a steady rate.
"""

import http.client
import json
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Annotated, Any

import psutil
import typer
import yaml
from kafka import KafkaProducer

from scripts.testbed.broker import Broker
from sluice.configs.settings import load_settings
from sluice.kafka_io.topics import ensure_topics

MARK_EVERY_S = 3.0
LOAD_TIMEOUT_S = 300.0


def decision(user: str, number: int, rate: float = 500.0) -> bytes:
    """A decision now for a counter of this user's own, as the job writes it."""
    at_ms = time.time_ns() // 1_000_000
    charge = {
        "quota": "producer_byte_rate",
        "entity": {"user": user},
        "matched": "default user",
        "limit": 1000.0,
        "value": 4096.0,
        "rate": rate,
        "throttle_ms": 0,
        "violated": False,
    }
    return json.dumps(
        {
            "decision_id": f"quota-requests-0-{number}",
            "request_id": f"quota-requests-0-{number}",
            "timestamp_ms": at_ms,
            "user": user,
            "client_id": "app",
            "api": "Produce",
            "gateway": "gateway-1",
            "verdict": "ALLOW",
            "throttle_time_ms": 0,
            "mute_until_ms": None,
            "error_code": 0,
            "topic_results": [],
            "decided_by": None,
            "charges": [charge],
            "quota_version": 1,
            "decided_at_ms": at_ms,
            "throttled_by": [],
            "amounts": {"topic_partitions": [{"topic": "orders", "partition": 0, "bytes": 4096}]},
        }
    ).encode()


class Load:
    """A thread that publishes decisions at a steady rate, and every few seconds one of a client that was never seen."""

    def __init__(self, producer: KafkaProducer, topic: str, clients: int, per_s: int) -> None:
        self.marks: dict[str, float] = {}
        self.sent = 0
        self._producer = producer
        self._topic = topic
        self._clients = clients
        self._per_s = per_s
        self.ending = Event()
        self.thread = Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        began_s = marked_s = time.monotonic()
        while not self.ending.wait(0.02):
            now_s = time.monotonic()
            for _ in range(int((now_s - began_s) * self._per_s) - self.sent):
                self.sent += 1
                self._producer.send(self._topic, decision(f"user-{self.sent % self._clients}", self.sent))
            if now_s - marked_s >= MARK_EVERY_S:
                marked_s, name = now_s, f"mark-{len(self.marks)}-"
                self.marks[name] = time.monotonic()
                self._producer.send(self._topic, decision(name, self.sent, 1e9 + len(self.marks)))


class Viewer:
    """A thread that looks at the live page of all clients, and notes when each marked client is first on it."""

    def __init__(self, address: str, load: Load) -> None:
        self.seen: dict[str, float] = {}
        self.events = 0
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._load = load
        self.thread = Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._connection.request("GET", "/events?of=clients")
        for line in self._connection.getresponse():
            if line.startswith(b"data: "):
                self.events += 1
                for name in list(self._load.marks):
                    if name not in self.seen and name.encode() in line:
                        self.seen[name] = time.monotonic()


def measure(clients: int, per_s: int, seconds: int, folder: Path) -> dict[str, Any]:
    """The figures, after all clients were read."""
    with Broker(folder / "broker") as broker:
        kafka = {"bootstrap.servers": broker.bootstrap_servers}
        topics = load_settings(environment={}).topics
        ensure_topics(topics, kafka)
        settings = folder / "settings.yaml"
        settings.write_text(yaml.safe_dump({"kafka": kafka}))
        with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=20)) as producer:
            for number in range(clients):
                producer.send(topics.decisions, decision(f"user-{number}", number))
            producer.flush()
            command = [sys.executable, "-m", "sluice.cli.main", "console", "--config", str(settings), "--port", "0"]
            console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
            try:
                assert console.stdout is not None  # noqa: S101 # it is a pipe
                address = console.stdout.readline().rpartition("http://")[2].strip().rstrip("/")
                _wait_until_known(address, clients)
                return _figures(console, address, Load(producer, topics.decisions, clients, per_s), seconds)
            finally:
                console.terminate()
                console.wait(30)


def _figures(console: "subprocess.Popen[str]", address: str, load: Load, seconds: int) -> dict[str, Any]:
    process = psutil.Process(console.pid)
    load.thread.start()
    first_s = [_page_s(address, path) for path in ("/", "/?sort=name&page=900", "/?search=user-9999", "/quotas")]
    viewer = Viewer(address, load)
    viewer.thread.start()
    before, began_s, highest = process.cpu_times(), time.monotonic(), 0
    while time.monotonic() - began_s < seconds:
        time.sleep(1)
        highest = max(highest, process.memory_info().rss)
    after, took_s = process.cpu_times(), time.monotonic() - began_s
    load.ending.set()
    load.thread.join()
    time.sleep(3)
    ages_s = sorted(viewer.seen[name] - sent_s for name, sent_s in load.marks.items() if name in viewer.seen)
    return {
        "decisions a second": round(load.sent / took_s),
        "pages (s): first, sorted by name, search, quotas": [round(each, 2) for each in first_s],
        "decision to page (s): median, longest": [round(median(ages_s), 2), round(ages_s[-1], 2)],
        "marked clients seen": f"{len(ages_s)} of {len(load.marks)}",
        "events a second": round(viewer.events / took_s, 2),
        "cores": round((after.user + after.system - before.user - before.system) / took_s, 2),
        "RSS (MiB)": highest // 1024 // 1024,
        "load of the machine": [round(each, 1) for each in psutil.getloadavg()],
    }


def _wait_until_known(address: str, clients: int) -> None:
    deadline_s = time.monotonic() + LOAD_TIMEOUT_S
    while f"of {clients} counters" not in _page(address, "/?search=none"):
        if time.monotonic() > deadline_s:
            sys.exit(f"the console doesn't know {clients} clients after {LOAD_TIMEOUT_S:g} s")
        time.sleep(0.5)


def _page_s(address: str, path: str) -> float:
    began_s = time.monotonic()
    _page(address, path)
    return time.monotonic() - began_s


def _page(address: str, path: str) -> str:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def main(
    clients: Annotated[int, typer.Option(help="Clients with a counter each.", min=1)] = 100_000,
    per_s: Annotated[int, typer.Option("--rate", help="Decisions a second.", min=1)] = 1_000,
    seconds: Annotated[int, typer.Option(help="How long to measure.", min=5)] = 60,
) -> None:
    """Measure the console with many clients."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        for name, value in measure(clients, per_s, seconds, Path(folder)).items():
            print(f"{name}: {value}")


if __name__ == "__main__":
    typer.run(main)
