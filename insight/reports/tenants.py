"""Tenants of clients, by a file of globs."""

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.yaml_file import read_yaml
from sluice.insight.errors import TenantsFileError

NO_TENANT = "(none)"
"""The tenant of clients that no entry of the file matches."""

_MAX_CACHED = 1 << 18
_MAX_CACHED_CHARACTERS = 256
"""Longest names in the cache. Clients choose their client-ids: with longer ones it could grow to gigabytes."""

_KEYS = {"tenant", "users", "client_ids"}


class Tenant(NamedTuple):
    """A tenant, and patterns of its users and client-ids: a client is the tenant's if both match."""

    name: str
    users: re.Pattern[str]
    client_ids: re.Pattern[str]


class Tenants:
    """The tenants in the order of the file: the first that matches counts."""

    def __init__(self, tenants: Sequence[Tenant] = ()) -> None:
        self._tenants = tenants
        self.names = [*dict.fromkeys(tenant.name for tenant in tenants), NO_TENANT]
        """The names in the order of the file, and at last NO_TENANT."""
        self._cached = lru_cache(_MAX_CACHED)(self._found)

    def of(self, user: str, client_id: str) -> str:
        """The tenant of a client, or NO_TENANT."""
        is_long = len(user) + len(client_id) > _MAX_CACHED_CHARACTERS
        return self._found(user, client_id) if is_long else self._cached(user, client_id)

    def _found(self, user: str, client_id: str) -> str:
        for tenant in self._tenants:
            if tenant.users.match(user) and tenant.client_ids.match(client_id):
                return tenant.name
        return NO_TENANT


def read_tenants(path: Path) -> Tenants:
    """The tenants of a YAML file: a list of {tenant, users, client_ids}, the last two lists of globs, each optional.

    An entry needs users or client_ids; the one that is missing matches all. Raises TenantsFileError.
    """
    try:
        content = read_yaml(path)
    except InvalidSettingsError as error:
        raise TenantsFileError(str(error)) from None
    if not isinstance(content, list):
        raise TenantsFileError(f"{path}: has no list; expected entries of tenant, users and client_ids")
    return Tenants([_tenant(entry, f"{path}: entry {number}") for number, entry in enumerate(content, 1)])


def _tenant(entry: object, where: str) -> Tenant:
    if not isinstance(entry, dict):
        raise TenantsFileError(f"{where} is {entry!r:.80}; expected tenant, users and client_ids")
    if unknown := [key for key in entry if key not in _KEYS]:
        raise TenantsFileError(f"{where} has {unknown[0]!r:.80}; expected tenant, users and client_ids")
    name = entry.get("tenant")
    if not isinstance(name, str) or not name:
        raise TenantsFileError(f"{where} has tenant {name!r:.80}; expected a name")
    if not entry.get("users") and not entry.get("client_ids"):
        raise TenantsFileError(f"{where} has neither users nor client_ids; expected a list of globs")
    return Tenant(name, *(_pattern(entry.get(key), f"{where} has {key}") for key in ("users", "client_ids")))


def _pattern(value: object, where: str) -> re.Pattern[str]:
    """A pattern that matches a name if any of the globs does."""
    return re.compile("|".join(map(translate, _globs(value, where))))


def _globs(value: object, where: str) -> list[str]:
    if value is None:
        return ["*"]
    if not isinstance(value, list) or not value or not all(isinstance(glob, str) for glob in value):
        raise TenantsFileError(f"{where} {value!r:.80}; expected a list of globs such as [team-a-*]")
    return value
