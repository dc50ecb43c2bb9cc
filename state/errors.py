"""The errors of quota arithmetic and state. Each message says what is wrong and what is expected."""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of a decoder of msgspec for bytes that it can't read, whatever is wrong with them."""


class SluiceError(Exception):
    """Base class of all errors that Sluice raises deliberately. The command line prints the message as one line."""


class InvalidRequestError(SluiceError):
    """A request event violates its contract and becomes a dead letter.

    `field` names the field in question ("value" for the whole event), `problem` says what was found, and `expected`
    what is allowed.
    """

    def __init__(self, field: str, problem: str, expected: str) -> None:
        super().__init__(f"{field}: {problem}; expected {expected}")
        self.field = field
        self.problem = problem
        self.expected = expected


class InvalidQuotaError(SluiceError):
    """A quota or its entity that Kafka's controller would refuse. `reason` is a short code for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StateError(SluiceError):
    """Stored state can't be read with the current settings or this release."""


class FarEpochError(SluiceError):
    """A record has an epoch so far above those before it that no driver can have it."""
