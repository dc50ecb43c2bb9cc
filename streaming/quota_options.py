"""Options that the quota commands share: which entity, which table, who changes it."""

from dataclasses import dataclass
from enum import StrEnum
from getpass import getuser
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from configs.quotas import load_quotas_file
from configs.settings import Settings, load_settings
from sinks.quotas_table import QuotasTable
from state.quota_control import FilterComponent as EntityFilter
from state.quota_control import RawEntity, check_entity, check_filter
from state.quota_entry import QuotaEntry

ENTITY_ORDER = "entity_order"
"""Where the context's `meta` has the order of --entity-name and --entity-default."""


class UsageError(typer.BadParameter):
    """The command line contradicts itself; exit 2."""

    def format_message(self) -> str:
        """The message alone, without "Invalid value"."""
        return self.message


class EntityType(StrEnum):
    """The entity types as kafka-configs.sh names them."""

    USERS = "users"
    CLIENTS = "clients"
    TOPICS = "topics"
    IPS = "ips"


FILTER_TYPES = {EntityType.USERS: "user", EntityType.CLIENTS: "client-id", EntityType.TOPICS: "topic"}
"""kafka-configs.sh's entity type -> the protocol's."""


class EntityCommand(TyperCommand):
    """Keeps the order in which --entity-name and --entity-default come, for it says which entity type each is for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses as every command does."""
        _, _, in_order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[ENTITY_ORDER] = [
            option.name for option in in_order if option.name in ("entity_name", "entity_default")
        ]
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class EntityOptions:
    """The entity options of kafka-configs.sh, in both of its forms."""

    entity_type: Annotated[
        list[EntityType] | None, typer.Option("--entity-type", help="Repeatable, for users and clients together.")
    ] = None
    entity_name: Annotated[list[str] | None, typer.Option("--entity-name", help="Name for the entity type.")] = None
    entity_default: Annotated[
        int, typer.Option("--entity-default", count=True, show_default=False, help="The default entity of the type.")
    ] = 0
    user: Annotated[str | None, typer.Option("--user", help="A user's name.")] = None
    client: Annotated[str | None, typer.Option("--client", "--client-id", help="A client-id.")] = None
    topic: Annotated[str | None, typer.Option("--topic", help="A topic's name.")] = None
    user_defaults: Annotated[bool, typer.Option("--user-defaults", help="The default user.")] = False
    client_defaults: Annotated[bool, typer.Option("--client-defaults", help="The default client-id.")] = False
    topic_defaults: Annotated[bool, typer.Option("--topic-defaults", help="The default topic.")] = False
    # known to kafka-configs.sh, and refused with the reason
    ip: Annotated[str | None, typer.Option("--ip", hidden=True)] = None
    ip_defaults: Annotated[bool, typer.Option("--ip-defaults", hidden=True)] = False

    def filters(self, ctx: typer.Context) -> list[EntityFilter]:
        """The entities asked for, in kafka-configs.sh's order; a type without a name means any name.

        Raises UsageError, and InvalidQuotaError for what Kafka refuses.
        """
        if self.ip is not None or self.ip_defaults or EntityType.IPS in (self.entity_type or []):
            raise UsageError("ips have no quotas here: Sluice meters requests, not connections; use users or clients")
        flags = self._flags()
        if flags and (self.entity_type or self.entity_name or self.entity_default):
            raise UsageError("--entity-type can't be mixed with --user, --client, --topic and their -defaults")
        filters = flags or self._typed(ctx)
        check_filter(filters)
        return filters

    def entity(self, ctx: typer.Context) -> RawEntity:
        """The one entity asked for, in kafka-configs.sh's order. Raises as `filters`, and if a name is missing."""
        filters = self.filters(ctx)
        if not filters:
            raise UsageError("no entity; give --user, --client or --topic, or --entity-type with --entity-name")
        for component in filters:
            if component.match == "specified":
                raise UsageError(f"the {component.entity_type} has no name; give --entity-name or --entity-default")
        entity = {component.entity_type: component.name for component in filters}
        check_entity(entity)
        return entity

    def _flags(self) -> list[EntityFilter]:
        names = (("user", self.user), ("client-id", self.client), ("topic", self.topic))
        defaults = (("user", self.user_defaults), ("client-id", self.client_defaults), ("topic", self.topic_defaults))
        return [
            *(_named(entity_type, name) for entity_type, name in names if name is not None),
            *(EntityFilter(entity_type, "default") for entity_type, wanted in defaults if wanted),
        ]

    def _typed(self, ctx: typer.Context) -> list[EntityFilter]:
        types, given = self.entity_type or [], iter(self.entity_name or [])
        names = ["" if option == "entity_default" else next(given) for option in ctx.meta[ENTITY_ORDER]]
        if len(names) > len(types):
            raise UsageError("more names than entity types; give --entity-type before each --entity-name")
        filters = [_named(FILTER_TYPES[kind], name) for kind, name in zip(types, names, strict=False)]
        return filters + [EntityFilter(FILTER_TYPES[kind], "specified") for kind in types[len(names) :]]


def _named(entity_type: str, name: str) -> EntityFilter:
    """As for kafka-configs.sh, the empty name is the default."""
    return EntityFilter(entity_type, "exact", name) if name else EntityFilter(entity_type, "default")


@dataclass(frozen=True)
class TableOptions:
    """Where the quotas table is."""

    config: Annotated[
        Path | None, typer.Option("--config", help="Settings YAML; its delta.quotas is the table's path.")
    ] = None
    table: Annotated[str | None, typer.Option("--table", help="The table's path; overrides delta.quotas.")] = None

    def settings(self) -> Settings:
        """Raises InvalidSettingsError."""
        return load_settings(self.config)

    def quotas_table(self) -> QuotasTable:
        """The table, which may not exist yet. Raises InvalidSettingsError."""
        delta = self.settings().delta
        return QuotasTable(self.table or delta.quotas, delta.storage_options)

    def seed(self) -> list[QuotaEntry]:
        """What the table starts with where it doesn't exist: the quotas that the job would fill it with."""
        seed = self.settings().quotas.seed
        return load_quotas_file(Path(seed)) if seed else []


@dataclass(frozen=True)
class AuthorOption:
    """Who is written down as the author of a change."""

    author: Annotated[str | None, typer.Option("--as", help="Author of the change; the login user.")] = None

    def name(self) -> str:
        """The author's name. Raises UsageError where the machine knows no login user."""
        try:
            return self.author or getuser()
        except (KeyError, OSError):
            raise UsageError("no login user; give --as NAME") from None
