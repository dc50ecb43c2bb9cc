"""The identity of a request event: the Kafka record that it came in."""

import msgspec


class Source(msgspec.Struct, frozen=True, gc=False):
    """The Kafka record of an event; `timestamp_ms` is the record's, in epoch milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def record_id(self) -> str:
        """`topic-partition-offset`: the `decision_id`, and the default `request_id`.

        The only place that builds it. `sluice.sinks.tables.decisions` is the only one that splits it.
        """
        return f"{self.topic}-{self.partition}-{self.offset}"
