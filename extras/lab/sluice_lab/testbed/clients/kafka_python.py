"""A producer and a consumer of kafka-python (`sluice_lab.testbed.clients.cell`)."""

import logging
import time
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from sluice_lab.testbed.clients.cell import LINGER_MS, ROUNDS, SECONDS, TIMESTAMP_MS, Cell, run


def _config(cell: Cell, role: str) -> dict[str, Any]:
    config: dict[str, Any] = {key.replace(".", "_"): value for key, value in cell.config(role).items()}
    if "api_version" in config:
        config["api_version"] = tuple(int(number) for number in config["api_version"].split("."))
    if "enable_idempotence" in config:
        config["enable_idempotence"] = config["enable_idempotence"] == "true"
    if "acks" in config:
        config["acks"] = int(config["acks"])
    return config


def produce(cell: Cell) -> None:
    """Send all rounds, each as one batch; the first one's transaction is aborted."""
    # A batch has room for a round; a request for nothing else.
    producer = KafkaProducer(**_config(cell, "producer"), linger_ms=LINGER_MS, batch_size=100_000)
    transactional = cell.has("producer.transactional.id")
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    for number in range(ROUNDS):
        sent = [
            producer.send(cell.topic, value, partition=0, timestamp_ms=TIMESTAMP_MS) for value in cell.values(number)
        ]
        producer.flush(SECONDS)
        for each in sent:
            each.get(SECONDS)
        if transactional and number == 0:
            producer.abort_transaction()
            producer.begin_transaction()
    if transactional:
        producer.commit_transaction()
    producer.close()


def consume(cell: Cell) -> None:
    """Read all that is there."""
    config = _config(cell, "consumer")
    config |= {"auto_offset_reset": "earliest", "metadata_max_age_ms": 1000}  # one that joins too early joins again
    consumer = KafkaConsumer(cell.topic, group_id=cell.topic, **config)
    until = time.monotonic() + SECONDS
    while not cell.is_complete() and time.monotonic() < until:
        for records in consumer.poll(200).values():
            for record in records:
                cell.take(record.value)
    consumer.commit()
    consumer.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    run(produce, consume, {})
