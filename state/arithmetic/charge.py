"""Charges of a counter and their results: plain data shared by planning, arithmetic and decisions."""

from collections.abc import Sequence

import msgspec

from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind


class Charge(msgspec.Struct, array_like=True, gc=False):
    """A charge that is still to be made. Without any amount it resets the quota's counter.

    `amounts` depends on the kind's family: [bytes]; [handler, network] points of request time; or the partitions of
    each mutated topic. `limit` is in units per second, None if there is none. `withheld` bytes were not delivered:
    they are recorded, checked and taken back.
    """

    kind: QuotaKind
    level: str
    limit: float | None
    shadow: bool
    amounts: list[float]
    strict: bool = False
    withheld: bool = False


class Unmetered(msgspec.Struct, array_like=True, gc=False):
    """An amount that is reported without a counter: exempt request time, or bytes while no topic has a quota."""

    quota: str
    level: str
    tags: Tags | None
    value: float


class Outcome(msgspec.Struct, gc=False):
    """The result of charging one quota.

    `wait_ms` is the wait this quota asks for: at least 0, not yet clamped to an int32. For a shadow quota it is the
    wait it would ask for. `refused` has one flag per topic of a mutation request. `samples` is a copy of the
    request-time samples, for checking that quota again after the byte-rate delay (sequential coexistence only).
    """

    charge: Charge
    value: float
    violated: bool
    wait_ms: int
    rate: float
    tokens: float | None = None
    refused: Sequence[bool] = ()
    samples: SampledRate | None = None
