"""Records of Sluice's topics as they are on the wire: every field, with its meaning and unit.

Gateways write request events; the job writes decisions, dead letters, limits and waits. All are JSON. A reader decodes
one of these structs, or a projection with fewer fields that is checked against it (`sluice.state.contract.projection`).
docs/request.schema.json and docs/decision.schema.json are made from them (`scripts.contracts`).

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

BYTES_APIS = ("Produce", "Fetch")
"""The APIs that are charged bytes."""

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


def _says(description: str, **schema: object) -> Meta:
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
    int, _says(f"The longest wait that is left; more than {MAX_APPLIED_MS} counts as that.", minimum=0)
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
    limit: Annotated[float, _says("The quota.", minimum=0)]
    share: Annotated[float, _says("The gateway's share of it.", minimum=0)]
    charged: Annotated[float, _says("The rate of the gateway's own traffic.")]
    throttle_ms: WaitLeftMs = 0


class LogDirectory(msgspec.Struct, gc=False):
    """A broker's log directory, and the bytes of the volume that it is on."""

    path: RequiredName
    free_bytes: Exact
    total_bytes: Exact


Rate = Annotated[float, _from_0_to(MAX_VALUE)]
Part = Annotated[float, _from_0_to(1)]


class Load(msgspec.Struct, omit_defaults=True, gc=False):
    """Load of a broker or gateway since its heartbeat before; what it can't measure is absent."""

    broker_id: Annotated[Int32 | None, _says("Kafka's node id, if it is a broker.")] = None
    bytes_in_per_s: Annotated[Rate | None, _says("Bytes that clients produced.")] = None
    bytes_out_per_s: Annotated[Rate | None, _says("Bytes that clients fetched.")] = None
    handler_idle: Annotated[Part | None, _says("Part of the time that request handlers were idle.")] = None
    network_idle: Annotated[Part | None, _says("Part of the time that network threads were idle.")] = None
    queue_used: Annotated[Part | None, _says("Part of the request queue that is in use.")] = None
    queue_wait_ms: Annotated[
        Rate | None, _says("Mean wait of Produce and Fetch of clients in the request and response queues.")
    ] = None
    log_dirs: Annotated[list[LogDirectory], _says("Its log directories.", maxItems=MAX_LOG_DIRS)] = []


class UnlimitedClient(msgspec.Struct, gc=False):
    """Bytes that a client without a limit moves through a broker or proxy."""

    user: Name
    client_id: Name
    bytes_in_per_s: Annotated[Rate, _says("Bytes that it produced.")]
    bytes_out_per_s: Annotated[Rate, _says("Bytes that it fetched.")]


class NotExemptClient(msgspec.Struct, gc=False):
    """A client that bears Sluice's client-id, and whose quotas a broker enforces as any other."""

    principal: Annotated[str, _says("Its principal as the broker sees it, such as User:sluice.")]
    client_id: Name


class Heartbeat(msgspec.Struct, gc=False):
    """State of a gateway."""

    staleness_ms: Annotated[Exact, _says("Age of what the gateway knows of decisions.")]
    counters: Annotated[Int32, _says("Counters that the gateway keeps.")]
    shares: Annotated[list[Share], _says("Its busiest counters.", maxItems=MAX_SHARES)] = []
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


AmountBytes = Annotated[
    Exact | None,
    _says(
        "Bytes of a Produce or Fetch whose topic-partitions aren't known: charged to the client's quota alone. With"
        " topic_partitions it is 0: another event has the client's bytes, and this one charges the partitions alone."
    ),
]
RequestTimeNs = Annotated[Exact | None, _says("Handler time in nanoseconds.")]
NetworkTimeNs = Annotated[Exact | None, _says("Network thread time in nanoseconds.")]
TopicPartitions = Annotated[
    list[TopicPartition], _says("Partitions that Produce wrote or Fetch read.", maxItems=MAX_ENTRIES)
]
Mutations = Annotated[
    list[Mutation],
    _says("Partitions created, added or deleted, topic by topic, in the request's order.", maxItems=MAX_ENTRIES),
]
MutationsCharged = Annotated[
    Int32 | None,
    _says(
        "Partitions created, added or deleted already, whose topics aren't known: always charged, never refused. Not"
        " together with mutations."
    ),
]
ApiVersion = Annotated[
    Int16 | None,
    _says(
        "Default: a current version. Older ones of CreateTopics (< 6), DeleteTopics (< 5) and CreatePartitions (< 3)"
        " are never refused."
    ),
]
ValidateOnly = Annotated[bool, _says("The request changes nothing.")]
ClusterAction = Annotated[bool, _says("An authorised call between brokers.")]
Authenticating = Annotated[bool, _says("Sent before the client was authenticated.")]
PurgatoryMs = Annotated[DurationMs, _says("Time that a mutation request has waited already.")]
Withheld = Annotated[
    bool,
    _says(
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
        _says(
            "Kafka's name of the API: Produce, Fetch, CreateTopics, ...; Requests for a sum of request time alone,"
            " Refused for what a proxy refused, GatewayHeartbeat for a heartbeat. Any other name is charged request"
            " time, and mutations_charged."
        ),
    ]
    request_id: Annotated[
        Name | None, _says("Repeated in the decision. Default: topic-partition-offset of the record.")
    ] = None
    timestamp_ms: Annotated[
        Annotated[int, _from_0_to(MAX_TIMESTAMP_MS)] | None, _says("When the request came. Default: the record's time.")
    ] = None
    user: Annotated[Name | None, _says("Null is the empty name, which only default quotas match.")] = None
    client_id: Annotated[Name | None, _says("As user.")] = None
    api_version: ApiVersion = None
    validate_only: ValidateOnly = False
    cluster_action: ClusterAction = False
    authenticating: Authenticating = False
    request_time_ns: RequestTimeNs = None
    network_time_ns: NetworkTimeNs = None
    purgatory_ms: PurgatoryMs = 0
    gateway: Annotated[Name | None, _says("Name of the gateway; only reported.")] = None
    topic_partitions: TopicPartitions = []
    mutations: Mutations = []
    instance: Annotated[
        Name | None,
        _says("The gateway's process, new with each start, by which a gateway knows its own decisions. Only reported."),
    ] = None
    throttled_by: Annotated[
        list[AppliedWait] | None,
        _says(
            "The waits that the gateway applied inline, which the request's client still has at timestamp_ms."
            " Present, though empty, if the gateway charges inline. Only reported.",
            maxItems=MAX_APPLIED_WAITS,
        ),
    ] = None
    withheld: Withheld = False
    mutations_charged: MutationsCharged = None
    requests: Requests = 1
    bytes: AmountBytes = None
    heartbeat: Annotated[Heartbeat | None, _says("With api GatewayHeartbeat only.")] = None


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

    quota: Annotated[str, _says("The quota's key.")]
    entity: Annotated[CountedEntity, _says("Entity that the counter is kept for.")] = msgspec.field(
        default_factory=CountedEntity
    )
    matched: Annotated[str, _says("The precedence level of the entity that gave the limit.")] = "none"
    limit: Annotated[Annotated[float, Meta(gt=0)] | None, _says("Per second. Null: unlimited.")] = None
    value: Annotated[float, Meta(ge=0, le=MAX_VALUE, description="The amount of this request.")] = 0.0
    rate: Annotated[float | None, _says("Per second, as observed; null without a meter.")] = None
    throttle_ms: Annotated[
        int, _says("The wait that this quota alone asks for, or would ask for if it is on trial.", minimum=0)
    ] = 0
    violated: Annotated[bool, _says("The counter is over the limit.")] = False
    tokens: Annotated[float | UnsetType | None, _says("Of controller_mutation_rate only.")] = UNSET
    mode: Annotated[
        Literal["shadow"] | UnsetType,
        _says("Present where the quota is on trial: metered on a counter of its own, never enforced."),
    ] = UNSET


class ElasticNote(msgspec.Struct, gc=False):
    """Overrides under which a decision was made, as the record of the limits topic of this number says them.

    `factor` is that of the event's gateway, 1 if it wasn't tightened.
    """

    number: Annotated[int, Meta(ge=0)]
    factor: Annotated[float, _says("Part of its shares that the gateway let through.")] = 1.0
    reason: Annotated[str, _says("The broker and the signal.")] = ""


class Decision(msgspec.Struct, gc=False):
    """Record that Sluice writes to the decisions topic about one request event.

    Record key: user|client_id, both URL-encoded, empty where there is none. Readers must ignore unknown fields, and may
    in rare cases (reliability.md, Time) see a decision twice, with the same decision_id.
    """

    decision_id: Annotated[
        str, _says("topic-partition-offset of the request event; the same when it is decided again.")
    ]
    request_id: Annotated[str, _says("As in the event.")]
    timestamp_ms: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS, description="The request's time.")]
    user: Annotated[str | None, _says("As in the event.")] = None
    client_id: Annotated[str | None, _says("As in the event.")] = None
    api: Annotated[str, _says("As in the event.")] = ""
    gateway: Annotated[str | None, _says("As in the event.")] = None
    verdict: Annotated[
        Verdict, _says("THROTTLE: answer, then mute. REJECT: every mutation of the request was refused.")
    ] = Verdict.ALLOW
    throttle_time_ms: Annotated[DurationMs, _says("The wait.")] = 0
    mute_until_ms: Annotated[
        int | None,
        _says(
            "timestamp_ms + throttle_time_ms; null without a throttle. Until then no request is served that leads to"
            " the counter that decided; see charges."
        ),
    ] = None
    error_code: Annotated[ErrorCode, _says("89, THROTTLING_QUOTA_EXCEEDED, with REJECT.")] = 0
    topic_results: Annotated[list[TopicResult], _says("One for each mutation, in the request's order.")] = []
    decided_by: Annotated[str | None, _says("The quota whose wait is throttle_time_ms; null without a throttle.")] = (
        None
    )
    charges: Annotated[list[ChargeResult], _says("The charges of all quotas that apply.")] = []
    quota_version: Annotated[int, _says("Version of the quotas table that was in force.")] = 0
    decided_at_ms: Annotated[int, _says("When the micro-batch of the request began.", minimum=0)] = 0
    job_id: Annotated[str | None, _says("The job that decided: made with its checkpoint. Null in simulations.")] = None
    source_topic_id: Annotated[
        str | None,
        _says(
            "Kafka's id of the requests topic, which is another one when the topic is made again, and in another"
            " cluster: with it `decision_id` is unique. Null in simulations, and where brokers give none."
        ),
    ] = None
    elastic: Annotated[
        ElasticNote | UnsetType, _says("How far limits gave way; absent if all limits were the quotas.")
    ] = UNSET
    instance: Annotated[str | None, _says("As in the event.")] = None
    throttled_by: Annotated[
        Annotated[list[AppliedWait], Meta(max_length=MAX_APPLIED_WAITS)] | UnsetType,
        _says("As in the event, and absent if the event has none: the waits that the gateway applied inline."),
    ] = UNSET
    amounts: Annotated[Amounts | UnsetType, _says("As in the event; absent if it has none.")] = UNSET
    heartbeat: Annotated[Heartbeat | UnsetType, _says("As in the event; absent if the event is no heartbeat.")] = UNSET


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


EventMs = Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)]
AfterMs = Annotated[int, Meta(ge=0, le=2 * MAX_TIMESTAMP_MS)]
Limit = Annotated[float, Meta(gt=0)]
Value = Annotated[float, Meta(ge=0, le=MAX_VALUE)]


class SummedGateway(msgspec.Struct, array_like=True, gc=False):
    """Gateway that sums are of; null stands for all that give no instance.

    Inline charges of a gateway, and its other charges, are two: nobody but itself has to know whose the latter is.
    """

    instance: Annotated[str, Meta(max_length=MAX_INSTANCE_CHARACTERS)] | None
    charges_inline: bool
    until_ms: Annotated[AfterMs, Meta(description="The time of its newest request, after the record's `base_ms`.")]


class GatewaySum(msgspec.Struct, array_like=True, gc=False):
    """Sum of what the job decided on requests of one gateway on one counter, in a micro-batch."""

    gateway: Annotated[int, Meta(ge=0, description="Its place among the record's `gateways`.")]
    value: Annotated[Value, Meta(description="The sum of the charges; those of a withheld Fetch don't count.")]
    applied_ms: Annotated[
        int, Meta(ge=0, le=MAX_APPLIED_MS, description="The longest wait that it had applied inline.")
    ] = 0
    age_ms: Annotated[
        AfterMs, Meta(description="The time from its newest request to the newest one on the counter.")
    ] = 0
    faded: Annotated[
        Value | None,
        Meta(
            description="The sum at the time of its newest request, if each charge fades to 1/e in the S-1 windows of"
            " a meter; null if that is `value`."
        ),
    ] = None


class FetchSizes(msgspec.Struct, array_like=True, gc=False):
    """Fetches on one counter in a micro-batch: those whose event isn't a sum of many."""

    count: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    bytes: Annotated[float, Meta(ge=0, le=MAX_VALUE)]


class SumWait(msgspec.Struct, array_like=True, gc=False):
    """Wait of a counter after a micro-batch.

    `wait_ms` is what the request at `timestamp_ms`, whose source offset is `offset`, was asked to wait, and `until_ms`
    its end; if `wait_ms` is 0, the counter doesn't wait. `rate` is null for controller mutations. If not `is_new`, all
    requests were charged inline: the wait may only shorten a known one.
    """

    wait_ms: Annotated[int, Meta(ge=0, le=MAX_INT32)]
    until_ms: Annotated[AfterMs, Meta(description="After the record's `base_ms`.")]
    rate: float | None
    timestamp_ms: Annotated[AfterMs, Meta(description="After the record's `base_ms`.")]
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    is_new: bool


class CounterSum(msgspec.Struct, array_like=True, gc=False):
    """Sum of what the job decided on one counter with an enforced limit, in a micro-batch.

    If `is_reset`, an operator has reset the counter before all these charges.
    """

    quota: Annotated[int, Meta(ge=0, description="Its place among the record's `quotas`.")]
    limit: Annotated[Limit | None, Meta(description="Per second; null after a reset without any charge.")]
    from_ms: Annotated[AfterMs, Meta(description="The time of the oldest request, after the record's `base_ms`.")]
    until_ms: Annotated[AfterMs, Meta(description="The time of the newest request, after the record's `base_ms`.")]
    by_gateway: list[GatewaySum]
    wait: Annotated[SumWait | None, Meta(description="Null if all were charged inline, and nothing waits.")] = None
    fetches: FetchSizes | None = None
    is_reset: bool = False


class EntitySums(msgspec.Struct, array_like=True, gc=False):
    """Sums of one entity's counters. The entity has its fields in the order of the schema, and no blanks."""

    entity: CountedEntity
    counters: list[CounterSum]
    has_waits: Annotated[bool, Meta(description="True if a counter has a new wait, or was reset.")] = False


class DecidedHeartbeat(msgspec.Struct, omit_defaults=True, gc=False):
    """Heartbeat of a gateway that the job has decided."""

    instance: RequiredName
    request_id: str
    timestamp_ms: EventMs
    load: Annotated[
        tuple[Rate, str] | None, _says("The gateway's load, 0.9 at its capacity, and the signal that says so.")
    ] = None
    low_disk: Annotated[
        str | None, _says("The log directory of this broker that is low: until it isn't, producers are stopped.")
    ] = None
    command: Annotated[Exact, _says("The operator's last command that is in force at the gateway.")] = 0
    is_broker: bool = False
    load_is_of_bytes: Annotated[bool, _says("The signal is of bytes, whose end is known at once.")] = False


class Sums(msgspec.Struct, omit_defaults=True, gc=False):
    """Record of the sums topic: what gateways need to know of a micro-batch's decisions.

    A record has sums, a heartbeat or an answer. A counter has one sum in a micro-batch, so a reader that has taken one
    of the same job and of this micro-batch or one of the next 99 leaves it out, unless this one has a later
    `decided_at_ms`: a micro-batch that is repeated publishes the same sums again, with the same time, and a job that
    goes on from a backup of its checkpoint gives its numbers to other micro-batches. Record key: the number of the
    task, so that the sums of a counter are in one partition. Readers must ignore unknown fields. An array without its
    last elements has their defaults.
    """

    job_id: Annotated[str | None, _says("The job that decided: made with its checkpoint.")] = None
    batch: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None, _says("Number of the micro-batch. Only with sums.")
    ] = None
    quota_version: Annotated[Version, _says("Version of the quotas table that was in force.")] = 0
    base_ms: Annotated[EventMs, Meta(description="The time that times in sums are given after.")] = 0
    quotas: Annotated[list[str], _says("The quotas that the sums name by their place.")] = []
    gateways: Annotated[list[SummedGateway], _says("The gateways that the sums name by their place.")] = []
    sums: Annotated[list[EntitySums], _says("The sums by entity.")] = []
    heartbeat: DecidedHeartbeat | None = None
    answer: Annotated[
        Decision | None, _says("A decision on mutations, for the gateway that waits for it to execute them.")
    ] = None
    decided_at_ms: Annotated[
        EventMs, Meta(description="The time of the micro-batch, that of its first attempt. Only with sums.")
    ] = 0


class LimitKey(msgspec.Struct, frozen=True):
    """Key of a quota's record in the limits topic: canonical JSON, so that one quota always has one key."""

    entity: dict[str, str | None]
    mode: Literal["enforce", "shadow"]
    quota: str


class LimitRecord(msgspec.Struct, frozen=True):
    """Value of a quota's record. `value` is bytes/s, percent or mutations/s; `version` is the one that set it."""

    entity: dict[str, str | None]
    quota: str
    value: float
    mode: Literal["enforce", "shadow"]
    version: Version


class VersionEnd(msgspec.Struct, frozen=True):
    """Value of the record that ends a version of the limits: the version, and the number of its quotas."""

    version: Version
    count: Version


class Override(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit that is overridden, or clients that are stopped, whatever the quotas say.

    * `tighten`: gateway `gateway` lets `factor` of its shares through, but of each at least the reservation's part.
    * `hold`: the producers of `entity`, without one all, get a trickle; on `gateway`, without one on all. An entity is
      a tenant, or the user and client-id that an event names, each as far as it is given. With `consumers` its
      consumers get nothing, and its producers as little as a gateway can let through.

    It ends at `until_ms`, without one when its decider doesn't say it any more. `reason` is for people.
    """

    kind: Literal["tighten", "hold"]
    factor: Annotated[float, Meta(gt=0, le=MAX_VALUE)] = 1.0
    entity: CountedEntity | None = None
    gateway: RequiredName | None = None
    reason: str = ""
    until_ms: EventMs | None = None
    consumers: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a factor or scope that its kind can't have; a decoder says it of the record."""
        names = {} if self.entity is None else msgspec.to_builtins(self.entity)
        if self.kind == "hold":
            is_client = names.keys() <= {"user", "client_id"} or names.keys() == {"tenant"}
            is_possible = self.factor == 1.0 and is_client and "" not in names.values() and (names or not self.entity)
        else:
            is_possible = self.factor <= 1.0 and not names and bool(self.gateway)
        if not is_possible or (self.consumers and not names):
            raise ValueError(f"{self.kind} can't have this factor or scope")


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure that a decider decides by: from `bound` on it overrides. `name` is a gateway's instance, or a tenant."""

    name: RequiredName
    value: Value
    bound: Limit
    reason: str = ""


class Overrides(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of a decider's record of the limits topic: all that it overrides now.

    `number` grows with each change. The record is published again before `fresh_ms` have passed since `at_ms`: gateways
    believe it for so long. `measured` are the figures behind it, for people: those nearest to their bounds. `command`
    is the number of the last command of an operator that it follows, which gateways repeat in their heartbeats.
    """

    number: Version
    at_ms: EventMs
    fresh_ms: Annotated[int, Meta(gt=0, le=MAX_INT32)]
    overrides: list[Override] = []
    measured: list[Measured] = []
    command: Annotated[int, Meta(ge=0, le=MAX_EXACT)] = 0

    @property
    def is_neutral(self) -> bool:
        """True if there is nothing to say."""
        return not self.overrides and not self.measured


class WaitKey(msgspec.Struct, frozen=True):
    """Key of a counter's record in the waits topic: canonical JSON, so that one counter always has one key."""

    entity: CountedEntity
    quota: str


class WaitRecord(msgspec.Struct, frozen=True):
    """Value of a counter's record, out of the decision that asked for the wait.

    `timestamp_ms` and `offset` are those of the request event, and order two records of one counter. `until_ms` is
    `timestamp_ms + throttle_ms`. `limit` and `rate` are those of the charge; `rate` is null for controller mutations.
    """

    until_ms: int
    throttle_ms: int
    limit: float | None
    rate: float | None
    timestamp_ms: int
    offset: int
