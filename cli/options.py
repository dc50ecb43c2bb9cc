"""Settings of a command, command groups, and options that several commands have: settings file and brokers."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from sluice.cli.errors import UsageError
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import Settings, load_settings, reach_stores, with_bootstrap_servers
from sluice.jvm.jars import REPOSITORY, in_checkout, sluice_home
from sluice.process.trust import stranger

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


ORDER = "order"
"""Key of the order of the options given, by their parameters' names, in a command context's `meta`."""


class Command(TyperCommand):
    """A command that refuses an option with one value that is given twice: the last one would count, unseen."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and note the order. Raises UsageError."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[ORDER] = [each.name for each in given]
        for each in (each for each in given if isinstance(each, TyperOption) and given.count(each) > 1):
            if not (each.multiple or each.count or each.is_flag):  # a flag has no value to lose
                raise UsageError(f"{each.opts[0]} is given twice; expected once")
        return super().parse_args(ctx, args)


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


def command_app(command: Callable[..., None], cls: type[Command] = Command) -> typer.Typer:
    """A Typer application of one command, for an entry point of the group `sluice.commands`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(cls=cls)(command)
    return app
