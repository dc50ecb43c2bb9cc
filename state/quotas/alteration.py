"""Quotas altered and described exactly as Kafka's controller does (ClientQuotaControlManager), and lists of quotas."""

from collections.abc import Mapping
from typing import NamedTuple

RawEntity = Mapping[str, str | None]
"""An entity as Kafka's protocol names it: type (`user`, `client-id`, ...) to name, None for the default."""


class ChangedFrom(NamedTuple):
    """The OS user and host of a process that changed quotas, and the Kafka principal it has by its settings, if any."""

    os_user: str
    host: str
    principal: str | None = None

    def __str__(self) -> str:
        """In words.

        >>> str(ChangedFrom("carol", "laptop", "User:ops"))
        'carol@laptop, User:ops'
        """
        return f"{self.os_user}@{self.host}" + (f", {self.principal}" if self.principal else "")
