"""The errors of reading Sluice's tables, and of spans of time."""

from typing import Self

from sluice.cli.errors import BadInputError
from sluice.state.errors import SluiceError


class QueryError(SluiceError):
    """An SQL query over the Delta tables is wrong, or a table that it names can't be read."""


class BadQueryError(QueryError, BadInputError):
    """A query is wrong, or asks for too much."""


class NoTableError(QueryError):
    """A table that a query names doesn't exist yet."""

    def __init__(self, *missing: str) -> None:
        """`missing`: the tables, each with its path."""
        self._missing = missing
        super().__init__(
            f"nothing is recorded yet: there is no table for {', '.join(missing)}; a running job writes its first rows"
            " some 10 s after the first decision: start it, or name the settings of the one you mean (--config)"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, ...]]:
        """Pickle the tables, of which the message is made again: a replay reads in several processes."""
        return type(self), self._missing


class UnreadableTableError(QueryError):
    """A table can't be read: a fault of this machine or of the table, not of the query."""


class EarlierTableError(QueryError, BadInputError):
    """A table was made by an earlier release: it lacks columns that a query needs."""

    def __init__(self, path: str, lacking: str) -> None:
        """`lacking` is a column, or a field in one."""
        self._facts = (path, lacking)
        super().__init__(
            f"the table {path} is of an earlier release and has no column {lacking}; the job of this release adds it"
            " when it starts"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Pickle the facts, of which the message is made again: a replay reads in several processes."""
        return type(self), self._facts


class SpanError(BadInputError):
    """A time on the command line can't be read, or a span is empty."""
