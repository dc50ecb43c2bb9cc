"""Records of the topics that gateways follow: sums, and limits with overrides and waits. Written by the job alone.

The schema docs/sums.schema.json is made of them (`scripts.contracts`); words, units and bounds are those of
`sluice.state.contract.records`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluice.state.contract.records import (
    MAX_APPLIED_MS,
    MAX_EXACT,
    MAX_INSTANCE_CHARACTERS,
    MAX_INT32,
    MAX_TIMESTAMP_MS,
    MAX_VALUE,
    CountedEntity,
    Decision,
    Exact,
    Rate,
    RequiredName,
    Version,
    says,
)

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
        tuple[Rate, str] | None, says("The gateway's load, 0.9 at its capacity, and the signal that says so.")
    ] = None
    low_disk: Annotated[
        str | None, says("The log directory of this broker that is low: until it isn't, producers are stopped.")
    ] = None
    command: Annotated[Exact, says("The operator's last command that is in force at the gateway.")] = 0
    is_broker: bool = False
    load_is_of_bytes: Annotated[bool, says("The signal is of bytes, whose end is known at once.")] = False


class Sums(msgspec.Struct, omit_defaults=True, gc=False):
    """Record of the sums topic: what gateways need to know of a micro-batch's decisions.

    A record has sums, a heartbeat or an answer. A counter has one sum in a micro-batch, so a reader that has taken one
    of the same job and of this micro-batch or one of the next 99 leaves it out, unless this one has a later
    `decided_at_ms`: a micro-batch that is repeated publishes the same sums again, with the same time, and a job that
    goes on from a backup of its checkpoint gives its numbers to other micro-batches. Record key: the number of the
    task, so that the sums of a counter are in one partition. Readers must ignore unknown fields. An array without its
    last elements has their defaults.
    """

    job_id: Annotated[str | None, says("The job that decided: made with its checkpoint.")] = None
    batch: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None, says("Number of the micro-batch. Only with sums.")
    ] = None
    quota_version: Annotated[Version, says("Version of the quotas table that was in force.")] = 0
    base_ms: Annotated[EventMs, Meta(description="The time that times in sums are given after.")] = 0
    quotas: Annotated[list[str], says("The quotas that the sums name by their place.")] = []
    gateways: Annotated[list[SummedGateway], says("The gateways that the sums name by their place.")] = []
    sums: Annotated[list[EntitySums], says("The sums by entity.")] = []
    heartbeat: DecidedHeartbeat | None = None
    answer: Annotated[
        Decision | None, says("A decision on mutations, for the gateway that waits for it to execute them.")
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
