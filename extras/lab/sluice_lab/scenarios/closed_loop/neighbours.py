"""Noisy neighbours: five victims' latency and throughput beside each, over alone, on brokers of three kinds."""

import json
import math
import multiprocessing
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import confluent_kafka
import numpy as np
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from sluice.kafka_io.client import connect
from sluice_demo.cluster import make_topic
from sluice_demo.full_speed_client import FullSpeedClient, Role
from sluice_lab.scenarios.closed_loop.brokers import fill, held_brokers
from sluice_lab.scenarios.closed_loop.situation import BrokersQuotas, BrokersSituation, Neighbours, Noise
from sluice_lab.testbed.full_speed_clients import read_answer, request_bytes
from sluice_lab.testbed.quotas_without_job import set_kafkas_quotas

NOISY = "noisy"
VICTIMS = 5
VICTIM = "victim"
COMPACTED = f"{NOISY}-compacted"
LARGE_BYTES = 8 * 1024 * 1024

_THREADS = 4
_KEYS = 1_000
_OTHER_ADDRESS = ("127.0.0.2", 0)  # limits of new connections are by address, and victims have another one
_OPEN_TRANSACTIONS = 20
_PATIENCE_S = 30.0
_VICTIM_BYTES = 2_000
_VICTIM_PERIOD_S = 0.02
_PIPELINED = 5
_API_VERSIONS, _INIT_PRODUCER_ID = 18, 22


class Victims(NamedTuple):
    """Figures of five victims: p50 and p99 of their acknowledgements in ms, and their bytes a second together."""

    p50_ms: float
    p99_ms: float
    bytes_per_s: float


def victims(servers: str, topic: str, seconds: float) -> Victims:
    """Five clients produce a record of 2 kB every 20 ms each for so long, after two seconds that don't count."""
    latencies_ms: list[float] = []
    count_from_s = time.monotonic() + 2.0

    def note(error: object, message: confluent_kafka.Message) -> None:
        latency_s = message.latency()
        if error is None and latency_s is not None and time.monotonic() >= count_from_s:
            latencies_ms.append(latency_s * 1000)

    producers = [
        confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "client.id": f"{VICTIM}-{number}",
                "linger.ms": 0,
                "acks": "all",
                "log_level": 2,
            }
        )
        for number in range(VICTIMS)
    ]
    next_s = time.monotonic()
    while next_s < count_from_s + seconds:
        for producer in producers:
            with suppress(BufferError):
                producer.produce(topic, bytes(_VICTIM_BYTES), on_delivery=note)
        next_s += _VICTIM_PERIOD_S
        while (left_s := next_s - time.monotonic()) > 0:
            for producer in producers:
                producer.poll(min(left_s, 0.001))
    found = Victims(
        float(np.percentile(latencies_ms or [np.nan], 50)),
        float(np.percentile(latencies_ms or [np.nan], 99)),
        len(latencies_ms) * _VICTIM_BYTES / seconds,
    )
    for producer in producers:
        producer.purge()
    return found


def noise(kind: Noise, servers: str, topic: str, seconds: float) -> int:
    """Make noise of a kind for so long, as fast as it goes; `topic` is the noisy client's. Returns its amount."""
    end_s = time.monotonic() + seconds
    if kind in (Noise.PRODUCE, Noise.REPLAY):
        role = Role.PRODUCE if kind is Noise.PRODUCE else Role.CONSUME
        client = FullSpeedClient(NOISY, role, servers, topic)
        time.sleep(seconds)
        client.stop()
        return round(sum(amount for _, amount in client.samples))
    counts = [0] * _THREADS
    work = _WORK[kind]

    def run(number: int) -> None:
        while time.monotonic() < end_s:
            with suppress(OSError, KafkaError, confluent_kafka.KafkaException):
                for done in work(servers, topic, number, end_s):
                    counts[number] += done

    threads = [Thread(target=run, args=(number,), daemon=True) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + _PATIENCE_S)
    return sum(counts)


def _connections(servers: str, _: str, number: int, end_s: float) -> Iterator[int]:
    address = _address(servers, number)
    request = request_bytes(_API_VERSIONS, 0, NOISY)
    while time.monotonic() < end_s:
        with socket.create_connection(address, timeout=_PATIENCE_S, source_address=_OTHER_ADDRESS) as connection:
            connection.sendall(request)
            read_answer(connection)
        yield 1


def _metadata(servers: str, _: str, number: int, end_s: float) -> Iterator[int]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "client.id": NOISY, "group.id": f"{NOISY}-{number}", "log_level": 2}
    )
    with closing(consumer):
        while time.monotonic() < end_s:
            consumer.list_topics(timeout=_PATIENCE_S)
            yield 1


def _topics(servers: str, _: str, number: int, end_s: float) -> Iterator[int]:
    if number:
        time.sleep(max(0.0, end_s - time.monotonic()))  # one is enough: the controller works on them one by one
        return
    with connect(KafkaAdminClient, {"bootstrap.servers": servers, "client.id": NOISY}) as admin:
        while time.monotonic() < end_s:
            name = f"{NOISY}-{time.monotonic_ns()}"
            admin.create_topics({name: {"num_partitions": 6, "replication_factor": 1}})
            admin.delete_topics([name])
            yield 1


def _producer_ids(servers: str, topic: str, number: int, end_s: float) -> Iterator[int]:
    del topic
    body = struct.pack(">hi", -1, 60_000)  # no transactional id, a timeout
    request = request_bytes(_INIT_PRODUCER_ID, 1, NOISY, body)
    with socket.create_connection(_address(servers, number), timeout=_PATIENCE_S) as connection:
        while time.monotonic() < end_s:
            connection.sendall(request * _PIPELINED)
            for _ in range(_PIPELINED):
                read_answer(connection)
            yield _PIPELINED


def _rebalances(servers: str, topic: str, _: int, end_s: float) -> Iterator[int]:
    """Members that join one group and leave it again, so that it never comes to rest."""
    config = {"bootstrap.servers": servers, "client.id": NOISY, "group.id": NOISY, "log_level": 2}
    while time.monotonic() < end_s:
        with closing(confluent_kafka.Consumer(config)) as member:
            member.subscribe([topic])
            member.poll(0.2)
        yield 1


def _transactions(servers: str, topic: str, number: int, end_s: float) -> Iterator[int]:
    """Transactions with a record each that stay open to the end, as far as their timeout of 15 minutes lets them."""
    producers = []
    for place in range(_OPEN_TRANSACTIONS):
        producer = _producer(
            servers,
            {"transactional.id": f"{NOISY}-{number}-{place}-{time.monotonic_ns()}", "transaction.timeout.ms": 900_000},
        )
        producer.init_transactions(_PATIENCE_S)
        producer.begin_transaction()
        producer.produce(topic, b"open")
        producer.flush(_PATIENCE_S)
        producers.append(producer)
        yield 1
    time.sleep(max(0.0, end_s - time.monotonic()))


def _compaction(servers: str, _: str, __: int, end_s: float) -> Iterator[int]:
    """New values of a few keys at full speed, which the brokers' cleaners take away again."""
    yield from _produced(_producer(servers, {}), COMPACTED, bytes(1_000), end_s, [b"%d" % key for key in range(_KEYS)])


def _large(servers: str, topic: str, _: int, end_s: float) -> Iterator[int]:
    options = {"message.max.bytes": 2 * LARGE_BYTES, "queue.buffering.max.kbytes": 4 * LARGE_BYTES // 1024}
    yield from _produced(_producer(servers, options), topic, bytes(LARGE_BYTES - 1_000), end_s)


def _producer(servers: str, options: Mapping[str, Any]) -> confluent_kafka.Producer:
    return confluent_kafka.Producer({"bootstrap.servers": servers, "client.id": NOISY, "log_level": 2, **options})


def _produced(
    producer: confluent_kafka.Producer, topic: str, value: bytes, end_s: float, keys: Sequence[bytes | None] = (None,)
) -> Iterator[int]:
    """The number of records that were acknowledged until the end, all of one value, by turns with these keys."""
    done, next_key = 0, cycle(keys)

    def note(error: object, _: object) -> None:
        nonlocal done
        done += error is None

    while time.monotonic() < end_s:
        try:
            producer.produce(topic, value, next(next_key), on_delivery=note)
            producer.poll(0)
        except BufferError:  # its queue is full
            producer.poll(0.05)
    producer.purge()
    yield done


_WORK: dict[Noise, Callable[[str, str, int, float], Iterator[int]]] = {
    Noise.CONNECTIONS: _connections,
    Noise.METADATA: _metadata,
    Noise.TOPICS: _topics,
    Noise.PRODUCER_IDS: _producer_ids,
    Noise.REBALANCES: _rebalances,
    Noise.LARGE: _large,
    Noise.COMPACTION: _compaction,
    Noise.TRANSACTIONS: _transactions,
}


def _address(servers: str, number: int) -> tuple[str, int]:
    each: Sequence[str] = servers.split(",")
    host, port = each[number % len(each)].rsplit(":", 1)
    return host, int(port)


MOST_P99, LEAST_THROUGHPUT = 1.5, 0.99
"""Bars: p99 of the victims' acknowledgements beside a neighbour and their throughput, over alone."""

QUOTAS = {
    "producer_byte_rate": 2_000_000.0,
    "consumer_byte_rate": 2_000_000.0,
    "request_percentage": 15.0,
    "controller_mutation_rate": 5.0,
}
"""Quotas of the noisy client: those of Kafka hold on each broker, Sluice's in the cluster."""

CONNECTIONS_PER_S = 50.0
"""Limit of new connections of each address, with Kafka's quotas and with Sluice's (KIP-612)."""

_COMPACTING = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(2**20)}
"""Configuration of a topic that the brokers clean all the time."""

_BEGIN_S = 3.0


@dataclass(frozen=True)
class Beside:
    """Victims beside a neighbour and alone just before, their ratio, and how much noise there was a second."""

    alone: Victims
    beside: Victims
    p99_ratio: float
    throughput_ratio: float
    noise_per_s: float
    passes: bool


def run_neighbours(folder: Path, asked: Neighbours, kind: BrokersQuotas) -> bool:
    """Print the victims beside each kind of noise, in turns with alone, on brokers of one kind, once it is measured.

    False if one of them missed a bar with Sluice's quotas.
    """
    passes = True
    spawn = multiprocessing.get_context("spawn")
    with (
        _brokers(folder, asked.brokers, kind) as servers,
        ProcessPoolExecutor(1, mp_context=spawn) as watching,
        ProcessPoolExecutor(1, mp_context=spawn) as disturbing,
    ):
        _make_topics(servers, asked.brokers)

        def measured() -> Victims:
            return watching.submit(victims, servers, VICTIM, asked.seconds).result()

        measured()  # brokers compile for minutes: the first requests are the slowest
        for each in asked.noise or list(Noise):
            alone = measured()
            length_s = asked.seconds + 2 * _BEGIN_S
            noisy = disturbing.submit(noise, each, servers, NOISY, length_s)
            time.sleep(_BEGIN_S)
            beside = measured()
            found = _compared(alone, beside, noisy.result() / length_s)
            row = {"quotas": kind.value, "noise": each.value, **asdict(found)}
            print(json.dumps(row) if asked.as_json else _line(kind, each, found), flush=True)
            passes &= found.passes or kind is not BrokersQuotas.SLUICE
    return passes


def _compared(alone: Victims, beside: Victims, noise_per_s: float) -> Beside:
    # Brokers without quotas may answer nobody for a while after a neighbour: then there is no ratio, and no pass.
    p99 = beside.p99_ms / alone.p99_ms
    throughput = beside.bytes_per_s / alone.bytes_per_s if alone.bytes_per_s else math.nan
    return Beside(alone, beside, p99, throughput, noise_per_s, p99 <= MOST_P99 and throughput >= LEAST_THROUGHPUT)


@contextmanager
def _brokers(folder: Path, size: int, kind: BrokersQuotas) -> Iterator[str]:
    """Brokers with Sluice's quotas, with Kafka's own, or without any. Yields their addresses."""
    situation = BrokersSituation(brokers=size, own_quotas=kind is not BrokersQuotas.SLUICE)
    quotas = [{"entity": {"client_id": NOISY}, "quotas": QUOTAS}] if kind is not BrokersQuotas.NONE else []
    with held_brokers(folder, situation, quotas) as (cluster, *_):
        if kind is not BrokersQuotas.NONE:
            limit = {"connection_creation_rate": CONNECTIONS_PER_S}
            set_kafkas_quotas(cluster.bootstrap_servers, {"ip": None}, limit)
        yield cluster.bootstrap_servers


def _make_topics(servers: str, brokers: int) -> None:
    """The topics of the victims and of the noisy client, which has records for a replay."""
    large = {"max.message.bytes": str(2 * LARGE_BYTES)}
    for name, configs in {VICTIM: {}, NOISY: large, COMPACTED: _COMPACTING}.items():
        make_topic(servers, name, [2] * brokers, configs)
    fill(servers, NOISY)


def _line(quotas: BrokersQuotas, noise: Noise, found: Beside) -> str:
    """A line of text: p99 and throughput of the victims beside a kind of noise and over alone, and the noise itself."""
    alone, beside = found.alone, found.beside
    return (
        f"{quotas:<8}{noise:<20}p99 {alone.p99_ms:>6.1f} -> {beside.p99_ms:>7.1f} ms, {found.p99_ratio:>6.2f} times;"
        f" throughput {found.throughput_ratio:.3f}; noise {found.noise_per_s:,.0f}/s"
    )
