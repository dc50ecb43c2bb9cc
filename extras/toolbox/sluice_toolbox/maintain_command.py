"""`sluice maintain`: the maintenance of the tables at once, and of rows by their age."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from sluice.cli.options import ConfigOption, job_settings


def maintain(
    config: ConfigOption = None,
    retention_hours: Annotated[
        int | None,
        typer.Option(
            help="Hours to keep files that only older versions of the tables need; over delta.retention_hours.", min=1
        ),
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option(help="Delete rows decided longer ago than so many days; without it all are kept.", min=1),
    ] = None,
) -> None:
    """Compact the tables that the job writes, and remove files no longer needed.

    The job does it by itself every delta.maintain_every_hours, but deletes no rows. May run while the job runs. Needs
    no Java.
    """
    from sluice_toolbox.maintenance import maintain as maintain_tables  # slow to import

    settings = job_settings(config)
    first_day = None if keep_days is None else datetime.now(UTC).date() - timedelta(days=keep_days)
    for done in maintain_tables(settings.delta, retention_hours or settings.delta.retention_hours, first_day):
        typer.echo(str(done))
