"""Requests, decisions and mutes as one loop: gateways, the job and a client that asks for three times its quota."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import pytest

from gateways.client.client import DecisionFields, Gateway
from gateways.client.options import GatewayOptions
from tests.e2e.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

MUTATIONS_PER_S = 10.0
PERMITS = 10
CLOCK_SPEED = 2  # the gateways' clock runs faster than ours: a minute of traffic takes half a minute
TRAFFIC_MS = 60_000
DEADLINE_S = 240
QUOTAS = [{"entity": {"user": None}, "quotas": {"controller_mutation_rate": MUTATIONS_PER_S}}]


class FastClock:
    """A clock in milliseconds that runs CLOCK_SPEED times as fast as the real one."""

    def __init__(self) -> None:
        self._start_s = time.time()

    def __call__(self) -> int:
        elapsed_s = time.time() - self._start_s
        return int((self._start_s + elapsed_s * CLOCK_SPEED) * 1000)


@pytest.fixture(scope="module")
def job(kafka_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcess]:
    """A job that accepts events from clocks that run ahead."""
    process = JobProcess(
        tmp_path_factory.mktemp("loop"), kafka_broker, QUOTAS, enforce={"max_future_ms": 10 * TRAFFIC_MS}
    )
    process.start()
    yield process
    process.stop()


@pytest.mark.alone
def test_a_greedy_client_is_held_to_its_quota_by_every_gateway(job: JobProcess) -> None:
    """Muted within two micro-batches on all ten gateways, served again after the mute, on average at its quota."""
    clock, topics = FastClock(), job.settings.topics
    with ExitStack() as stack:
        answered: Counter[int] = Counter()

        def note(number: int, decision: DecisionFields) -> None:
            """Heartbeats of gateways are decided too."""
            answered[number] += decision["user"] == "greedy"

        gateways = [
            stack.enter_context(
                Gateway(
                    job.settings.kafka,
                    GatewayOptions(
                        name=f"gateway-{number}",
                        requests_topic=topics.requests,
                        decisions_topic=topics.decisions,
                        limits_topic=topics.limits,
                        waits_topic=topics.waits,
                    ),
                    on_decision=partial(note, number),
                    clock_ms=clock,
                )
            )
            for number in range(10)
        ]
        for gateway in gateways:
            assert gateway.wait_until_ready(60)
        client = GreedyClient(gateways, clock, answered)
        deadline_s = time.monotonic() + DEADLINE_S
        while len(client.settled_ms) < 2 or client.settled_ms[-1] - client.settled_ms[0] < TRAFFIC_MS:
            assert time.monotonic() < deadline_s
            client.step()
            time.sleep(0.002)  # the pace of the client, not the passing of time

        first_ms, last_ms = client.settled_ms[0], client.settled_ms[-1]
        permits = PERMITS * sum(first_ms <= at_ms < last_ms for at_ms in client.served_ms)
        assert permits / ((last_ms - first_ms) / 1000) == pytest.approx(MUTATIONS_PER_S, rel=0.05)
        assert client.mutes_seen_by_all > 0
        assert gateways[0].check("somebody", "app") == 0
    assert_muted_within_two_batches(job)


class GreedyClient:
    """Sends at three times its quota whenever it isn't muted, through each gateway in turn.

    `settled_ms` are the ends of those mutes at which every request had its decision. The bucket has 0 tokens then, so
    between two of them a correctly throttled client gets exactly the tokens that were refilled.
    """

    def __init__(self, gateways: list[Gateway], clock: Callable[[], int], answered: Mapping[int, int]) -> None:
        """`answered` are the client's decisions that each gateway has read, by its number."""
        self._gateways = gateways
        self._answered = answered
        self._clock = clock
        self._next_request_ms = clock()
        self._muted_until_ms = 0
        self.served_ms: list[int] = []
        self.settled_ms: list[int] = []
        self.mutes_seen_by_all = 0

    def step(self) -> None:
        """Check the mute, and send if there is none."""
        remaining_ms = self._gateways[0].check("greedy", "app")
        now_ms = self._clock()
        if remaining_ms:
            if not self._muted_until_ms:
                self._assert_muted_by_all()
            self._muted_until_ms = now_ms + remaining_ms
            return
        if self._muted_until_ms:
            if self._answered[0] == len(self.served_ms):
                self.settled_ms.append(self._muted_until_ms)
            self._muted_until_ms = 0
        if now_ms >= self._next_request_ms:
            self._gateways[len(self.served_ms) % len(self._gateways)].publish(request(now_ms))
            self.served_ms.append(now_ms)
            self._next_request_ms = now_ms + int(1000 * PERMITS / (3 * MUTATIONS_PER_S))

    def _assert_muted_by_all(self) -> None:
        """Gateways that have read as many decisions as the first one mute as it does; the mute may end meanwhile."""
        first, *others = self._gateways
        decisions = self._answered[0]
        wait_until(lambda: all(self._answered[number] >= decisions for number in range(len(self._gateways))), 60)
        muted = [gateway.check("greedy", "app") > 0 for gateway in others]
        assert all(muted) or not first.check("greedy", "app") or self._answered[0] > decisions
        self.mutes_seen_by_all += all(muted)


def assert_muted_within_two_batches(job: JobProcess) -> None:
    """Decisions of one micro-batch share `decided_at_ms`: an event is decided in the batch after the one under way."""
    records = job.topic(job.settings.topics.requests)
    job.answered(len(records))
    decisions = {decision["decision_id"]: decision for decision in job.decisions()}
    begun_ms = sorted({decision["decided_at_ms"] for decision in decisions.values()})
    for record in records:
        decision = decisions[f"{record.topic}-{record.partition}-{record.offset}"]
        batches_begun_since = [at_ms for at_ms in begun_ms if record.timestamp < at_ms <= decision["decided_at_ms"]]
        assert len(batches_begun_since) <= 2


def request(now_ms: int) -> dict[str, object]:
    """An old client's CreateTopics: always admitted, throttled by muting (KIP-599, "Handling of old Clients")."""
    return {
        "api": "CreateTopics",
        "api_version": 5,
        "user": "greedy",
        "client_id": "app",
        "timestamp_ms": now_ms,
        "mutations": [{"topic": "t", "partitions": PERMITS}],
    }
