"""Records of the topic, as the receiver in brokers writes them; the README says what each field is."""

import msgspec

TOPIC = "sluice.client-telemetry"

BROKER_METRICS = (
    *("request_queue_size", "request_queue_ms_p99", "request_handler_idle", "network_idle"),
    *("local_ms_p99.Produce", "local_ms_p99.FetchConsumer", "log_flush_ms_p99", "mutes"),
)
"""The names in a broker's record; those that its version of Kafka doesn't have are absent."""


class ClientRecord(msgspec.Struct, tag_field="kind", tag="client", frozen=True):
    """One push of a running client; times are epoch milliseconds."""

    at_ms: int
    broker: str
    client_instance_id: str
    client_id: str
    user: str
    metrics: dict[str, float]
    software: str = ""


class BrokerRecord(msgspec.Struct, tag_field="kind", tag="broker", frozen=True):
    """A broker's own figures."""

    at_ms: int
    broker: str
    metrics: dict[str, float]


_DECODER: msgspec.json.Decoder[ClientRecord | BrokerRecord] = msgspec.json.Decoder(ClientRecord | BrokerRecord)


def read_record(value: bytes) -> ClientRecord | BrokerRecord | None:
    """The record, None for one that is of another kind or can't be read.

    >>> read_record(b'{"kind": "broker", "at_ms": 5, "broker": "1", "metrics": {"mutes": 2}}')
    BrokerRecord(at_ms=5, broker='1', metrics={'mutes': 2.0})
    """
    try:
        return _DECODER.decode(value)
    except msgspec.DecodeError:  # and the ValidationErrors that derive from it
        return None
