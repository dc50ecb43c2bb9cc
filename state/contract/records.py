"""Records of Sluice's topics as they are on the wire: every field, with its meaning and unit.

Gateways write request events; the job writes decisions and dead letters, and for gateways the records of
`sluice.state.contract.gateway_topics`. All are JSON. A reader decodes one of these structs, or a projection with fewer
fields that is checked against it (`sluice.state.contract.projection`). docs/request.schema.json and
docs/decision.schema.json are made from them (`scripts.contracts`).

The job writes every field of a decision but those that are absent by default; a reader takes a decision that lacks a
field with a default, as one of an earlier release may.

Times and durations in `_ms` are milliseconds, times since the epoch. The bounds of an event are only described here:
`sluice.state.decisions.checks` refuses an event with the name of the field, which a decoder's error can't give as well.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_NAME_LENGTH = 32_767
"""Longest user, client-id or topic name: the longest string that a Kafka request header can carry."""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest time that every table and client can display."""

MAX_EXACT = 2**53
"""Largest amount up to which a double represents every integer."""

MAX_ENTRIES = 10_000
"""Most topic-partitions or mutations of one request, so that its decision fits into a Kafka record."""

MUTATIONS_PER_CHARGE = 20
"""Mutations of a request that count as one charge in its bound: they are charged to one counter together, and their
decision has to see all of them, so that a request of many can't become several events."""

MAX_APPLIED_WAITS = 64
"""Most waits in `throttled_by`: one request leads to a few counters only, but its topic-partitions may wait too."""

MAX_NAMED_GATEWAYS = 1_000
"""Most gateways that sums name, as many as a gateway shares with; further ones count as one without a name."""

MAX_INSTANCE_CHARACTERS = 250
"""Longest instance that sums name, as that of a gateway's options; a longer one counts as one without a name."""

MAX_SHARES = 20
"""Most shares that a heartbeat names."""

MAX_UNLIMITED = 10
"""Most clients without a limit that a heartbeat names."""

MAX_LOG_DIRS = 100
"""Most log directories that a heartbeat names."""

MAX_APPLIED_MS = 3_600_000
"""Longest wait that an event may report, one hour: the default of a gateway's `max_wait_ms`. A longer one counts as
that, because the request that it belongs to was served all the same and has to be charged."""

MAX_VALUE = 1e30
"""Larger than any amount of a request; sums of amounts stay finite."""

MAX_INT32 = 2**31 - 1
MAX_INT16 = 2**15 - 1

RELEASE = "0.2.0"
"""The release of Sluice, without what may follow it, that heartbeats name; Events.java has it too."""

NO_LOGIN = "ANONYMOUS"
"""User of a client that has not logged in: the name that brokers give it, and quotas and ACLs know it by."""

HEARTBEAT_API = "GatewayHeartbeat"
"""`api` of a gateway's heartbeat. Kafka has no API of this name, and it costs nothing."""

REFUSED_API = "Refused"
"""`api` of what a proxy refused, requests and connections: charged nothing, and `throttled_by` names the limit."""

UNMUTE_API = "Unmute"
"""`api` of the decision that answers an `Unmute`; Kafka has no API of this name."""

THROTTLING_QUOTA_EXCEEDED = 89
QUOTA_EXCEEDED_MESSAGE = "The throttling quota has been exceeded."

INT_COLUMN = {"column": "INT"}
"""`extra` of an integer that the Delta table keeps in 32 bits; others have 64."""

NO_COLUMN = {"column": "NONE"}
"""`extra` of a field that the Delta table doesn't keep."""


def says(description: str, **schema: object) -> Meta:
    """Description of a field, and the bounds that only the JSON schema has."""
    return Meta(description=description, extra_json_schema=schema or None)


def _from_0_to(maximum: float, extra: dict[str, str] | None = None) -> Meta:
    return Meta(extra_json_schema={"minimum": 0, "maximum": maximum}, extra=extra)


Name = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_NAME_LENGTH})]
RequiredName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_NAME_LENGTH})]
Int16 = Annotated[int, _from_0_to(MAX_INT16, INT_COLUMN)]
Int32 = Annotated[int, _from_0_to(MAX_INT32, INT_COLUMN)]
DurationMs = Annotated[int, _from_0_to(MAX_INT32)]
Exact = Annotated[int, _from_0_to(MAX_EXACT)]
WaitLeftMs = Annotated[
    int, says(f"The longest wait that is left; more than {MAX_APPLIED_MS} counts as that.", minimum=0)
]
ErrorCode = Annotated[int, Meta(extra_json_schema={"enum": [0, THROTTLING_QUOTA_EXCEEDED]}, extra=INT_COLUMN)]
Version = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A version of the quotas table, in the 64 bits with which Delta and Java count."""


class Verdict(StrEnum):
    """Answer to a request: serve it, serve it and mute its client, or refuse all its mutations."""

    ALLOW = "ALLOW"
    THROTTLE = "THROTTLE"
    REJECT = "REJECT"

    __hash__ = str.__hash__  # Enum's own __hash__ is slow, and verdicts are counted


class TopicPartition(msgspec.Struct, gc=False):
    """Bytes that a Produce request wrote to one partition, or that a Fetch request read from it."""

    topic: RequiredName
    partition: Int32
    bytes: Exact = 0


class Mutation(msgspec.Struct, gc=False):
    """Partitions of one topic that a request creates, adds or deletes."""

    topic: RequiredName
    partitions: Int32


class CountedEntity(msgspec.Struct, omit_defaults=True, gc=False):
    """Entity that a counter is kept for: a user, a client-id, both, a topic-partition, or a tenant."""

    user: Name | None = None
    client_id: Name | None = None
    topic: Name | None = None
    partition: Int32 | None = None
    tenant: Name | None = None


NamedEntity = Annotated[CountedEntity, Meta(extra_json_schema={"minProperties": 1})]
"""An entity that an event names: at least one part."""


class AppliedWait(msgspec.Struct, gc=False):
    """Rest of a wait that a gateway applied inline, at the time of the event."""

    quota: RequiredName
    entity: NamedEntity
    ms: WaitLeftMs


class Share(msgspec.Struct, gc=False):
    """A gateway's share of a quota, in units of the quota per second."""

    quota: RequiredName
    entity: NamedEntity
    limit: Annotated[float, says("The quota.", minimum=0)]
    share: Annotated[float, says("The gateway's share of it.", minimum=0)]
    charged: Annotated[float, says("The rate of the gateway's own traffic.")]
    throttle_ms: WaitLeftMs = 0


class LogDirectory(msgspec.Struct, gc=False):
    """A broker's log directory, and the bytes of the volume that it is on."""

    path: RequiredName
    free_bytes: Exact
    total_bytes: Exact


Rate = Annotated[float, _from_0_to(MAX_VALUE)]
Fraction = Annotated[float, _from_0_to(1)]


class Load(msgspec.Struct, omit_defaults=True, gc=False):
    """Load of a broker or gateway since its heartbeat before; what it can't measure is absent."""

    broker_id: Annotated[Int32 | None, says("Kafka's node id, if it is a broker.")] = None
    bytes_in_per_s: Annotated[Rate | None, says("Bytes that clients produced.")] = None
    bytes_out_per_s: Annotated[Rate | None, says("Bytes that clients fetched.")] = None
    handler_idle: Annotated[Fraction | None, says("Part of the time that request handlers were idle.")] = None
    network_idle: Annotated[Fraction | None, says("Part of the time that network threads were idle.")] = None
    queue_used: Annotated[Fraction | None, says("Part of the request queue that is in use.")] = None
    queue_wait_ms: Annotated[
        Rate | None, says("Mean wait of Produce and Fetch of clients in the request and response queues.")
    ] = None
    log_dirs: Annotated[list[LogDirectory], says("Its log directories.", maxItems=MAX_LOG_DIRS)] = []


class UnlimitedClient(msgspec.Struct, gc=False):
    """Bytes that a client without a limit moves through a broker or proxy."""

    user: Name
    client_id: Name
    bytes_in_per_s: Annotated[Rate, says("Bytes that it produced.")]
    bytes_out_per_s: Annotated[Rate, says("Bytes that it fetched.")]


class NotExemptClient(msgspec.Struct, gc=False):
    """A client that bears Sluice's client-id, and whose quotas a broker enforces as any other."""

    principal: Annotated[str, says("Its principal as the broker sees it, such as User:sluice.")]
    client_id: Name


class Heartbeat(msgspec.Struct, gc=False):
    """State of a gateway."""

    staleness_ms: Annotated[Exact, says("Age of what the gateway knows of decisions.")]
    counters: Annotated[Int32, says("Counters that the gateway keeps.")]
    shares: Annotated[list[Share], says("Its busiest counters.", maxItems=MAX_SHARES)] = []
    threads_down: Annotated[
        int,
        Meta(
            description="Threads of the gateway that should work and don't; 0 is well.",
            extra_json_schema={"minimum": 0, "maximum": MAX_INT32},
            extra=NO_COLUMN,
        ),
    ] = 0
    metrics_seen: Annotated[
        bool, Meta(description="False while a broker doesn't hand its metrics to the plugin.", extra=NO_COLUMN)
    ] = True
    load: Annotated[Load | None, Meta(description="Load of the gateway.", extra=NO_COLUMN)] = None
    unlimited: Annotated[
        list[UnlimitedClient],
        Meta(
            description="The heaviest clients without a limit.",
            extra_json_schema={"maxItems": MAX_UNLIMITED},
            extra=NO_COLUMN,
        ),
    ] = []
    command: Annotated[
        int,
        Meta(
            description="Number of the operator's last command that is in force here.",
            extra_json_schema={"minimum": 0, "maximum": MAX_EXACT},
            extra=NO_COLUMN,
        ),
    ] = 0
    not_exempt: Annotated[
        list[NotExemptClient],
        Meta(description="Clients that seem to be Sluice's own and aren't exempt from quotas.", extra=NO_COLUMN),
    ] = []
    release: Annotated[Name | None, Meta(description="Its release; null before 0.2.0.", extra=NO_COLUMN)] = None


AmountBytes = Annotated[
    Exact | None,
    says(
        "Bytes of a Produce or Fetch whose topic-partitions aren't known: charged to the client's quota alone. With"
        " topic_partitions it is 0: another event has the client's bytes, and this one charges the partitions alone."
    ),
]
RequestTimeNs = Annotated[Exact | None, says("Handler time in nanoseconds.")]
NetworkTimeNs = Annotated[Exact | None, says("Network thread time in nanoseconds.")]
TopicPartitions = Annotated[
    list[TopicPartition], says("Partitions that Produce wrote or Fetch read.", maxItems=MAX_ENTRIES)
]
Mutations = Annotated[
    list[Mutation],
    says("Partitions created, added or deleted, topic by topic, in the request's order.", maxItems=MAX_ENTRIES),
]
MutationsCharged = Annotated[
    Int32 | None,
    says(
        "Partitions created, added or deleted already, whose topics aren't known: always charged, never refused. Not"
        " together with mutations."
    ),
]
ApiVersion = Annotated[
    Int16 | None,
    says(
        "Default: a current version. Older ones of CreateTopics (< 6), DeleteTopics (< 5) and CreatePartitions (< 3)"
        " are never refused."
    ),
]
ValidateOnly = Annotated[bool, says("The request changes nothing.")]
ClusterAction = Annotated[
    bool,
    says(
        "An authorised call between brokers. No request time is charged of Fetch, StopReplica, ControlledShutdown, "
        "LeaderAndIsr, UpdateMetadata, WriteTxnMarkers and AlterPartition."
    ),
]
Authenticating = Annotated[bool, says("Sent before the client was authenticated.")]
PurgatoryMs = Annotated[DurationMs, says("Time that a mutation request has waited already.")]
Withheld = Annotated[
    bool,
    says(
        "The Fetch was answered empty: its bytes are charged, checked and taken back, so no charge of"
        " consumer_byte_rate or consumer.byte.rate counts, whatever its value."
    ),
]
Requests = Annotated[
    int,
    Meta(
        description="Number of requests alike that the event sums up: bytes, times and mutations are sums,"
        " timestamp_ms is that of the last.",
        extra_json_schema={"minimum": 1, "maximum": MAX_INT32},
        extra=INT_COLUMN,
    ),
]


class Request(msgspec.Struct, omit_defaults=True, gc=False):
    """Event that a gateway publishes to the requests topic about one request it served, or the sum of several alike.

    Unknown fields are ignored. Record key: user|client_id, both URL-encoded, empty where there is none.
    """

    api: Annotated[
        RequiredName,
        says(
            "Kafka's name of the API: Produce, Fetch, CreateTopics, ...; Requests for a sum of request time alone,"
            " Mutations for one of mutations_charged, Refused for what a proxy refused, GatewayHeartbeat for a"
            " heartbeat. Any other name is charged request time, and mutations_charged."
        ),
    ]
    request_id: Annotated[
        Name | None, says("Repeated in the decision. Default: topic-partition-offset of the record.")
    ] = None
    timestamp_ms: Annotated[
        Annotated[int, _from_0_to(MAX_TIMESTAMP_MS)] | None, says("When the request came. Default: the record's time.")
    ] = None
    user: Annotated[Name | None, says("Null is the empty name, which only default quotas match.")] = None
    client_id: Annotated[Name | None, says("As user.")] = None
    api_version: ApiVersion = None
    validate_only: ValidateOnly = False
    cluster_action: ClusterAction = False
    authenticating: Authenticating = False
    request_time_ns: RequestTimeNs = None
    network_time_ns: NetworkTimeNs = None
    purgatory_ms: PurgatoryMs = 0
    gateway: Annotated[Name | None, says("Name of the gateway; only reported.")] = None
    topic_partitions: TopicPartitions = []
    mutations: Mutations = []
    instance: Annotated[
        Name | None,
        says("The gateway's process, new with each start, by which a gateway knows its own decisions. Only reported."),
    ] = None
    throttled_by: Annotated[
        list[AppliedWait] | None,
        says(
            "The waits that the gateway applied inline, which the request's client still has at timestamp_ms."
            " Present, though empty, if the gateway charges inline. Only reported.",
            maxItems=MAX_APPLIED_WAITS,
        ),
    ] = None
    withheld: Withheld = False
    mutations_charged: MutationsCharged = None
    requests: Requests = 1
    bytes: AmountBytes = None
    heartbeat: Annotated[Heartbeat | None, says("With api GatewayHeartbeat only.")] = None


class UnmutedEntity(msgspec.Struct, forbid_unknown_fields=True):
    """A client as its requests name it (a missing part is empty, as in an event), a topic-partition, or a tenant."""

    user: str | None = None
    client_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    tenant: str | None = None


class Unmute(msgspec.Struct, forbid_unknown_fields=True):
    """Control record that an operator writes to the requests topic, so that it takes effect in the order of requests.

    It resets the counters that requests of this entity are charged to now: all of them, or that of one quota.
    """

    control: Literal["unmute"]
    entity: UnmutedEntity
    quota: str | None = None
    request_id: str | None = None


class Amounts(msgspec.Struct, omit_defaults=True, gc=False):
    """Fields of the event that charges depend on, so that a recorded day can be decided again.

    An amount that the event lacks, or that is the default, is absent.
    """

    bytes: AmountBytes = None
    request_time_ns: RequestTimeNs = None
    network_time_ns: NetworkTimeNs = None
    topic_partitions: TopicPartitions = []
    mutations: Mutations = []
    mutations_charged: MutationsCharged = None
    api_version: ApiVersion = None
    validate_only: ValidateOnly = False
    cluster_action: ClusterAction = False
    authenticating: Authenticating = False
    purgatory_ms: PurgatoryMs = 0
    withheld: Withheld = False
    requests: Requests = 1


class TopicResult(msgspec.Struct, gc=False):
    """Result for one topic of a mutation request."""

    topic: str
    error_code: ErrorCode
    error_message: str | None = None


class ChargeResult(msgspec.Struct, gc=False):
    """One charge as the decision reports it, in the unit of the quota: bytes, points of request time or partitions.

    A charge without a mode holds for its counter, which requests of other clients may lead to: wait until
    timestamp_ms + throttle_ms, but no longer than mute_until_ms; the longest charge of decided_by until
    mute_until_ms. A later decision on the counter (greater timestamp_ms, then source offset) replaces that.
    """

    quota: Annotated[str, says("The quota's key.")]
    entity: Annotated[CountedEntity, says("Entity that the counter is kept for.")] = msgspec.field(
        default_factory=CountedEntity
    )
    matched: Annotated[str, says("The precedence level of the entity that gave the limit.")] = "none"
    limit: Annotated[Annotated[float, Meta(gt=0)] | None, says("Per second. Null: unlimited.")] = None
    value: Annotated[float, Meta(ge=0, le=MAX_VALUE, description="The amount of this request.")] = 0.0
    rate: Annotated[float | None, says("Per second, as observed; null without a meter.")] = None
    throttle_ms: Annotated[
        int, says("The wait that this quota alone asks for, or would ask for as a shadow quota.", minimum=0)
    ] = 0
    violated: Annotated[bool, says("The counter is over the limit.")] = False
    tokens: Annotated[float | UnsetType | None, says("Of controller_mutation_rate only.")] = UNSET
    mode: Annotated[
        Literal["shadow"] | UnsetType,
        says("Present for a shadow quota: metered on a counter of its own, never enforced."),
    ] = UNSET


class ElasticNote(msgspec.Struct, gc=False):
    """Overrides under which a decision was made, as the record of the limits topic of this number says them.

    `factor` is that of the event's gateway, 1 if it wasn't tightened.
    """

    number: Annotated[int, Meta(ge=0)]
    factor: Annotated[float, says("Part of its shares that the gateway let through.")] = 1.0
    reason: Annotated[str, says("The broker and the signal.")] = ""


class Decision(msgspec.Struct, gc=False):
    """Record that Sluice writes to the decisions topic about one request event.

    Record key: user|client_id, both URL-encoded, empty where there is none. Readers must ignore unknown fields, and may
    in rare cases (reliability.md, Time) see a decision twice, with the same decision_id.
    """

    decision_id: Annotated[str, says("topic-partition-offset of the request event; the same when it is decided again.")]
    request_id: Annotated[str, says("As in the event.")]
    timestamp_ms: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS, description="The request's time.")]
    user: Annotated[str | None, says("As in the event.")] = None
    client_id: Annotated[str | None, says("As in the event.")] = None
    api: Annotated[str, says("As in the event.")] = ""
    gateway: Annotated[str | None, says("As in the event.")] = None
    verdict: Annotated[
        Verdict, says("THROTTLE: answer, then mute. REJECT: every mutation of the request was refused.")
    ] = Verdict.ALLOW
    throttle_time_ms: Annotated[DurationMs, says("The wait.")] = 0
    mute_until_ms: Annotated[
        int | None,
        says(
            "timestamp_ms + throttle_time_ms; null without a throttle. Until then no request is served that leads to"
            " the counter that decided; see charges."
        ),
    ] = None
    error_code: Annotated[ErrorCode, says("89, THROTTLING_QUOTA_EXCEEDED, with REJECT.")] = 0
    topic_results: Annotated[list[TopicResult], says("One for each mutation, in the request's order.")] = []
    decided_by: Annotated[str | None, says("The quota whose wait is throttle_time_ms; null without a throttle.")] = None
    charges: Annotated[list[ChargeResult], says("The charges of all quotas that apply.")] = []
    quota_version: Annotated[int, says("Version of the quotas table that was in force.")] = 0
    decided_at_ms: Annotated[int, says("When the micro-batch of the request began.", minimum=0)] = 0
    job_id: Annotated[str | None, says("The job that decided: made with its checkpoint. Null in simulations.")] = None
    source_topic_id: Annotated[
        str | None,
        says(
            "Kafka's id of the requests topic, which is another one when the topic is made again, and in another"
            " cluster: with it `decision_id` is unique. Null in simulations, and where brokers give none."
        ),
    ] = None
    elastic: Annotated[
        ElasticNote | UnsetType, says("How far limits gave way; absent if all limits were the quotas.")
    ] = UNSET
    instance: Annotated[str | None, says("As in the event.")] = None
    throttled_by: Annotated[
        Annotated[list[AppliedWait], Meta(max_length=MAX_APPLIED_WAITS)] | UnsetType,
        says("As in the event, and absent if the event has none: the waits that the gateway applied inline."),
    ] = UNSET
    amounts: Annotated[Amounts | UnsetType, says("As in the event; absent if it has none.")] = UNSET
    heartbeat: Annotated[Heartbeat | UnsetType, says("As in the event; absent if the event is no heartbeat.")] = UNSET


class SourceRecord(msgspec.Struct, frozen=True):
    """Kafka record of an event. `topic_id` is Kafka's, another one when the topic is made again; null if not known."""

    topic: str
    partition: Int32
    offset: int
    topic_id: str | None = None


class FieldError(msgspec.Struct, frozen=True):
    """Field of an event that breaks the contract, the problem, and the expected content."""

    field: str
    problem: str
    expected: str


class DeadLetter(msgspec.Struct, frozen=True):
    """Event that can't be decided, with the reason.

    `value` is its first bytes, in base64 on the wire, and `value_bytes` their full number; null if it had no value.
    """

    source: SourceRecord
    error: FieldError
    value: bytes | None
    value_bytes: int | None
