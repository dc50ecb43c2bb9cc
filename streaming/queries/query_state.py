"""The state of a supervised query, as health checks and the status file show it."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class RunState(StrEnum):
    """The states of a query; the texts are part of `/readyz` and the status file."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Place:
    """The place named by the error that ended a query: the record or partition read, or the page of the state."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    page: int | None = None

    def known(self) -> dict[str, str | int]:
        """The fields that are known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class QueryState:
    """The state of a query, its restarts since the process started, and the reason and place of its last end."""

    state: RunState = RunState.STARTING
    restarts: int = 0
    failures_in_a_row: int = 0
    reason: str | None = None
    place: Place | None = None
