"""Commands that stop a client (`sluice quotas hold`) or release it: rows of the table of holds. Pure."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from sluice.state.contract.gateway_topics import EventMs
from sluice.state.quotas.entity import MAX_TAG_LENGTH, Tags
from sluice_reading.quota_lists import ChangedFrom

MAX_LASTING_MS = 7 * 86_400_000
"""Longest hold. One that is to last has a quota."""


MAX_REASON = 200
"""Most characters of a reason."""


_MAX_AUTHOR = 98
"""Most characters of an author in a record: all holds are in one."""


_Name = Annotated[str, Meta(max_length=MAX_TAG_LENGTH)]


class OperatorHold(Struct, frozen=True, array_like=True):
    """A command, which is a row of the table of holds: a hold for `lasting_ms`, and why. A release lasts for 0 ms.

    It is of a user, a client-id, both or a tenant; the other names are "". Of two commands for a client the one with
    the greater `number` counts. `at_ms` is the time of the operator's machine, for people: its clock may be wrong.
    """

    user: _Name
    client_id: _Name
    tenant: _Name
    number: EventMs
    at_ms: EventMs
    lasting_ms: Annotated[int, Meta(ge=0, le=MAX_LASTING_MS)]
    reason: str
    changed_by: str
    os_user: str
    host: str
    principal: str | None

    @property
    def client(self) -> Tags:
        """The names of the client."""
        return Tags(self.user, self.client_id, tenant=self.tenant)

    @property
    def changed_from(self) -> ChangedFrom:
        """The process that said it."""
        return ChangedFrom(self.os_user, self.host, self.principal)

    @property
    def why(self) -> str:
        """The author and the reason, for people."""
        return f"{self.changed_by[:_MAX_AUTHOR]}: {self.reason[:MAX_REASON]}"

    @property
    def until_ms(self) -> int:
        """The end by the clock of the operator's machine."""
        return self.at_ms + self.lasting_ms


def last_commands(holds: Iterable[OperatorHold]) -> dict[Tags, OperatorHold]:
    """The command that counts of each client, in the order of their numbers."""
    return {hold.client: hold for hold in sorted(holds, key=lambda hold: hold.number)}


def holds_at(holds: Iterable[OperatorHold], now_ms: int) -> list[OperatorHold]:
    """The holds that haven't ended at a time by the clocks of the operators' machines, for people.

    >>> why = "it floods", "carol", "root", "laptop", None
    >>> holds = [OperatorHold("", "app", "", *numbers, *why) for numbers in ((1, 1_000, 8_000), (2, 500, 0))]
    >>> [len(holds_at(some, now_ms)) for some, now_ms in ((holds[:1], 900), (holds[:1], 9_000), (holds, 5_000))]
    [1, 0, 0]
    """
    return [hold for hold in last_commands(holds).values() if hold.lasting_ms and now_ms < hold.until_ms]
