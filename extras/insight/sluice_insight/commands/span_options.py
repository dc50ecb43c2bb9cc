"""The options --from and --to."""

from typing import Annotated, Any

import typer

ToOption = Annotated[str | None, typer.Option("--to", help="End, written as --from.", show_default="now")]


def from_option(default: str) -> Any:
    """Make the option --from; `default` names in words the time without it."""
    form = "2026-11-22T14:00Z, 90m, 24h, 7d before now, or yesterday, today, monday; UTC where no zone is given"
    return typer.Option("--from", help=f"Begin: {form}.", show_default=f"{default} before --to")
