"""The errors of HTTP servers, and of times as people write them."""

from sluice.state.errors import SluiceError


class ListenError(SluiceError):
    """An HTTP server can't listen on its address and port."""


class SpanError(SluiceError):
    """A time on the command line can't be read, or a span is empty."""
