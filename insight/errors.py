"""The errors of HTTP servers, console, reports, SQL and what-if."""

from sluice.state.errors import SluiceError


class QueryError(SluiceError):
    """An SQL query over the Delta tables is wrong, or a table that it names can't be read."""


class NoTableError(QueryError):
    """A table that a query names doesn't exist yet."""

    def __init__(self, *missing: str) -> None:
        """`missing`: the tables, each with its path."""
        super().__init__(
            f"there is no table yet for {', '.join(missing)}; the job makes a table when it has something to write:"
            " start it, or name the settings of the one you mean (--config)"
        )


class UsageUnknownError(SluiceError):
    """There is no table of metrics yet, or it can't be read, so recent usage is unknown."""


class ListenError(SluiceError):
    """An HTTP server can't listen on its address and port."""


class ConsoleError(SluiceError):
    """The console's token or its address protects nothing."""


class TenantsFileError(SluiceError):
    """The file that maps clients to tenants can't be used."""


class SpanError(SluiceError):
    """A time on the command line can't be read, or a span is empty."""


class RecordingError(SluiceError):
    """The recorded decisions can't be read, or don't say what a replay needs."""
