"""Producers whose requests are seconds of their quota: what they see of the waits, and what arrives."""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path

from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.process.clock import now_ms
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker_plugin import new_exempt_client_id, plugin_cluster
from sluice_demo.cluster import Cluster, make_topic
from sluice_demo.counts import records
from sluice_lab.scenarios.closed_loop.producers import (
    NUMBER,
    TOPIC,
    JavaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    Producer,
    SaramaProducers,
    java_machine,
)
from sluice_lab.scenarios.closed_loop.situation import LIBRARIES, Holds, HoldsGateway, Library
from sluice_lab.testbed.quotas_without_job import set_kafkas_quotas, settings_with_limits
from sluice_proxy.gateway import KafkaGateway

REQUEST_S = (1, 5, 10)
"""Sizes of requests, in seconds of the quota."""

MOST_OF_QUOTA = 1.05
"""Most that a crowd may get in a minute, over its quota, besides the request that goes over it."""

MINUTE_S = 60

_BROKER = {
    "connections.max.idle.ms": "86400000",  # by default a broker closes what is idle for ten minutes
    "message.max.bytes": "10000000",
}


@dataclass(frozen=True)
class Held:
    """Outcome of a producer; `of_quota` is its rate over its quota, from its first acknowledgement on.

    `worst_s` is the longest time to an acknowledgement. `retried` are requests that were sent again, as for a time-out,
    and `closed` connections that either side closed. `twice` and `missing` are acknowledged records in the partition.
    """

    acknowledged: int
    of_quota: float
    worst_s: float
    retried: int
    closed: int
    errors: int
    twice: int
    missing: int

    @property
    def undisturbed(self) -> bool:
        """True if all arrived, once, and the client saw nothing but waits."""
        return self.acknowledged > 0 and not any((self.retried, self.closed, self.errors, self.twice, self.missing))


@dataclass(frozen=True)
class Crowd:
    """Outcome of producers that share a quota, by the times at which the broker appended their records.

    `worst_minute` is over the quota, of any minute after the first, less one request. `late_closed` are connections
    that were closed in the second half of the run, and `silent` the producers of which nothing was stored in it. All
    else is as of one producer.
    """

    acknowledged: int
    of_quota: float
    worst_minute: float
    worst_s: float
    closed: int
    late_closed: int
    errors: int
    twice: int
    missing: int
    silent: int

    @property
    def is_held(self) -> bool:
        """True if none of them got more than the quota, and each acknowledged record is stored once."""
        return self.acknowledged > 0 and self.worst_minute <= MOST_OF_QUOTA and not (self.twice or self.missing)


def run_crowd(folder: Path, asked: Holds) -> dict[str, Crowd]:
    """The outcome of `asked.connections` producers of each library, which have one client-id and so one quota."""
    with _entrance(folder, asked) as (direct, servers), java_machine() as jvm:
        size, count, libraries = round(asked.request_s * asked.limit), asked.connections, asked.library or LIBRARIES
        appended = {"retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
        make_topic(direct, TOPIC, [len(libraries) * count], appended)
        kinds: dict[Library, Callable[[str, str, int, int], Producer]] = {
            Library.JAVA: partial(JavaProducer, jvm),
            Library.LIBRDKAFKA: LibrdkafkaProducer,
            Library.KAFKA_PYTHON: KafkaPythonProducer,
        }
        crowds: dict[str, Sequence[Producer]] = {}
        for number, library in enumerate(libraries):
            first = number * count
            crowds[library] = (
                [SaramaProducers(folder, library, servers, first, count, size)]
                if library is Library.SARAMA
                else [kinds[library](library, servers, first + each, size) for each in range(count)]
            )
        time.sleep(asked.seconds / 2)
        half_ms = now_ms()
        closed = {name: sum(each.faults()[1] for each in crowd) for name, crowd in crowds.items()}
        time.sleep(asked.seconds / 2)
        outcomes = {name: _crowd(crowd, closed[name]) for name, crowd in crowds.items()}
        for crowd in crowds.values():
            for each in crowd:
                each.close()
        stored, times_ms = _stored(direct), _times_ms(direct)
    found = {}
    for number, (name, outcome) in enumerate(outcomes.items()):
        of_crowd = [stored[number * count + each] for each in range(count)]
        at_ms = sorted(at for each in range(count) for at in times_ms[number * count + each]) or [0]
        found[name] = replace(
            outcome,
            of_quota=round((len(at_ms) - 1) * size / asked.limit / max(1.0, (at_ms[-1] - at_ms[0]) / 1_000), 3),
            worst_minute=round(_worst_minute(at_ms) * size / asked.limit / MINUTE_S, 3),
            twice=sum(times - 1 for partition in of_crowd for times in partition.values()),
            missing=max(0, outcome.acknowledged - sum(len(partition) for partition in of_crowd)),
            silent=sum(max(times_ms[number * count + each], default=0) < half_ms for each in range(count)),
        )
    return found


def _crowd(producers: Sequence["Producer"], closed_before: int) -> Crowd:
    acknowledged = [each for producer in producers for each in producer.acknowledged()]
    _, closed, errors = (sum(each) for each in zip(*(producer.faults() for producer in producers), strict=True))
    worst_s = max((took_ms for _, took_ms in acknowledged), default=0) / 1_000
    return Crowd(len(acknowledged), 0.0, 0.0, worst_s, closed, closed - closed_before, errors, 0, 0, 0)


def _worst_minute(at_ms: Sequence[int]) -> int:
    """The most requests, but one, in a minute after the first."""
    late = [at for at in at_ms if at >= at_ms[0] + MINUTE_S * 1_000]
    return max((bisect_left(late, at + MINUTE_S * 1_000) - number - 1 for number, at in enumerate(late)), default=0)


def run_holds(folder: Path, asked: Holds) -> dict[str, Held]:
    """The outcome of each producer, by library and size of its requests. Everything is kept in `folder`."""
    with _entrance(folder, asked) as (direct, servers), java_machine() as jvm:
        names = [(library, request_s) for library in ("java", "librdkafka") for request_s in REQUEST_S]
        make_topic(direct, TOPIC, [len(names)], {"retention.bytes": "-1"})
        producers: dict[str, JavaProducer | LibrdkafkaProducer] = {}
        for partition, (library, request_s) in enumerate(names):
            name, size = f"{library}, {request_s} s", round(request_s * asked.limit)
            producers[name] = (
                JavaProducer(jvm, name, servers, partition, size)
                if library == "java"
                else LibrdkafkaProducer(name, servers, partition, size)
            )
        time.sleep(asked.seconds)
        with ThreadPoolExecutor(len(producers)) as pool:
            list(pool.map(methodcaller("stop"), producers.values()))
        stored = _stored(direct)
        found = {
            name: _held(producer, asked.limit, stored[partition])
            for partition, (name, producer) in enumerate(producers.items())
        }
        for producer in producers.values():
            producer.close()
        return found


@contextmanager
def _entrance(folder: Path, asked: Holds) -> Iterator[tuple[str, str]]:
    """Where a broker itself is and where its clients connect, with the quota on each client-id. There is no job."""
    with ExitStack() as stack:
        client_id = new_exempt_client_id()
        cluster = stack.enter_context(
            plugin_cluster(folder / "broker", 1, client_id, more=_BROKER)
            if asked.gateway is HoldsGateway.PLUGIN
            else Cluster(folder / "broker", 1, lambda *_: _BROKER)
        )
        servers = cluster.bootstrap_servers
        if asked.gateway is HoldsGateway.KAFKA:
            set_kafkas_quotas(servers, {"client-id": None}, {QuotaKind.PRODUCER_BYTE_RATE.value: asked.limit})
            yield servers, servers
            return
        entry = QuotaEntry(QuotaEntity(client_id=DEFAULT), QuotaKind.PRODUCER_BYTE_RATE, asked.limit)
        settings = settings_with_limits(servers, [entry], client_id=client_id)
        if asked.gateway is HoldsGateway.PLUGIN:
            yield servers, servers
            return
        yield servers, stack.enter_context(KafkaGateway(folder / "proxy", settings)).bootstrap_servers


def _held(producer: JavaProducer | LibrdkafkaProducer, limit: float, stored: Mapping[int, int]) -> Held:
    acknowledged = producer.acknowledged()
    times_ms = [at_ms for at_ms, _ in acknowledged] or [0]
    span_s = max((max(times_ms) - min(times_ms)) / 1_000, 1.0)
    retried, closed, errors = producer.faults()
    return Held(
        acknowledged=len(acknowledged),
        of_quota=round((len(acknowledged) - 1) * producer.size / limit / span_s, 3),
        worst_s=max((took_ms for _, took_ms in acknowledged), default=0) / 1_000,
        retried=retried,
        closed=closed,
        errors=errors,
        twice=sum(count - 1 for count in stored.values()),
        missing=max(0, len(acknowledged) - len(stored)),
    )


def _times_ms(servers: str) -> defaultdict[int, list[int]]:
    """The epoch milliseconds of all records of each partition."""
    times_ms: defaultdict[int, list[int]] = defaultdict(list)
    for record in records(with_bootstrap_servers(load_settings(environment={}), servers), TOPIC):
        times_ms[record.partition].append(record.timestamp)
    return times_ms


def _stored(servers: str) -> defaultdict[int, Counter[int]]:
    """The times that each number is in each partition."""
    stored: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for record in records(with_bootstrap_servers(load_settings(environment={}), servers), TOPIC):
        stored[record.partition].update(NUMBER.unpack_from(record.value)[:1])
    return stored
