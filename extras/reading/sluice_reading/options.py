"""Options that several commands have: client, table, form of the output; and quotas of a file or in force."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.options import ConfigOption, job_settings
from sluice.configs.quotas import load_quotas_file
from sluice.configs.settings import Settings
from sluice.process.format import printable
from sluice.sinks.errors import QuotasTableError
from sluice.state.quotas.entry import QuotaEntry
from sluice_reading.texts import decoded_name, odd_names

if TYPE_CHECKING:
    from sluice_reading.holds_table import HoldsTable
    from sluice_reading.quotas_admin import QuotasAdmin


def quotas_in_force(settings: Settings, otherwise: str | None = None, at: datetime | None = None) -> list[QuotaEntry]:
    """The quotas in force, now or `at` a time; none without a table: standard error says what happens `otherwise`."""
    from sluice_reading.quotas_admin import QuotasAdmin  # deltalake is slow to import

    try:
        table = QuotasAdmin(settings.delta.quotas, settings.delta.storage_options)
        return table.entries() if at is None else table.entries_at(at)
    except QuotasTableError as error:
        if otherwise is not None:
            typer.echo(f"sluice: {otherwise}: {error}", err=True)
        return []


def as_written(given: Any) -> Any:
    """The name, or names, that an option gives; standard error asks about one that looks percent-encoded.

    Kafka's metrics and other tools write names so, and no client has such a name.
    """
    for name in [given] if isinstance(given, str) else given or ():
        if (decoded := decoded_name(name)) is not None:
            encoded = printable(f"{name!r} looks percent-encoded, and requests have names as they are")
            typer.echo(f"sluice: warning: {encoded}; if {printable(repr(decoded))} is meant, give that", err=True)
    return given


def quotas_of_file(file: Path) -> list[QuotaEntry]:
    """The quotas of a quota file; standard error asks about names that no client has. Raises as `load_quotas_file`."""
    entries = load_quotas_file(file)
    for line in odd_names(entry.entity for entry in entries):
        typer.echo(f"sluice: warning: {printable(line)}", err=True)
    return entries


UserOption = Annotated[str | None, typer.Option("--user", help="User of the requests.", callback=as_written)]

ClientIdOption = Annotated[
    str | None, typer.Option("--client-id", "--client", help="Client-id of the requests.", callback=as_written)
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A Typer command whose parameters of a dataclass type are replaced by that dataclass's fields.

    The fields are annotated as Typer's parameters are, and have defaults.
    """
    given = inspect.signature(command).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in given.items() if is_dataclass(each.annotation)}
    fields = {name: inspect.signature(group).parameters for name, group in groups.items()}
    options = (option for name, each in given.items() for option in fields.get(name, {name: each}).values())

    def run(**values: Any) -> None:
        options_of = {
            name: group(**{field: values.pop(field) for field in fields[name]}) for name, group in groups.items()
        }
        command(**options_of, **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    signature = inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options])
    run.__signature__ = signature  # type: ignore[attr-defined] # how inspect finds it
    run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return run


@dataclass(frozen=True)
class TableOptions:
    """Options that locate the quotas table."""

    config: ConfigOption = None
    table: Annotated[str | None, typer.Option("--table", help="The table's path; overrides delta.quotas.")] = None

    @cached_property
    def settings(self) -> Settings:
        """The settings of the job that is meant, read once: standard error says which. Raises InvalidSettingsError."""
        named = self.table is not None  # then the settings give only the options of the object store
        return job_settings(self.config, running=not named, say=not named)

    def mirrors_a_cluster(self) -> bool:
        """True if the job mirrors a cluster's quotas into this table. Raises InvalidSettingsError."""
        settings = self.settings
        return settings.quotas.source == "kafka" and self.table in (None, settings.delta.quotas)

    def gives_way(self) -> bool:
        """True unless the settings of the job whose table it is let no limit give way. Raises InvalidSettingsError."""
        return self.table not in (None, self.settings.delta.quotas) or self.settings.gives_way

    def quotas_table(self) -> "QuotasAdmin":
        """The table, which may not exist: only the job makes it. Raises InvalidSettingsError."""
        from sluice_reading.quotas_admin import QuotasAdmin  # deltalake is slow to import

        delta = self.settings.delta
        return QuotasAdmin(self.table or delta.quotas, delta.storage_options)

    def holds_table(self) -> "HoldsTable":
        """The table of holds beside it, which may not exist. Raises InvalidSettingsError."""
        from sluice_reading.holds_table import HoldsTable  # deltalake is slow to import

        delta = self.settings.delta
        return HoldsTable(self.table or delta.quotas, delta.storage_options)
