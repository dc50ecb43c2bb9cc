"""Controller mutation quotas of users as a plain loop: python -m sluice_lab.benchmarks.peers.loop_peer APPLICATION

APPLICATION is the JSON of `measure.Application`. The simplest program that decides the same: one
process of confluent-kafka, and buckets in its memory, which a crash loses. It runs until SIGTERM.
"""

import json
import sys
from collections import defaultdict
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer

from sluice_lab.benchmarks.peers.quix_peer import Enforcer
from sluice_proxy.processes import stop_on_signals

_POLL_EVENTS = 1000
_POLL_S = 0.01
_QUEUE = 1_000_000


class Values(dict[str, Any]):
    """The state of a key, as Quix Streams has it."""

    set = dict.__setitem__


def main() -> None:
    """Run the application that the command line describes."""
    wanted, stop = json.loads(sys.argv[1]), stop_on_signals()
    enforcer, states = Enforcer(wanted["limit"], wanted["burst"]), defaultdict[bytes | None, Values](Values)
    consumer = Consumer(
        {"bootstrap.servers": wanted["servers"], "group.id": wanted["name"], "auto.offset.reset": "earliest"}
    )
    producer = Producer(
        {"bootstrap.servers": wanted["servers"], "linger.ms": 5, "queue.buffering.max.messages": _QUEUE}
    )
    producer.list_topics(wanted["decisions"], timeout=30)  # else the first decisions wait for it, then go all at once
    consumer.subscribe([wanted["requests"]])
    while not stop.is_set():
        for record in consumer.consume(_POLL_EVENTS, timeout=_POLL_S):
            if record.error():  # such as a new topic that the broker doesn't know yet
                continue
            key, request = record.key(), msgspec.json.decode(record.value() or b"")
            producer.produce(wanted["decisions"], msgspec.json.encode(enforcer.decide(request, states[key])), key)
        producer.poll(0)
    producer.flush()
    consumer.close()


if __name__ == "__main__":
    main()
