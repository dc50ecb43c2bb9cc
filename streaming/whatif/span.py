"""A span of event times."""

from typing import NamedTuple


class Span(NamedTuple):
    """Event times from `start_ms` to before `end_ms`, epoch milliseconds."""

    start_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        """How long it is."""
        return self.end_ms - self.start_ms
