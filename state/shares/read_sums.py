"""The records of the sums topic as a gateway reads them.

Most sums are of counters that no client of the gateway uses: they stay encoded until one does.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from sluice.state.contract.gateway_topics import CounterSum, DecidedHeartbeat, SummedGateway
from sluice.state.contract.records import MAX_TIMESTAMP_MS, CountedEntity, Decision
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import KINDS_BY_NAME, QuotaKind

# Structs without garbage collection: thousands of them are made each second, and none holds a circle.


class ReadEntity(msgspec.Struct, array_like=True, gc=False):
    """`EntitySums` with the entity and the sums of its counters as they are in the record."""

    entity: Raw
    counters: Raw
    has_waits: bool = False

    def tags(self) -> Tags:
        """The tags of its counters. Raises msgspec's errors for an entity that can't be read."""
        return Tags.of(_ENTITY.decode(self.entity))


class ReadSums(msgspec.Struct, gc=False):
    """`Sums` with the sums of counters as they are in the record."""

    job_id: str | None = None
    batch: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    quota_version: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    base_ms: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)] = 0
    quotas: list[str] = []
    gateways: list[SummedGateway] = []
    sums: list[ReadEntity] = []
    heartbeat: DecidedHeartbeat | None = None
    answer: Decision | None = None
    decided_at_ms: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)] = 0

    def decided_until_ms(self, instance: str) -> int | None:
        """The time of this gateway's newest request in the record; None if it has none."""
        after = [gateway.until_ms for gateway in self.gateways if gateway.instance == instance]
        return self.base_ms + max(after) if after else None

    def uncharged(self, instance: str) -> int | None:
        """The place of what this gateway hasn't charged inline; None if there is nothing of the kind."""
        for place, gateway in enumerate(self.gateways):
            if not gateway.charges_inline and gateway.instance == instance:
                return place
        return None

    def counters(self, entity: ReadEntity) -> Iterator[tuple[QuotaKind, CounterSum]]:
        """The sums of an entity's counters of known kinds. Raises msgspec's errors for any that can't be read."""
        places, quotas = len(self.gateways), self.quotas
        for decided in _COUNTERS.decode(entity.counters):
            if decided.quota >= len(quotas):
                raise msgspec.ValidationError(f"a sum is of quota {decided.quota}; expected one below {len(quotas)}")
            for charged in decided.by_gateway:
                if charged.gateway >= places:
                    raise msgspec.ValidationError(f"a sum is of gateway {charged.gateway}; expected one below {places}")
            kind = KINDS_BY_NAME.get(quotas[decided.quota])
            if kind is not None:
                yield kind, decided


_RECORD = msgspec.json.Decoder(ReadSums)
_COUNTERS = msgspec.json.Decoder(list[CounterSum])
_ENTITY = msgspec.json.Decoder(CountedEntity)


def read_sums(value: bytes | None) -> ReadSums:
    """The content of a record. Raises msgspec's errors, and RecursionError, for a record that Sluice wouldn't write."""
    return _RECORD.decode(value or b"")
