"""Options for a span of time: --from and --to."""

from typing import Annotated, Any

import typer

_HOW = "2026-11-22T14:00Z, or 90m, 24h, 7d before now; UTC where no zone is given"

ToOption = Annotated[str | None, typer.Option("--to", help="End, written as --from.", show_default="now")]


def from_option(default: str) -> Any:
    """The option --from; `default` says in words what it is if it isn't given."""
    return typer.Option("--from", help=f"Begin: {_HOW}.", show_default=f"{default} before --to")
