"""The errors of console, live figures and reports."""

from sluice.cli.errors import BadInputError
from sluice.state.errors import SluiceError


class ConsoleError(BadInputError):
    """The console's token or its address protects nothing; exit 2."""


class TopError(SluiceError):
    """The decisions can't be read."""
