"""Requests, decisions and waits as one loop: gateways, the job and a client that asks for three times its quota."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.producer.future import RecordMetadata

from sluice.gateways.client.client import Gateway
from sluice.process.clock import now_ms
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.shares.read_sums import ReadSums, read_sums
from sluice_demo.gateways import gateway_options
from sluice_demo.job import Json
from sluice_lab.testbed.processes import kill
from sluice_proxy.processes import Child
from tests.gateway_loop import counter, wait_ms
from tests.integration.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PRODUCE = QuotaKind.PRODUCER_BYTE_RATE
MUTATIONS_PER_S = 10.0
PERMITS = 10
BURST = 1000  # 100 samples of one second: the first request empties the bucket
CLOCK_SPEED = 4  # the gateways' clock runs faster than ours: a minute of traffic takes a quarter of one
DEADLINE_S = 600
BYTES_PER_S = 1_000_000.0


class FastClock:
    """A clock in milliseconds that runs CLOCK_SPEED times as fast as the real one."""

    def __init__(self) -> None:
        self._start_s = time.time()

    def __call__(self) -> int:
        elapsed_s = time.time() - self._start_s
        return int((self._start_s + elapsed_s * CLOCK_SPEED) * 1000)


@pytest.fixture
def job(shared_job: JobProcess) -> JobProcess:
    return shared_job


@pytest.mark.parametrize(("count", "traffic_ms"), [(3, 30_000), pytest.param(10, 60_000, marks=pytest.mark.long)])
def test_a_greedy_client_is_held_to_its_quota_by_every_gateway(job: JobProcess, count: int, traffic_ms: int) -> None:
    """Throttled within two micro-batches on all gateways, served again afterwards, on average at its quota."""
    clock = FastClock()
    with ExitStack() as stack:
        answered: Counter[int] = Counter()

        def note(number: int, sums: ReadSums) -> None:
            for entity in sums.sums:
                if entity.tags().user == "greedy":
                    for kind, decided in sums.counters(entity):
                        permits = sum(charged.value for charged in decided.by_gateway)
                        answered[number] += round(permits) if kind is QuotaKind.CONTROLLER_MUTATION_RATE else 0

        options = [gateway_options(job.settings, name=f"gateway-{number}") for number in range(count)]
        gateways = [
            stack.enter_context(WatchedGateway(partial(note, number), job.settings.kafka, each, clock))
            for number, each in enumerate(options)
        ]
        for gateway in gateways:
            assert gateway.wait_until_ready(120)
        producer = stack.enter_context(KafkaProducer(bootstrap_servers=job.settings.kafka["bootstrap.servers"]))
        requests = SentRequests(producer, job)
        client = GreedyClient(gateways, clock, answered, requests.send)
        deadline_s = time.monotonic() + DEADLINE_S
        while len(client.settled_ms) < 2 or client.settled_ms[-1] - client.settled_ms[0] < traffic_ms:
            assert time.monotonic() < deadline_s
            client.step()
            time.sleep(0.002)  # the pace of the client, not the passing of time

        first_ms, last_ms = client.settled_ms[0], client.settled_ms[-1]
        permits = PERMITS * sum(first_ms <= at_ms < last_ms for at_ms in client.served_ms)
        assert permits / ((last_ms - first_ms) / 1000) == pytest.approx(MUTATIONS_PER_S, rel=0.05)
        assert client.waits_seen_by_all > 0
        assert wait_ms(gateways[0], "somebody", "app") == 0
    requests.assert_decided_within_two_batches()


def test_a_gateway_process_that_is_killed_leaves_its_share_to_the_others_and_the_books_balance(
    job: JobProcess, tmp_path: Path
) -> None:
    """After some heartbeats: a busy machine decides how many come and settle together."""

    def admit() -> bool:
        """A small request of the same client, so that this gateway's share is in use. Returns whether it has grown."""
        gateway.admit({"api": "Produce", "user": "producer", "bytes": 100})
        time.sleep(0.05)  # the pace of the client, not the passing of time
        return any(share.quota == PRODUCE and share.share > 0.9 * BYTES_PER_S for share in gateway.shares())

    with Gateway(job.settings.kafka, gateway_options(job.settings, name="survivor")) as gateway:
        assert gateway.wait_until_ready(120)
        wait_until(lambda: gateway.stats().limits_version is not None, DEADLINE_S)
        program = [sys.executable, "-m", "sluice_lab.scenarios.closed_loop.gateways"]
        child = Child([*program, str(job.settings_file), "2", "600", "2"], tmp_path / "gateway.log")
        wait_until(lambda: not admit() and counter(gateway, PRODUCE, user="producer").others_decided > 0, DEADLINE_S)
        wait_until(lambda: not admit() and gateway.stats().gateways == 2, DEADLINE_S)

        kill(child.pid)
        wait_until(lambda: admit() and gateway.stats().gateways == 1, DEADLINE_S)

        wait_until(lambda: not gateway.stats().unsent, DEADLINE_S)
        values = (record.value or b"" for record in job.topic(job.settings.topics.requests))
        events = [json.loads(value) for value in values if b'"user":"producer"' in value]  # others' may be no events
        sent = Counter(event["request_id"] for event in events if event.get("user") == "producer")
        wait_until(lambda: len(charged(job)) >= sent.total(), DEADLINE_S)
        assert Counter(decision["request_id"] for decision in charged(job)) == sent
        amounts = [each["value"] for made in charged(job) for each in made["charges"] if each["quota"] == PRODUCE]
        known = counter(gateway, PRODUCE, user="producer")
        wait_until(lambda: known.own_charged + known.others_decided == sum(amounts), DEADLINE_S)


def charged(job: JobProcess) -> list[Json]:
    """Decisions on requests of the user who is charged by the two gateways."""
    return [decision for decision in job.decisions() if decision["user"] == "producer"]


class WatchedGateway(Gateway):
    """A gateway that hands every record of sums it has read to a callback too."""

    def __init__(self, note: Callable[[ReadSums], None], *arguments: Any) -> None:
        self._note = note
        super().__init__(*arguments)

    def _on_sums(self, key: bytes | None, value: bytes | None) -> None:
        super()._on_sums(key, value)
        self._note(read_sums(value))


class SentRequests:
    """Requests that a test sends to a job, and when the broker had acknowledged each of them."""

    def __init__(self, producer: KafkaProducer, job: JobProcess) -> None:
        self._producer = producer
        self._job = job
        self._sent = 0
        self._acknowledged_ms: dict[str, int] = {}

    def send(self, event: bytes) -> None:
        """Send a request of the greedy client."""
        self._sent += 1
        self._producer.send(self._job.settings.topics.requests, event, key=b"greedy|app").add_callback(self._note)

    def _note(self, record: RecordMetadata) -> None:
        self._acknowledged_ms[f"{record.topic}-{record.partition}-{record.offset}"] = now_ms()

    def assert_decided_within_two_batches(self) -> None:
        """A request is decided at latest in the micro-batch after the one that begins when the topic has it.

        A micro-batch looks first at what the topic has; then it begins, at the `decided_at_ms` of its decisions. The
        time of a request is that of its acknowledgement: a busy machine may send it long after the time in its record.
        """
        wait_until(lambda: len(self._acknowledged_ms) == self._sent, 120)
        self._job.answered(self._job.count(self._job.settings.topics.requests))
        decided_ms = {each["decision_id"]: each["decided_at_ms"] for each in self._job.decisions()}
        begun_ms = {*decided_ms.values()}
        for decision_id, since_ms in self._acknowledged_ms.items():
            assert sum(since_ms < at_ms <= decided_ms[decision_id] for at_ms in begun_ms) <= 2


class GreedyClient:
    """Sends at three times its quota whenever it isn't throttled, through a gateway that charges nothing inline.

    So the waits of decisions alone throttle it. `settled_ms` are the ends of those waits at which every request had its
    decision. The bucket has 0 tokens then, so between two of them a correctly throttled client gets exactly the tokens
    that were refilled.
    """

    def __init__(
        self,
        gateways: Sequence[Gateway],
        clock: Callable[[], int],
        answered: Mapping[int, int],
        send: Callable[[bytes], object],
    ) -> None:
        """`answered` are the client's decided permits that each gateway has read, by its number."""
        self._gateways = gateways
        self._send = send
        self._answered = answered
        self._clock = clock
        self._next_request_ms = clock()
        self._throttled_until_ms = 0
        self._asked = 0
        self.served_ms: list[int] = []
        self.settled_ms: list[int] = []
        self.waits_seen_by_all = 0

    def step(self) -> None:
        """Send if the client isn't throttled."""
        remaining_ms = wait_ms(self._gateways[0], "greedy", "app")
        now_ms = self._clock()
        if remaining_ms:
            if not self._throttled_until_ms:
                self._assert_throttled_by_all()
            self._throttled_until_ms = now_ms + remaining_ms
            return
        if self._throttled_until_ms:
            if self._answered[0] == self._asked:
                self.settled_ms.append(self._throttled_until_ms)
            self._throttled_until_ms = 0
        if now_ms >= self._next_request_ms:
            permits = PERMITS if self.served_ms else BURST
            self._send(request(now_ms, permits))
            self._asked += permits
            self.served_ms.append(now_ms)
            self._next_request_ms = now_ms + int(1000 * PERMITS / (3 * MUTATIONS_PER_S))

    def _assert_throttled_by_all(self) -> None:
        """Gateways that have read as much as the first throttle as it does; the wait may end meanwhile."""
        first, *others = self._gateways
        permits = self._answered[0]
        wait_until(lambda: all(self._answered[number] >= permits for number in range(len(self._gateways))), 120)
        throttled = [wait_ms(gateway, "greedy", "app") > 0 for gateway in others]
        assert all(throttled) or not wait_ms(first, "greedy", "app") or self._answered[0] > permits
        self.waits_seen_by_all += all(throttled)


def request(now_ms: int, permits: int) -> bytes:
    """An old client's CreateTopics: always admitted, then throttled (KIP-599, "Handling of old Clients")."""
    event = {
        "api": "CreateTopics",
        "api_version": 5,
        "user": "greedy",
        "client_id": "app",
        "timestamp_ms": now_ms,
        "mutations": [{"topic": "t", "partitions": permits}],
    }
    return json.dumps(event).encode()
