"""The errors of HTTP servers."""

from sluice.state.errors import SluiceError


class ListenError(SluiceError):
    """An HTTP server can't listen on its address and port."""
