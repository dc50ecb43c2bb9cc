"""Section `elastic`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from sluice.configs.extras import Section


@dataclass(frozen=True, slots=True)
class ElasticSettings(Section):
    """Section `elastic`: limits that give way or don't, and how long a broker's last answer on its disks counts."""

    limits: Literal["strict", "elastic"] = "strict"
    disk_remembered_s: Annotated[int, Meta(ge=1, le=2_147_483_647)] = 3_600

    @property
    def gives_way(self) -> bool:
        """True if overloaded brokers tighten all quotas."""
        return self.limits == "elastic"
