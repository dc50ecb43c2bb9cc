"""One quota as it is set: on whom, of which kind, how much."""

import msgspec

from state.entity import QuotaEntity
from state.quota import QuotaKind


class QuotaEntry(msgspec.Struct, frozen=True, gc=False):
    """A quota on an entity. `value` is bytes/s, percent or mutations/s as `kind` says.

    A `shadow` quota is metered and reported, and never delays or refuses.
    """

    entity: QuotaEntity
    kind: QuotaKind
    value: float
    shadow: bool = False
