"""The errors of the console."""

from state.errors import SluiceError


class ConsoleError(SluiceError):
    """The console can't start."""
