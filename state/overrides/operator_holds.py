"""Clients that an operator has stopped (`sluice quotas hold`), each until a time. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sluice.state.contract.records import Override
from sluice.state.overrides.decider import Decided, Decider
from sluice.state.quotas.entity import Tags

MAX_HOLDS = 100
"""Most holds at a time: all are in one record. An operator who needs more lowers quotas."""


class OperatorHold(NamedTuple):
    """A hold of a user, a client-id, both or a tenant from `at_ms` to `until_ms`, and why; a release has no length."""

    client: Tags
    at_ms: int
    until_ms: int
    reason: str


def holds_at(holds: Iterable[OperatorHold], now_ms: int) -> list[OperatorHold]:
    """The holds that haven't ended at a time: of each client the last one counts, also from a clock that is ahead.

    >>> app = Tags(client_id="app")
    >>> holds = [OperatorHold(app, 1_000, 9_000, "it floods"), OperatorHold(app, 5_000, 5_000, "")]
    >>> [len(holds_at(some, now_ms)) for some, now_ms in ((holds[:1], 900), (holds[:1], 9_000), (holds, 5_000))]
    [1, 0, 0]
    """
    last = {hold.client: hold for hold in sorted(holds, key=lambda hold: hold.at_ms)}
    return [hold for hold in last.values() if max(now_ms, hold.at_ms) < hold.until_ms]


class OperatorHolds(Decider):
    """Stops the producers and consumers that an operator named."""

    name = "operator"
    fresh_ms = 600_000

    def __init__(
        self, holds: Callable[[], Sequence[OperatorHold]], kept: Callable[[], Sequence[Override] | None] = tuple
    ) -> None:
        """`kept` are those of an earlier process while the holds can't be read, None if nobody knows them."""
        self._holds = holds
        self._kept = kept

    def decide(self, now_ms: int) -> Decided:
        """Stop them; the newest MAX_HOLDS count."""
        if (kept := self._kept()) is None:
            return Decided(is_known=False)
        newest = sorted(holds_at(self._holds(), now_ms), key=lambda hold: hold.at_ms)[-MAX_HOLDS:]
        lasting = [each for each in kept if each.until_ms is None or now_ms < each.until_ms]
        return Decided(
            [
                Override(
                    "hold", entity=hold.client.entity(), reason=hold.reason, until_ms=hold.until_ms, consumers=True
                )
                for hold in newest
            ]
            + lasting
        )
