"""Errors of the toolbox."""

from sluice.cli.errors import BadInputError
from sluice.state.errors import SluiceError


class NotInForceError(SluiceError):
    """A hold or release is written, and not in force everywhere."""


class StateFileError(BadInputError):
    """A file of exported balances is missing, damaged, or can't be used with these settings."""


class UnmuteError(SluiceError):
    """The control record couldn't be published, or nothing answers it."""


class UsageUnknownError(SluiceError):
    """There is no table of metrics yet, or it can't be read, so recent usage is unknown."""
