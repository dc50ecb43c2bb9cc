"""The commands `sluice state ...`: taking balances out of a checkpoint and into another one, while no job runs."""

from pathlib import Path
from typing import Annotated

import typer

from configs.settings import Settings, load_settings
from streaming.balances import Balances, check_free, read_balances, write_balances
from streaming.checkpoint import CheckpointFolder
from streaming.checkpoint_lock import locked
from streaming.errors import CheckpointError, StateFileError
from streaming.seed import plant

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings YAML; gives only what differs from configs/default.yaml.")
]

app = typer.Typer(
    help="Keep the balances when what is frozen with the checkpoint has to change.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("export")
def export_state(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")], config: ConfigOption = None
) -> None:
    """Write all balances to FILE.

    And the offsets in the requests topic that they stand at. Stop the job with SIGTERM first; its enforce.checkpoint
    stays as it is. Spark reads it, so use the release that ran the job. sluice state import takes the file.
    """
    settings = load_settings(config)
    check_free(file)
    from streaming.stored_balances import required_origin, stored_balances  # Spark takes a second to import

    folder = CheckpointFolder(settings.enforce.checkpoint)
    required_origin(folder)
    with locked(folder):
        balances = stored_balances(settings)
    known = f"{balances.entities()} entities of {balances.origin.shards} shards"
    write_balances(file, balances)
    typer.echo(f"exported {known}, charged up to {_position(balances)}, to {file}")


@app.command("import")
def import_state(
    file: Annotated[Path, typer.Argument(help="A file of sluice state export.")], config: ConfigOption = None
) -> None:
    """Begin a new checkpoint with the balances of FILE.

    The next sluice run goes on at the very request at which they were exported, so nothing is lost or charged twice.
    The folder enforce.checkpoint has to be new, the quota windows and topics.requests those of the export; state.shards
    may be another. Takes no Java.
    """
    settings = load_settings(config)
    balances = read_balances(file)
    difference = balances.origin.difference_but_shards(settings)
    if difference is not None:
        raise StateFileError(
            f"{file}: was exported with {difference}; set it back: balances can move to other shards, not to other"
            " windows or another topic"
        )
    balances = balances.resharded(settings.state.shards)
    folder = CheckpointFolder(settings.enforce.checkpoint)
    _check_new(folder)
    with locked(folder):
        plant(folder, balances)
    typer.echo(f"imported {balances.entities()} entities into {_place(settings)}; {_next_run(balances)}")


@app.command("reshard")
def reshard_state(config: ConfigOption = None) -> None:
    """Move the balances to another shard count.

    Stop the job with SIGTERM, change state.shards or enforce.shuffle_partitions, run this, start the job. The old
    checkpoint is kept beside the new one. If this is cut short, run it again.
    """
    settings = load_settings(config)
    from streaming.checkpoint_reshard import finish_reshard, reshard_checkpoint  # Spark takes a second to import

    if finish_reshard(settings):
        typer.echo(f"finished the reshard that was cut short: {settings.enforce.checkpoint} is ready for sluice run")
        return
    done = reshard_checkpoint(settings)
    typer.echo(
        f"moved {done.balances.entities()} entities from {done.shards_before} shards to {_place(settings)};"
        f" {_next_run(done.balances)}; the old checkpoint is kept as {done.kept}"
    )


def _check_new(folder: CheckpointFolder) -> None:
    if not folder.is_new():
        raise CheckpointError(
            f"{folder.checkpoint} isn't empty; name a new enforce.checkpoint, or remove the folder if its balances"
            " aren't needed any more"
        )


def _place(settings: Settings) -> str:
    return f"{settings.state.shards} shards in {settings.enforce.checkpoint}"


def _next_run(balances: Balances) -> str:
    return f"the next sluice run goes on at {_position(balances)}"


def _position(balances: Balances) -> str:
    """Topic and offsets, such as `quota-requests 0:17 1:20`: partition 0 up to before offset 17."""
    offsets = (f"{partition}:{offset}" for partition, offset in sorted(balances.offsets.items()))
    return " ".join([balances.origin.requests_topic, *offsets])
