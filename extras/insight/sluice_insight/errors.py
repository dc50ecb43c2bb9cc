"""The errors of console, live figures and reports."""

from sluice.state.errors import SluiceError


class ConsoleError(SluiceError):
    """The console's token or its address protects nothing."""


class TopError(SluiceError):
    """The decisions can't be read."""
