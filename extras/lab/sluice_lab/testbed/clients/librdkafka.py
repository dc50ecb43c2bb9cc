"""A producer and a consumer of librdkafka (`sluice_lab.testbed.clients.cell`)."""

import time

from confluent_kafka import Consumer, Producer

from sluice_lab.testbed.clients.cell import LINGER_MS, ROUNDS, SECONDS, TIMESTAMP_MS, Cell, run


def produce(cell: Cell) -> None:
    """Send all rounds, each as one batch; the first one's transaction is aborted."""
    producer = Producer({**cell.config("producer"), "linger.ms": LINGER_MS, "error_cb": cell.fail})
    producer.list_topics(cell.topic, SECONDS)  # else the first round may be two batches
    transactional = cell.has("producer.transactional.id")
    if transactional:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
    for number in range(ROUNDS):
        for value in cell.values(number):
            producer.produce(
                cell.topic,
                value,
                partition=0,
                timestamp=TIMESTAMP_MS,
                on_delivery=lambda error, _: cell.fail(error) if error else None,
            )
        if undelivered := producer.flush(SECONDS):
            raise TimeoutError(f"{undelivered} records of round {number} aren't delivered in {SECONDS} s")
        if transactional and number == 0:
            producer.abort_transaction(SECONDS)
            producer.begin_transaction()
    if transactional:
        producer.commit_transaction(SECONDS)


def consume(cell: Cell) -> None:
    """Read all that is there."""
    of_group = {"group.id": cell.topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**cell.config("consumer"), **of_group, "error_cb": cell.fail})
    consumer.subscribe([cell.topic])
    until = time.monotonic() + SECONDS
    while not cell.is_complete() and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error():
            cell.fail(message.error())
        else:
            cell.take(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    run(produce, consume, {"debug": "feature,protocol"})
