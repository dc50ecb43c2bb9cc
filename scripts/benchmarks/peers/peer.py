"""What the peers have in common: an application that enforces one quota, and how it is started and stopped."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Application:
    """What a peer runs: it reads the topic `requests`, writes the topic `decisions` and keeps its state in a folder.

    `name` is that of its consumer group and changelog. `limit` is in mutations/s, `burst` in mutations; both are known
    in advance, no quota is looked up. It has one thread or process for each of the topic's `partitions`.
    """

    name: str
    servers: str
    requests: str
    decisions: str
    state_folder: str
    partitions: int
    limit: float
    burst: float


class Peer(AbstractContextManager["Peer"]):
    """Runs one application at a time, in processes of its own, which end with the context.

    `warms_up` says whether it gets faster for some minutes, as Java does, also over several applications.
    """

    warms_up = False

    @abstractmethod
    def start(self, application: Application) -> None:
        """Start the application; it goes on where its consumer group has stopped. Raises BenchError."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the application cleanly; does nothing if none runs. Raises BenchError."""

    def __exit__(self, *_: object) -> None:
        self.stop()
