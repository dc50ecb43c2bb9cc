"""What a decision repeats of its event, as JSON that is made once and then copied: less work than to carry fields."""

from collections.abc import Sequence

import msgspec

from sluice.state.decisions.request import AppliedWait, Heartbeat, Mutation, Request, TopicPartition


class Amounts(msgspec.Struct, omit_defaults=True, gc=False):
    """Everything that charges depend on and a decision says nowhere else, so that a recorded day can be decided again.

    What the event doesn't say is left out, and so is what it says if that is the contract's default.
    """

    bytes: int | None = None
    request_time_ns: int | None = None
    network_time_ns: int | None = None
    topic_partitions: list[TopicPartition] = []
    mutations: list[Mutation] = []
    mutations_charged: int | None = None
    api_version: int | None = None
    validate_only: bool = False
    cluster_action: bool = False
    authenticating: bool = False
    purgatory_ms: int = 0
    withheld: bool = False
    requests: int = 1


_ENCODER = msgspec.json.Encoder()
_NOTHING = b"{}"


def encode_amounts(request: Request) -> bytes | None:
    """The event's amounts; None if it has none.

    >>> encode_amounts(Request("Fetch", user="alice", request_time_ns=5, withheld=True, bytes=70))
    b'{"bytes":70,"request_time_ns":5,"withheld":true}'
    """
    amounts = Amounts(
        request.bytes,
        request.request_time_ns,
        request.network_time_ns,
        request.topic_partitions,
        request.mutations,
        request.mutations_charged,
        request.api_version,
        request.validate_only,
        request.cluster_action,
        request.authenticating,
        request.purgatory_ms,
        request.withheld,
        request.requests,
    )
    encoded = _ENCODER.encode(amounts)
    return None if encoded == _NOTHING else encoded


def encode_said(said: Sequence[AppliedWait] | Heartbeat) -> bytes:
    """What the event says in another field that its decision repeats."""
    return _ENCODER.encode(said)
