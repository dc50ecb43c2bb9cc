"""The errors of the reports."""

from state.errors import SluiceError


class TenantsFileError(SluiceError):
    """The file that maps clients to tenants can't be used."""


class SpanError(SluiceError):
    """A time on the command line is none, or a span is empty."""
