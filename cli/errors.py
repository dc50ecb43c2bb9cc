"""The errors of commands."""

import typer

from sluice.state.errors import SluiceError


class UsageError(typer.BadParameter):
    """Options contradict each other; exit 2."""

    def format_message(self) -> str:
        """The message alone, without "Invalid value"."""
        return self.message


class CheckError(SluiceError):
    """A check of `sluice doctor` failed."""


class CheckWarningError(SluiceError):
    """A check of `sluice doctor` found what works, but not as it should; no failure."""


class BadInputError(SluiceError):
    """A file or value that the command line gives can't be used; exit 2."""
