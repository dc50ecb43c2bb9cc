"""The command line of `sluice demo`, which `sluice` finds by the name of this module."""

from collections.abc import Sequence

import typer

from sluice.demo.options import DemoOptions
from sluice.demo.run import run_demo


def main(arguments: Sequence[str]) -> int:
    """Run the demo with these options; returns its exit code. Raises TyperException and as `run_demo` does."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(DemoOptions)
    options = app(args=[*arguments], prog_name="sluice demo", standalone_mode=False)
    return run_demo(options) if isinstance(options, DemoOptions) else 0  # the code after --help
