"""One quota: the entity it is set on, its kind, its limit and its mode."""

from enum import StrEnum

import msgspec

from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.kinds import QuotaKind


class Mode(StrEnum):
    """Enforced or shadow. A shadow quota is metered and reported, and never delays or refuses."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


class QuotaEntry(msgspec.Struct, frozen=True, gc=False):
    """A quota on an entity. `value` is in bytes/s, percent or mutations/s, depending on `kind`."""

    entity: QuotaEntity
    kind: QuotaKind
    value: float
    shadow: bool = False

    @property
    def mode(self) -> Mode:
        """The mode, as files, tables and commands write it."""
        return Mode.SHADOW if self.shadow else Mode.ENFORCE
