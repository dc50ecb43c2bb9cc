"""The errors of commands."""

from sluice.state.errors import SluiceError


class CheckError(SluiceError):
    """A check of `sluice doctor` failed."""


class TopError(SluiceError):
    """The decisions can't be read."""
