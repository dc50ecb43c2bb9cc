"""What the gateway client costs: python -m scripts.bench_gateway [--outage SECONDS]

Without arguments: one call of `check`. With --outage: a real broker is killed and comes back after so long, while
events are published; how many were lost and what the slowest `check` and `publish` took.
"""

import argparse
import logging
import statistics
import tempfile
import time
import timeit
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from configs.settings import Settings, load_settings, with_bootstrap_servers
from scripts.broker import Broker
from sinks.gateway import Gateway, GatewayOptions, StalePolicy
from sinks.mute_table import Mute, now_ms
from sinks.topics import ensure_topics
from state.request import Request

REPEATS = 9
CALLS = 200_000
NOBODY: dict[str, str] = {"bootstrap.servers": "127.0.0.1:1"}
"""An address where no broker answers: `check` doesn't need one."""


EVENTS_PER_S = 500


def main() -> None:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench_gateway")
    parser.add_argument("--outage", type=float, metavar="SECONDS", help="measure an outage of the broker instead")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.outage is None:
        measure_check()
    else:
        measure_outage(options.outage)


def measure_outage(outage_s: float) -> None:
    """Prints what an outage of the broker did to events and calls."""
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        settings = with_bootstrap_servers(load_settings(), broker.bootstrap_servers)
        ensure_topics(settings)
        with Gateway(settings.kafka, GatewayOptions(close_timeout_s=60)) as gateway:
            slowest_ms = [_publish_for(gateway, 2)]
            broker.kill()
            slowest_ms.append(_publish_for(gateway, outage_s))
            waiting = gateway.stats().unsent
            restart_s = time.monotonic()
            broker.start()
            up_s = time.monotonic()
            slowest_ms.append(_publish_for(gateway, 2))
            while gateway.stats().unsent:
                time.sleep(0.01)
            drained_s = time.monotonic() - up_s
            stats = gateway.stats()
        print(f"outage {outage_s + up_s - restart_s:.1f} s at {EVENTS_PER_S} events/s; {waiting} events waited")
        print(f"published {stats.published}, failed {stats.failed}, records in the topic {_records(settings)}")
        print(f"slowest check and publish: {slowest_ms[0]:.1f} ms before, {slowest_ms[1]:.1f} ms in the outage")
        print(f"nothing waited {drained_s:.1f} s after the broker was back")


def _publish_for(gateway: Gateway, seconds: float) -> float:
    """Publishes at EVENTS_PER_S; milliseconds of the slowest check and publish."""
    start_s, slowest_s = time.monotonic(), 0.0
    for number in range(int(seconds * EVENTS_PER_S)):
        time.sleep(max(0.0, start_s + number / EVENTS_PER_S - time.monotonic()))
        call_s = time.perf_counter()
        gateway.check("alice", "app")
        gateway.publish(Request("Produce", user=f"user-{number % 100}"))
        slowest_s = max(slowest_s, time.perf_counter() - call_s)
    return slowest_s * 1000


def _records(settings: Settings) -> int:
    """How many records the requests topic has."""
    topic = settings.topics.requests
    with KafkaConsumer(bootstrap_servers=settings.kafka["bootstrap.servers"]) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        return sum(consumer.end_offsets(partitions).values())


def measure_check() -> None:
    """Prints the median cost of one call of `check` with 0 and 100 000 muted clients."""
    for policy in StalePolicy:
        options = GatewayOptions(policy=policy, close_timeout_s=0)
        with Gateway(NOBODY, options) as gateway:
            print(f"{policy}, nobody muted: {_cost_ns(gateway, 'user-7', 'app'):.0f} ns")
            until_ms = now_ms() + 3_600_000
            for number in range(100_000):
                gateway.mutes.mute(f"user-{number}", "app", Mute(until_ms + number))
            print(f"{policy}, 100000 muted, this one too: {_cost_ns(gateway, 'user-7', 'app'):.0f} ns")
            print(f"{policy}, 100000 muted, this one not: {_cost_ns(gateway, 'user-7', 'other'):.0f} ns")


def _cost_ns(gateway: Gateway, user: str, client_id: str) -> float:
    check = gateway.check
    seconds = timeit.repeat(lambda: check(user, client_id), number=CALLS, repeat=REPEATS)
    return statistics.median(seconds) / CALLS * 1e9


if __name__ == "__main__":
    main()
