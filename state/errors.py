"""The errors of quota arithmetic and state. Each message tells the operator what is wrong and what would be right."""


class SluiceError(Exception):
    """Root of every error Sluice raises on purpose; the command line prints its message as one line."""


class InvalidRequestError(SluiceError):
    """A request event breaks its contract; it becomes a dead letter.

    `field` names the offending field ("value" for the event as a whole), `problem` says what was found and
    `expected` what would be right.
    """

    def __init__(self, field: str, problem: str, expected: str) -> None:
        super().__init__(f"{field}: {problem}; expected {expected}")
        self.field = field
        self.problem = problem
        self.expected = expected


class InvalidQuotaError(SluiceError):
    """A quota or its entity is refused, as Kafka's controller refuses it. `reason` is a short code for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StateError(SluiceError):
    """Stored state can't be read with the present settings or code version."""
