"""Paths of the tables, and SQL literals, for every report."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sluice.insight.sql import Rows, run_query


class Tables(NamedTuple):
    """The tables of decisions and quotas: folders or URIs, and the options of delta-rs for them."""

    decisions: str
    quotas: str
    storage_options: Mapping[str, str]

    def rows(self, query: str) -> Rows:
        """The answer to a query over the table `decisions`. Raises QueryError."""
        return run_query(query, {"decisions": self.decisions}, self.storage_options)

    def mappings(self, query: str) -> list[dict[str, Any]]:
        """All rows of a short answer, by column. Raises QueryError."""
        rows = self.rows(query)
        return [dict(zip(rows.columns, row, strict=True)) for row in rows]


def literal(text: str) -> str:
    """Text as SQL, whatever is in it.

    >>> literal("o'neil")
    "'o''neil'"
    """
    return "'" + text.replace("'", "''") + "'"
