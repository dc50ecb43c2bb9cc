"""The commands `sluice state ...`: moving balances from one checkpoint to another, while no job runs.

Modules that read checkpoints are imported in the commands: numpy and pyarrow would double the start of every command.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.options import ConfigOption, command_group, job_settings
from sluice.configs.settings import Settings
from sluice.streaming.errors import CheckpointError, StateFileError
from sluice.streaming.runtime.log import OWNER_ONLY

if TYPE_CHECKING:
    from sluice.streaming.balances.file import Balances

app = command_group("Export, import and reshard the balances, while no job runs.")


@app.callback()
def owner_only() -> None:
    """Let only the owner read the files that these commands write: they hold users' names."""
    os.umask(OWNER_ONLY)


@app.command("export")
def export_state(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")], config: ConfigOption = None
) -> None:
    """Write all balances to FILE.

    FILE also gets the offsets in the requests topic up to which they are charged. Stop the job with SIGTERM first; its
    enforce.checkpoint is only read, by Spark, so use the release that ran the job. sluice state import reads FILE.
    """
    from sluice.streaming.balances.file import check_free, write_balances
    from sluice.streaming.checkpoint.folder import Checkpoint, locked

    settings = job_settings(config)
    check_free(file)
    from sluice.streaming.balances.extract import required_origin, stored_balances  # Spark takes a second to import

    checkpoint = Checkpoint(settings.enforce.checkpoint)
    required_origin(checkpoint)
    with locked(checkpoint):
        balances = stored_balances(settings)
    known = f"{balances.entities()} entities of {balances.origin.pages} pages"
    write_balances(file, balances)
    typer.echo(f"exported {known}, charged up to {_position(balances)}, to {file}")


@app.command("import")
def import_state(
    file: Annotated[Path, typer.Argument(help="A file of sluice state export.")], config: ConfigOption = None
) -> None:
    """Initialise a new checkpoint with the balances of FILE.

    The next sluice run continues with the first request that was not charged at the export, so no request is lost
    or charged twice. The folder enforce.checkpoint must be new. The quota windows and topics.requests must be those of
    the export; state.pages may differ. Needs no Java.
    """
    from sluice.streaming.balances.file import read_balances
    from sluice.streaming.balances.imported import store_imported
    from sluice.streaming.checkpoint.folder import Checkpoint, locked
    from sluice.streaming.checkpoint.origin import new_pages

    settings = job_settings(config)
    balances = read_balances(file)
    difference = balances.origin.difference_but_pages(settings)
    if difference is not None:
        raise StateFileError(
            f"{file}: was exported with {difference}; set it back: balances can move to other pages, not to other"
            " windows or another topic"
        )
    balances = balances.resharded(new_pages(settings))
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    if not checkpoint.is_new():
        raise CheckpointError(
            f"{checkpoint.location} isn't empty; name a new enforce.checkpoint, or remove the folder if its balances"
            " aren't needed any more"
        )
    with locked(checkpoint):
        store_imported(checkpoint, balances)
    typer.echo(f"imported {balances.entities()} entities into {_place(settings)}; {_next_run(balances)}")


@app.command("reshard")
def reshard_state(config: ConfigOption = None) -> None:
    """Move the balances to another page count.

    Stop the job with SIGTERM, change state.pages or enforce.shuffle_partitions, run this, start the job. The old
    checkpoint is kept under another name. If this is interrupted, run it again.
    """
    settings = job_settings(config)
    from sluice.streaming.balances.reshard import finish_reshard, reshard_checkpoint  # Spark takes a second to import

    if finish_reshard(settings):
        typer.echo(f"finished the reshard that was interrupted: {settings.enforce.checkpoint} is ready for sluice run")
        return
    done = reshard_checkpoint(settings)
    if done is None:
        typer.echo(f"nothing to change: the balances are in {_place(settings)} already, with its shuffle partitions")
        return
    typer.echo(
        f"moved {done.balances.entities()} entities from {done.pages_before} pages to {_place(settings)};"
        f" {_next_run(done.balances)}; the old checkpoint is kept as {done.kept}"
    )


def _place(settings: Settings) -> str:
    from sluice.streaming.checkpoint.origin import new_pages

    return f"{new_pages(settings)} pages in {settings.enforce.checkpoint}"


def _next_run(balances: "Balances") -> str:
    return f"the next sluice run goes on at {_position(balances)}"


def _position(balances: "Balances") -> str:
    """Topic and next offsets, such as `quota-requests 0:17 1:20`: in partition 0 the next offset is 17."""
    offsets = (f"{partition}:{offset}" for partition, offset in sorted(balances.offsets.items()))
    return " ".join([balances.origin.requests_topic, *offsets])
