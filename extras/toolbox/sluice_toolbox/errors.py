"""Errors of the toolbox."""

from sluice.cli.errors import BadInputError


class StateFileError(BadInputError):
    """A file of exported balances is missing, damaged, or can't be used with these settings."""
