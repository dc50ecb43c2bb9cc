"""The entity a quota is set on (`QuotaEntity`), and the entity a counter is kept for (`Tags`)."""

import string
from collections.abc import Mapping
from enum import Enum
from hashlib import sha256
from typing import Final
from urllib.parse import quote

import msgspec

from sluice.state.contract.records import CountedEntity
from sluice.state.errors import InvalidQuotaError


class Default(Enum):
    """Marks the default entity of a type, as opposed to a real entity with the name `<default>`."""

    DEFAULT = "<default>"

    __hash__ = object.__hash__  # Enum's own __hash__ is slow, and the default is looked up for every request


DEFAULT: Final = Default.DEFAULT

_ENCODER = msgspec.json.Encoder()

TENANT_KEY_PREFIX = "tenant:"
"""Begins the key of a tenant's counter. Names in keys are URL-encoded and have no colon."""

COMMON_MARK = ">"
"""In keys of mutation counters: `tenant:shop>` is a tenant's, `tenant:shop>alice|app` a member's, on the same page."""

_UNCHANGED = (string.ascii_letters + string.digits + "._-").encode()
"""The bytes that URL-encoding leaves unchanged. Most names consist of them."""

MAX_TAG_LENGTH = 256
"""Longest name in the tags of a counter, in Unicode characters. Hardly a principal or topic has a longer one."""

EntityName = str | Default | None
"""A name, DEFAULT, or None where the entity has no part of that type."""


class QuotaEntity(msgspec.Struct, frozen=True, gc=False):
    """The entity a quota is set on: a user, a client-id, both, a topic, or a tenant. Each part is a name or DEFAULT.

    A tenant with a user, a client-id or both, or with a topic, is no entity of quotas but a member of the tenant; these
    parts are globs.
    """

    user: EntityName = None
    client_id: EntityName = None
    topic: EntityName = None
    tenant: EntityName = None

    @classmethod
    def from_mapping(cls, parts: Mapping[str, object], *, literal_default: bool = False) -> "QuotaEntity":
        """The entity of a mapping such as `{"user": "alice", "client_id": None}`; None is the default entity.

        With `literal_default`, for files that people write, the name `<default>` means the default entity too.
        Raises InvalidQuotaError for an unknown part, a part that is given twice, an empty name, or no part at all.
        """
        names: dict[str, EntityName] = {}
        for key, name in parts.items():
            part = {"client-id": "client_id"}.get(key, key)
            if part not in _PARTS:
                raise InvalidQuotaError(
                    "unknown_entity_type", f"unknown entity type {key!r}; expected user, client_id, topic or tenant"
                )
            if part in names:
                raise InvalidQuotaError("duplicate_part", "client-id and client_id are the same; expected one of them")
            if name is None or (literal_default and name == DEFAULT.value):
                names[part] = DEFAULT
            elif isinstance(name, str):
                names[part] = name
            else:
                raise InvalidQuotaError("bad_name", f"{key} is {name!r}; expected a string or null for the default")
        entity = cls(**names)
        entity.check()
        return entity

    def to_mapping(self) -> dict[str, str | None]:
        """The entity as in JSON: null stands for the default; parts that the entity doesn't have are missing."""
        parts = ((part, getattr(self, part)) for part in _PARTS)
        return {part: None if name is DEFAULT else str(name) for part, name in parts if name is not None}

    @property
    def is_member(self) -> bool:
        """True for a member of a tenant."""
        return self.tenant is not None and not (self.user is None and self.client_id is None and self.topic is None)

    def check(self) -> None:
        """Raises InvalidQuotaError unless it is {user}, {client_id}, both, {topic}, {tenant} or a tenant's member."""
        names = (self.user, self.client_id, self.topic, self.tenant)
        if all(name is None for name in names):
            raise InvalidQuotaError(
                "empty_entity", "the entity is empty; expected a user, a client_id, a topic or a tenant"
            )
        if "" in names:
            raise InvalidQuotaError("empty_name", "an entity name is empty; expected a name, or null for the default")
        if self.topic is not None and (self.user is not None or self.client_id is not None):
            raise InvalidQuotaError("topic_combined", "a topic can't be combined with a user or client_id")
        if self.tenant is None:
            return
        if self.is_member and DEFAULT in names:
            raise InvalidQuotaError("bad_member", "a tenant's member is <default>; expected names or globs")
        if isinstance(self.tenant, str) and len(self.tenant) > MAX_TAG_LENGTH:
            raise InvalidQuotaError(
                "bad_name", f"the tenant has {len(self.tenant)} characters; expected at most {MAX_TAG_LENGTH}"
            )


_PARTS = ("user", "client_id", "topic", "tenant")


def bounded_name(name: str) -> str:
    """The name in tags: a hash stands for one that is too long, since clients choose names of up to 32 767 characters.

    All gateways and the job have the same one; tests/data/bounded-names.json has examples.

    >>> bounded_name("a" * 256) == "a" * 256, bounded_name("a" * 257)[:19]
    (True, 'sha256:e8d95cc2b4bc')
    """
    if len(name) <= MAX_TAG_LENGTH:
        return name
    return f"sha256:{sha256(name.encode(errors='replace')).hexdigest()}"


def entity_text(entity: CountedEntity) -> bytes:
    """A counter's entity as JSON, the same for the same counter.

    >>> entity_text(CountedEntity(user="alice", client_id="app"))
    b'{"user":"alice","client_id":"app"}'
    """
    return _ENCODER.encode(entity)


class Tags(msgspec.Struct, frozen=True, array_like=True, gc=False, cache_hash=True):
    """The entity a counter is kept for: Kafka's metric tags. Requests with equal tags share its counters.

    Names are those of `bounded_name`. `user` and `client_id` are "" if the tag is not part of the counter. Only
    counters of a topic-partition (KIP-1010) have a `topic`, and only those of a tenant a `tenant`.
    """

    user: str = ""
    client_id: str = ""
    topic: str | None = None
    partition: int = -1
    tenant: str = ""

    def key(self) -> str:
        """The tags as one string, unambiguous for any names, for hashing and storing."""
        if self.topic is not None:
            return f"topic:{sanitize(self.topic)}|{self.partition}"
        if self.tenant:
            return TENANT_KEY_PREFIX + sanitize(self.tenant)
        return client_key(self.user, self.client_id)

    @classmethod
    def of(cls, entity: CountedEntity) -> "Tags":
        """The tags of a counter that a record names.

        >>> Tags.of(CountedEntity(user="alice")), Tags.of(CountedEntity(topic="orders", partition=3)).partition
        (Tags(user='alice', client_id='', topic=None, partition=-1, tenant=''), 3)
        """
        partition = -1 if entity.partition is None else entity.partition
        return cls(entity.user or "", entity.client_id or "", entity.topic, partition, entity.tenant or "")

    def entity(self) -> CountedEntity:
        """The entity as records name it: only the parts that the counter has."""
        if self.topic is not None:
            return CountedEntity(topic=self.topic, partition=self.partition)
        if self.tenant:
            return CountedEntity(tenant=self.tenant)
        return CountedEntity(self.user or None, self.client_id if self.client_id or not self.user else None)

    def to_mapping(self) -> dict[str, str | int]:
        """The same as a mapping."""
        mapping: dict[str, str | int] = msgspec.to_builtins(self.entity())
        return mapping


def client_key(user: str, client_id: str) -> str:
    """`user|client_id`, both URL-encoded, so that no two clients have the same key.

    >>> client_key("O=A", "app")
    'O%3DA|app'
    """
    key = f"{user}|{client_id}"
    if key.encode().translate(None, _UNCHANGED) == b"|":
        return key
    return f"{sanitize(user)}|{sanitize(client_id)}"


def sanitize(name: str) -> str:
    """The name, URL-encoded as by Kafka's Sanitizer for metric tags: a blank becomes %20, * becomes %2A.

    >>> sanitize("O=A client,CN=localhost")
    'O%3DA%20client%2CCN%3Dlocalhost'
    """
    if not name.encode().translate(None, _UNCHANGED):
        return name
    return quote(name, safe=".-_").replace("~", "%7E")
