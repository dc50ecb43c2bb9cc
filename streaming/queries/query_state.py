"""The state of a supervised query, as health checks and the status file show it."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class RunState(StrEnum):
    """What a query is doing; the texts are part of `/readyz` and the status file."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Place:
    """What an error that ended a query names: the record or partition that was read, or the page of the state."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    page: int | None = None

    def known(self) -> dict[str, str | int]:
        """The fields that are known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class QueryState:
    """What a query is doing, its restarts since the process started, and why and where it last ended."""

    state: RunState = RunState.STARTING
    restarts: int = 0
    failures_in_a_row: int = 0
    reason: str | None = None
    place: Place | None = None
