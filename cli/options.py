"""Settings of a command, command groups, and options that several commands have: span, entity, table, author."""

import fcntl
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from getpass import getuser
from pathlib import Path
from pwd import getpwuid
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import Abort

from sluice.cli.errors import UsageError
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.quotas import load_quotas_file
from sluice.configs.settings import Settings, load_settings, reach_stores, with_bootstrap_servers
from sluice.jvm.jars import REPOSITORY, in_checkout, sluice_home
from sluice.kafka_io.client import principal_of
from sluice.process.format import printable
from sluice.process.texts import decoded_name, odd_names
from sluice.process.trust import stranger
from sluice.sinks.errors import QuotasTableError
from sluice.state.quotas.alteration import ChangedFrom, RawEntity, check_entity, check_filter
from sluice.state.quotas.alteration import FilterComponent as EntityFilter
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.entry import QuotaEntry

if TYPE_CHECKING:
    from sluice.sinks.tables.holds import HoldsTable
    from sluice.sinks.tables.quotas import QuotasTable

CONFIG_VARIABLE = "SLUICE_CONFIG"
"""The environment variable that names the settings file where --config doesn't."""

RUNNING = (REPOSITORY / ".work" if in_checkout() else sluice_home()) / "running"
"""One file for each running demo of this checkout or user, with the path of the settings; its process locks it.

A lock ends with its process, so the file of a run that was killed doesn't count.
"""


def job_settings(
    config: Path | None, bootstrap_servers: str | None = None, *, running: bool = True, say: bool = True
) -> Settings:
    """Load the settings of the job, with this address; unless `config` names them, standard error says which they are.

    Without `running` a running `sluice demo` doesn't count, without `say` nothing is said. Raises InvalidSettingsError.
    """
    path, source = settings_file(config, running=running)
    settings = with_bootstrap_servers(load_settings(path), bootstrap_servers)
    reach_stores(settings)
    if say and config is None:
        typer.echo(f"sluice: settings: {source}", err=True)
    return settings


def quotas_in_force(settings: Settings, otherwise: str | None = None, at: datetime | None = None) -> list[QuotaEntry]:
    """The quotas in force, now or `at` a time; none without a table: standard error says what happens `otherwise`."""
    from sluice.sinks.tables.quotas import QuotasTable  # deltalake is slow to import

    try:
        table = QuotasTable(settings.delta.quotas, settings.delta.storage_options)
        return table.entries() if at is None else table.entries_at(at)
    except QuotasTableError as error:
        if otherwise is not None:
            typer.echo(f"sluice: {otherwise}: {error}", err=True)
        return []


def settings_file(config: Path | None, *, running: bool) -> tuple[Path | None, str]:
    """The settings file, None for the defaults, and its source in words.

    Raises InvalidSettingsError if several `sluice demo` are running and nothing says which one is meant.
    """
    if config is not None:
        return config, str(config)
    if variable := os.environ.get(CONFIG_VARIABLE):
        return Path(variable), f"{variable} (from {CONFIG_VARIABLE})"
    runs = running_settings() if running else []
    if len(runs) > 1:
        names = ", ".join(map(str, runs))
        raise InvalidSettingsError(f"{len(runs)} demos are running; name the one you mean with --config: {names}")
    if runs:
        return runs[0], f"{runs[0]} (of the running demo)"
    return None, f"the defaults; --config or {CONFIG_VARIABLE} names those of a job"


def running_settings() -> list[Path]:
    """The settings files of the `sluice demo` that are running, sorted; changes nothing."""
    found = []
    for path in sorted(RUNNING.glob("*")):
        try:
            with path.open(encoding="utf-8") as file:
                if stranger(path) is None and _is_locked(file.fileno()):
                    found.append(Path(file.read()))
        except OSError:  # it ended meanwhile, or may not be read
            continue
    return [path for path in found if path.name]


def _is_locked(file: int) -> bool:
    """True if another process holds the file's lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two commands that look at once don't see each other
    except BlockingIOError:
        return True
    return False


_SETTINGS = f"Settings YAML, over configs/default.yaml. Default: ${CONFIG_VARIABLE}"

ConfigOption = Annotated[Path | None, typer.Option("--config", help=f"{_SETTINGS}, or those of the running demo.")]
JobConfigOption = Annotated[Path | None, typer.Option("--config", help=f"{_SETTINGS}.")]
"""For commands that take no settings of a running `sluice demo`."""

BootstrapServersOption = Annotated[
    str | None, typer.Option("--bootstrap-servers", help="Kafka's address; overrides kafka.bootstrap.servers.")
]


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
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]

ENTITY_ORDER = "entity_order"
"""Key of the order of --entity-name and --entity-default in the context's `meta`."""


class Group(TyperGroup):
    """A group whose help has each command's first sentence whole: Typer cuts it at the width of the terminal."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help if there is no command; the exit code is 2, as for other bad usage."""
        if not args and not ctx.resilient_parsing:  # a shell asks for completions
            typer.echo(ctx.get_help())
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One entry for each command, wrapped."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(10_000)) for name, command in commands if command is not None]
        if rows:  # all commands of a group may be extras'
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def command_group(help_text: str, group: type[Group] = Group, *, completes: bool = False) -> typer.Typer:
    """A group of commands that prints plain text, and its help without a command; with options of shell completion."""
    return typer.Typer(
        cls=group, help=help_text, add_completion=completes, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def command_app(command: Callable[..., None], cls: type[TyperCommand] | None = None) -> typer.Typer:
    """A Typer application of one command, for an entry point of the group `sluice.commands`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(cls=cls)(command)
    return app


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


class EntityType(StrEnum):
    """The entity types as kafka-configs.sh names them."""

    USERS = "users"
    CLIENTS = "clients"
    TOPICS = "topics"
    TENANTS = "tenants"
    IPS = "ips"


FILTER_TYPES = {
    EntityType.USERS: "user",
    EntityType.CLIENTS: "client-id",
    EntityType.TOPICS: "topic",
    EntityType.TENANTS: "tenant",
}
"""kafka-configs.sh's entity type -> the protocol's."""

_TYPES = f"<{'|'.join(FILTER_TYPES)}>"
"""The entity types in help: kafka-configs.sh's without ips, which are refused."""

_FLAGS = {"user": "user", "client": "client-id", "topic": "topic", "tenant": "tenant"}
"""Option of EntityOptions, without --, -> the protocol's entity type."""


_DEFAULTS = {kind: f"--{option}-defaults" for option, kind in _FLAGS.items()}
"""The protocol's entity type -> the option for its default entity."""


class EntityCommand(TyperCommand):
    """Keeps the order of --entity-name and --entity-default: each belongs to the --entity-type at the same place."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and note the order."""
        _, _, in_order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[ENTITY_ORDER] = [
            option.name for option in in_order if option.name in ("entity_name", "entity_default")
        ]
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class EntityOptions:
    """The entity options of kafka-configs.sh, in both of its forms."""

    entity_type: Annotated[
        list[EntityType] | None,
        typer.Option("--entity-type", metavar=_TYPES, help="Repeatable, for a user with a client-id."),
    ] = None
    entity_name: Annotated[
        list[str] | None, typer.Option("--entity-name", help="Name for the entity type.", callback=as_written)
    ] = None
    entity_default: Annotated[
        int, typer.Option("--entity-default", count=True, show_default=False, help="The default entity of the type.")
    ] = 0
    user: Annotated[str | None, typer.Option("--user", help="A user's name.", callback=as_written)] = None
    client: Annotated[str | None, typer.Option("--client", "--client-id", help="A client-id.", callback=as_written)] = (
        None
    )
    topic: Annotated[str | None, typer.Option("--topic", help="A topic's name.")] = None
    tenant: Annotated[str | None, typer.Option("--tenant", help="A tenant's name.")] = None
    user_defaults: Annotated[bool, typer.Option("--user-defaults", help="The default user.")] = False
    client_defaults: Annotated[bool, typer.Option("--client-defaults", help="The default client-id.")] = False
    topic_defaults: Annotated[bool, typer.Option("--topic-defaults", help="The default topic.")] = False
    tenant_defaults: Annotated[bool, typer.Option("--tenant-defaults", help="The default tenant.")] = False
    # kafka-configs.sh has these; Sluice refuses them and says why
    ip: Annotated[str | None, typer.Option("--ip", hidden=True)] = None
    ip_defaults: Annotated[bool, typer.Option("--ip-defaults", hidden=True)] = False

    def filters(self, ctx: typer.Context, *, literal: bool = False) -> list[EntityFilter]:
        """The entities given, in kafka-configs.sh's order; a type without a name means any name.

        Raises UsageError, and InvalidQuotaError for a filter that Kafka refuses. The name `<default>`, which elsewhere
        is the default entity, is refused with the option for that, unless the name is meant `literal`ly.
        """
        if self.ip is not None or self.ip_defaults or EntityType.IPS in (self.entity_type or []):
            raise UsageError("Sluice has no quotas on ips; use users or clients")
        flags = self._flags()
        if flags and (self.entity_type or self.entity_name or self.entity_default):
            raise UsageError(
                "--entity-type can't be mixed with --user, --client, --topic, --tenant and their -defaults"
            )
        filters = flags or self._typed(ctx)
        check_filter(filters)
        for component in filters:
            if component.name == DEFAULT.value and not literal:
                option = _DEFAULTS[component.entity_type] if flags else "--entity-default"
                raise UsageError(f"no {component.entity_type} is called <default>; for the default give {option}")
        return filters

    def entity(self, ctx: typer.Context, *, literal: bool = False) -> RawEntity:
        """The one entity given, in kafka-configs.sh's order. Raises like `filters`, and if a name is missing."""
        filters = self.filters(ctx, literal=literal)
        if not filters:
            raise UsageError(
                "no entity; give --user, --client, --topic or --tenant, or --entity-type with --entity-name"
            )
        for component in filters:
            if component.match == "specified":
                raise UsageError(f"the {component.entity_type} has no name; give --entity-name or --entity-default")
        entity = {component.entity_type: component.name for component in filters}
        check_entity(entity)
        return entity

    def _flags(self) -> list[EntityFilter]:
        named = ((kind, getattr(self, option)) for option, kind in _FLAGS.items())
        return [
            *(_named(kind, name) for kind, name in named if name is not None),
            *(EntityFilter(kind, "default") for option, kind in _FLAGS.items() if getattr(self, f"{option}_defaults")),
        ]

    def _typed(self, ctx: typer.Context) -> list[EntityFilter]:
        types, given = self.entity_type or [], iter(self.entity_name or [])
        names = [None if option == "entity_default" else next(given) for option in ctx.meta[ENTITY_ORDER]]
        if len(names) > len(types):
            raise UsageError("more names than entity types; give --entity-type before each --entity-name")
        filters = [
            EntityFilter(FILTER_TYPES[kind], "default") if name is None else _named(FILTER_TYPES[kind], name)
            for kind, name in zip(types, names, strict=False)
        ]
        return filters + [EntityFilter(FILTER_TYPES[kind], "specified") for kind in types[len(names) :]]


def _named(entity_type: str, name: str) -> EntityFilter:
    """The empty name is the default entity, as in kafka-configs.sh; standard error says so: a variable may be empty."""
    if name:
        return EntityFilter(entity_type, "exact", name)
    typer.echo(
        f"sluice: the empty name is the default {entity_type}, as it was in kafka-configs.sh; {_DEFAULTS[entity_type]}"
        " says so",
        err=True,
    )
    return EntityFilter(entity_type, "default")


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

    def quotas_table(self) -> "QuotasTable":
        """The table, which may not exist: only the job makes it. Raises InvalidSettingsError."""
        from sluice.sinks.tables.quotas import QuotasTable  # deltalake is slow to import

        delta = self.settings.delta
        return QuotasTable(self.table or delta.quotas, delta.storage_options)

    def holds_table(self) -> "HoldsTable":
        """The table of holds beside it, which may not exist. Raises InvalidSettingsError."""
        from sluice.sinks.tables.holds import HoldsTable  # deltalake is slow to import

        delta = self.settings.delta
        return HoldsTable(self.table or delta.quotas, delta.storage_options)


@dataclass(frozen=True)
class AuthorOption:
    """The option for the author of a change."""

    author: Annotated[
        str | None,
        typer.Option("--as", help="Author of the change; the login user, who is recorded beside it with the host."),
    ] = None

    def name(self) -> str:
        """The author's name. Raises UsageError if no name is given and the machine has no login user."""
        try:
            return self.author or getuser()
        except (KeyError, OSError):
            raise UsageError("no login user; give --as NAME") from None


def changed_from(settings: Settings) -> ChangedFrom:
    """The OS user and host of this process, whatever --as or its environment says, and its principal in Kafka."""
    try:
        os_user = getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under a number that has no name
        os_user = str(os.getuid())
    return ChangedFrom(os_user, gethostname(), principal_of(settings.kafka))


def ask(question: str) -> None:
    """Raises Abort unless the answer is yes, and UsageError where nobody can answer."""
    try:
        agreed = typer.confirm(question)
    except Abort:
        if sys.stdin.isatty():
            raise
        typer.echo()
        raise UsageError("nobody is there to answer, and nothing was changed; give --yes if that is meant") from None
    if not agreed:
        raise Abort
