"""Base of all deciders of overrides. Pure: times are epoch milliseconds, and arguments."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from sluice.state.contract.gateway_topics import DecidedHeartbeat, Measured, Override, Overrides


class DecidedOverrides(NamedTuple):
    """The overrides that hold from now on, the figures behind them, and the number of the last command taken."""

    overrides: Sequence[Override] = ()
    measured: Sequence[Measured] = ()
    command: int = 0


class Decider(ABC):
    """One reason to override limits: a subclass has a `name`, and decides.

    The job asks it twice a second, publishes what it says, and keeps each change in the table `overrides`. It is called
    from one thread at a time. It must not block, and raises nothing: what it needs of brokers or tables a service
    reads for it.
    """

    name: str
    """Name in the record's key, in metrics and the table, and in `throttled_by` of whom it holds, like a quota's."""

    fresh_ms = 60_000
    """Time for which gateways believe what it has said last."""

    reads_heartbeats = False
    """True if it needs the heartbeats that the job has decided."""

    tells_measured = False
    """True if its record has the figures as well, for the console."""

    trouble: str | None = None
    """Why it doesn't override what it should, for the log; None if it does."""

    def remember(self, said: Overrides) -> None:  # noqa: B027 - most decide by what is so now
        """Take over what it had published last, before a restart, if anything, with times by the clock of now."""

    def on_heartbeat(self, heartbeat: DecidedHeartbeat, arrived_ms: int) -> None:  # noqa: B027 - most need none
        """Take over a gateway's heartbeat that the job has decided and that arrived now."""

    @abstractmethod
    def decide(self, now_ms: int) -> DecidedOverrides:
        """All that it overrides from now on. The same inputs in the same order have to decide the same."""
