"""`sluice demo` as Sluice's command line finds it: an entry point, which imports nothing slow before it runs."""

import typer

from sluice.cli.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(context: typer.Context) -> None:
    """Run broker, job and a small load on this machine, and show what the job decides, until Ctrl-C."""
    try:
        from sluice_demo.run import main
    except ModuleNotFoundError as error:  # without the extras that it depends on, or removed since
        cure = "pip install 'sluice-kafka[demo]', or ./scripts/setup in a checkout"
        raise UsageError(f"the Python package {error.name} is missing; {cure}") from error

    raise typer.Exit(main(context.args))
