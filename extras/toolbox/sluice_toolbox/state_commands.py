"""The commands `sluice state ...`, which move balances between checkpoints while no job runs.

Modules that read checkpoints are imported in the commands: numpy and pyarrow would double the start of every command.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.options import Command, ConfigOption, command_group, job_settings
from sluice.streaming.errors import CheckpointError
from sluice.streaming.runtime.log import OWNER_ONLY
from sluice_toolbox.errors import StateFileError

if TYPE_CHECKING:
    from sluice_toolbox.balances import Balances

app = command_group("Export and import the balances, while no job runs.")


@app.callback()
def owner_only() -> None:
    """Let only the owner read the files that these commands write: they hold users' names."""
    os.umask(OWNER_ONLY)


@app.command("export", cls=Command)
def export_state(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")], config: ConfigOption = None
) -> None:
    """Write all balances to FILE.

    FILE also gets the offsets in the requests topic up to which they are charged. Stop the job with SIGTERM first; its
    enforce.checkpoint is only read, by Spark, so use the release that ran the job. sluice state import reads FILE.
    """
    from sluice.streaming.checkpoint.folder import Checkpoint, locked
    from sluice_toolbox.balances import check_free, write_balances

    settings = job_settings(config)
    check_free(file)
    from sluice_toolbox.extract import required_origin, stored_balances

    checkpoint = Checkpoint(settings.enforce.checkpoint)
    required_origin(checkpoint)
    with locked(checkpoint):
        balances = stored_balances(settings)
    known = f"{balances.entities()} entities of {balances.origin.pages} pages"
    write_balances(file, balances)
    typer.echo(f"exported {known}, charged up to {_position(balances)}, to {file}")


@app.command("import", cls=Command)
def import_state(
    file: Annotated[Path, typer.Argument(help="A file of sluice state export.")], config: ConfigOption = None
) -> None:
    """Initialise a new checkpoint with the balances of FILE.

    The next sluice run continues with the first request that was not charged at the export, so no request is lost
    or charged twice. The folder enforce.checkpoint must be new. The quota windows and topics.requests must be those of
    the export; state.pages may differ. Needs no Java.
    """
    from sluice.streaming.checkpoint.folder import Checkpoint, locked
    from sluice.streaming.checkpoint.origin import new_pages
    from sluice_toolbox.balances import read_balances, store_imported

    settings = job_settings(config)
    balances = read_balances(file)
    difference = balances.origin.difference_but_pages(settings)
    if difference is not None:
        raise StateFileError(
            f"{file}: was exported with {difference}; set it back: balances can move to other pages, not to other"
            " windows or another topic"
        )
    pages = new_pages(settings)
    balances = balances.resharded(pages)
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    if not checkpoint.is_new():
        raise CheckpointError(
            f"{checkpoint.location} isn't empty; name a new enforce.checkpoint, or remove the folder if its balances"
            " aren't needed any more"
        )
    with locked(checkpoint):
        store_imported(checkpoint, balances)
    typer.echo(
        f"imported {balances.entities()} entities into {pages} pages in {settings.enforce.checkpoint};"
        f" the next sluice run goes on at {_position(balances)}"
    )


def _position(balances: "Balances") -> str:
    """Topic and next offsets, such as `quota-requests 0:17 1:20`: in partition 0 the next offset is 17."""
    offsets = (f"{partition}:{offset}" for partition, offset in sorted(balances.offsets.items()))
    return " ".join([balances.origin.requests_topic, *offsets])
