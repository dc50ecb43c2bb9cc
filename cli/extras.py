"""Commands of extras: entry points of the group `sluice.commands`, which are loaded when named.

Each is a function that is annotated as those of the core are, or a Typer application.
"""

from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command as command_of

from sluice.cli.errors import UsageError
from sluice.cli.options import Group, command_app
from sluice.configs.extras import misfit_text

_OWN_EXTRAS = {
    "demo": "demo",
    "kafka-gateway": "proxy",
    **dict.fromkeys(("advise", "console", "explain", "slo", "top", "usage", "whatif"), "insight"),
    **dict.fromkeys(("notices", "own-view", "quotas.resolve", "tenants.resolve"), "insight"),
    **dict.fromkeys(("balance", "broker-plugin", "maintain", "state", "topics", "unmute"), "toolbox"),
    **dict.fromkeys(("quotas.alter", "quotas.apply", "quotas.describe", "quotas.export", "quotas.exposure"), "toolbox"),
    **dict.fromkeys(("quotas.history", "quotas.hold", "quotas.import", "quotas.release", "quotas.revert"), "toolbox"),
    **dict.fromkeys(("tenants.alter", "tenants.describe", "tenants.import"), "toolbox"),
}
"""Entry point -> the extra of sluice-kafka that has it, for those that may be missing."""


class NeedsExtraError(UsageError):
    """A command's extra isn't installed. Typer's "Did you mean 'topics'?", which is for slips, doesn't follow it."""

    def format_message(self) -> str:
        """The message as it was made."""
        return str(self.args[0])


class CommandLine(Group):
    """The commands of the core, then those of the extras that are installed.

    The entry point `quotas.exposure` is the command `exposure` of the group `quotas`.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names; a command of the core comes before an extra's of the same name."""
        own, prefix = super().list_commands(ctx), _prefix(ctx)
        names = {each.name for each in _points()}
        of_extras = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        return own + sorted({name for name in of_extras if "." not in name} - {*own})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, None if there is none. Raises UsageError if its extra is missing."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        name = _prefix(ctx) + cmd_name
        for point in _points().select(name=name):
            return _loaded(point)
        if (extra := _OWN_EXTRAS.get(name)) is not None:
            command = name.replace(".", " ")
            raise NeedsExtraError(f"the command {command} needs the extra {extra}; pip install 'sluice-kafka[{extra}]'")
        return None


@cache
def _points() -> EntryPoints:
    return entry_points(group="sluice.commands")  # reads the metadata of all that is installed


def _prefix(ctx: Any) -> str:
    return "" if ctx.parent is None else f"{ctx.info_name}."


@cache
def _loaded(point: EntryPoint) -> Any:
    try:
        found = point.load()
        return command_of(found if isinstance(found, typer.Typer) else command_app(found))
    except (Exception, SystemExit) as error:  # an extra's own code runs, and may raise anything
        return _unfit(f"the command {misfit_text(point, error)}")


def _unfit(text: str) -> Any:
    """In the place of a command that can't be loaded: the help of all commands shows it, and using it says why not."""
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

    def refuse() -> None:
        raise UsageError(text)

    return TyperCommand(None, callback=refuse, help=text, context_settings=settings)
