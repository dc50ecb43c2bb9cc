"""Options of commands that alter quotas: entity and author, as kafka-configs.sh has them, and the question before."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from getpass import getuser
from pwd import getpwuid
from socket import gethostname
from typing import Annotated

import typer
from typer.exceptions import Abort

from sluice.cli.errors import UsageError
from sluice.cli.options import ORDER
from sluice.configs.settings import Settings
from sluice.kafka_io.client import principal_of
from sluice.state.quotas.entity import DEFAULT
from sluice_reading.options import as_written
from sluice_reading.quota_lists import ChangedFrom
from sluice_toolbox.alteration import FilterComponent as EntityFilter
from sluice_toolbox.alteration import check_entity, check_filter
from sluice_toolbox.cluster import RawEntity

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


class EntityType(StrEnum):
    """The entity types as kafka-configs.sh names them."""

    USERS = "users"
    CLIENTS = "clients"
    TOPICS = "topics"
    TENANTS = "tenants"


FILTER_TYPES: Mapping[str, str] = {
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


def _known_types(given: list[str] | None) -> list[str] | None:
    """The entity types, with ips, which are refused by their own words. Raises UsageError for others."""
    for name in given or ():
        if name not in (*FILTER_TYPES, "ips"):
            raise UsageError(f"--entity-type is {name!r}; expected one of {', '.join(FILTER_TYPES)}")
    return given


@dataclass(frozen=True)
class EntityOptions:
    """The entity options of kafka-configs.sh, in both of its forms."""

    entity_type: Annotated[
        list[str] | None,
        typer.Option(
            "--entity-type", metavar=_TYPES, help="Repeatable, for a user with a client-id.", callback=_known_types
        ),
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
        if self.ip is not None or self.ip_defaults or "ips" in (self.entity_type or []):
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

    def entity(
        self, ctx: typer.Context, *, literal: bool = False, one_of: str = "--user, --client, --topic or --tenant"
    ) -> RawEntity:
        """The one entity given, in kafka-configs.sh's order. Raises like `filters`, and if a name is missing.

        `one_of` are the options to give.
        """
        filters = self.filters(ctx, literal=literal)
        if not filters:
            raise UsageError(f"no entity; give {one_of}, or --entity-type with --entity-name")
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
        # each name or default belongs to the type at the same place
        order = (option for option in ctx.meta[ORDER] if option in ("entity_name", "entity_default"))
        names = [None if option == "entity_default" else next(given) for option in order]
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
