"""Balances of one client's counters in stored pages: rates, tokens and limits at one moment. Charges nothing."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

from sluice.state.arithmetic.counter import MUTATION_RATE_WINDOW, EntityCounters, bounded_wait_ms, wait_over_limit_ms
from sluice.state.arithmetic.token_bucket import wait_for_tokens_ms
from sluice.state.quotas.entity import COMMON_MARK, TENANT_KEY_PREFIX, Tags, sanitize
from sluice.state.quotas.kinds import UNLIMITED, Family, QuotaKind, QuotaSettings
from sluice.state.quotas.resolution import SHADOW_KEY_PREFIX, Quotas
from sluice.state.store.codec import decode


class Client(NamedTuple):
    """The client whose counters are wanted, and its tenant's; None for the user or the client-id means any."""

    user: str | None
    client_id: str | None
    tenant: str = ""

    def has(self, tags: Tags) -> bool:
        """True if requests of this client may be charged to the counter: no tag names somebody else.

        >>> [Client("alice", "app").has(tags) for tags in (Tags("alice"), Tags("", "app"), Tags("alice", "other"))]
        [True, True, False]
        >>> [Client("alice", None).has(tags) for tags in (Tags("alice"), Tags("", "app"), Tags("alice", "other"))]
        [True, False, True]
        """
        if tags.tenant:
            return tags.tenant == self.tenant
        if self.user is None:
            return tags.client_id == self.client_id
        if self.client_id is None:
            return tags.user == self.user
        return tags.user in ("", self.user) and tags.client_id in ("", self.client_id)

    def parts_of_keys(self) -> list[bytes]:
        """Bytes that a page has if it has counters of this client: part of their keys. Other pages may have them too.

        >>> Client("O=A", "app").parts_of_keys()
        [b'O%3DA|', b'|app']
        """
        user = [] if self.user is None else [f"{sanitize(self.user)}|"]
        client_id = [] if self.client_id is None else [f"|{sanitize(self.client_id)}"]
        tenant = [TENANT_KEY_PREFIX + sanitize(self.tenant)] if self.tenant else []
        return [part.encode() for part in (*user, *client_id, *tenant)]


class Balance(NamedTuple):
    """One quota of one counter: its rate, and of mutations the tokens, with the limit in force; None without one.

    `throttle_ms` is what a request that adds nothing would wait.
    """

    tags: Tags
    shadow: bool
    kind: QuotaKind
    limit: float | None
    rate: float
    tokens: float | None
    throttle_ms: int
    last_event_ms: int


def balances(
    payloads: Iterable[bytes], pages: int, client: Client, quotas: Quotas | None, settings: QuotaSettings, now_ms: int
) -> list[Balance]:
    """The client's counters in stored pages at `now_ms`, by user, client-id and quota.

    `pages` is the number of all pages. Without `quotas` the tokens are those under the limit of the last charge.
    Raises StateError for damaged pages.
    """
    found: dict[tuple[Tags, bool, QuotaKind], Balance] = {}
    for tags, shadow, counters in _counters(payloads, pages, client):
        for kind in counters.rates:
            limit = _last_limit(kind, counters) if quotas is None else _limit(quotas, kind, tags, shadow)
            made = _balance(tags, shadow, kind, counters, limit, settings, now_ms)
            known = found.setdefault((tags, shadow, kind), made)
            if known.last_event_ms < made.last_event_ms:  # one of mutations begins anew in a tenant
                found[tags, shadow, kind] = made
    return sorted(found.values(), key=lambda one: (one.tags.user, one.tags.client_id, one.kind, one.shadow))


def _counters(payloads: Iterable[bytes], pages: int, client: Client) -> Iterator[tuple[Tags, bool, EntityCounters]]:
    """Tags and counters of the client's entities, and whether a shadow quota counts them."""
    for payload in payloads:
        for key, counters in decode(payload, pages).items():
            tags, shadow = tags_of_key(key)
            if tags.topic is None and client.has(tags):
                yield tags, shadow, counters


def tags_of_key(key: str) -> tuple[Tags, bool]:
    """The tags that a counter is kept for, and whether it is that of a shadow quota."""
    tenant, _, member = key.removeprefix(SHADOW_KEY_PREFIX).partition(COMMON_MARK)
    tags, shadow = member or tenant, key.startswith(SHADOW_KEY_PREFIX)
    if tags.startswith("topic:"):
        topic, partition = tags.removeprefix("topic:").rsplit("|", 1)
        return Tags(topic=unquote(topic), partition=int(partition)), shadow
    if tags.startswith(TENANT_KEY_PREFIX):
        return Tags(tenant=unquote(tags.removeprefix(TENANT_KEY_PREFIX))), shadow
    return Tags(*client_of_key(tags)), shadow


def _limit(quotas: Quotas, kind: QuotaKind, tags: Tags, shadow: bool) -> float | None:
    of_mode = quotas.shadow if shadow else quotas
    return None if of_mode is None else of_mode.limit_of(kind, tags)


def _last_limit(kind: QuotaKind, counters: EntityCounters) -> float | None:
    known = kind.family is Family.MUTATIONS and counters.mutation_limit != UNLIMITED
    return counters.mutation_limit if known else None


def _balance(
    tags: Tags,
    shadow: bool,
    kind: QuotaKind,
    counters: EntityCounters,
    limit: float | None,
    settings: QuotaSettings,
    now_ms: int,
) -> Balance:
    """The counter is of a decoded copy, so reading it may change it."""
    now_ms = max(now_ms, counters.last_event_ms)  # gateways have clocks of their own
    rate, tokens, wait_ms = counters.rates[kind], None, 0
    if kind.family is Family.MUTATIONS:
        observed = rate.peek(MUTATION_RATE_WINDOW, now_ms)
        if counters.bucket is not None and limit is not None:
            tokens = counters.bucket.measure(limit, settings.controller_window, now_ms)
            wait_ms = wait_for_tokens_ms(tokens, limit) if tokens < 0 else 0
    else:
        window = settings.client_window
        observed, window_ms = rate.observe(window, now_ms)
        wait_ms = (
            bounded_wait_ms(observed, limit, window_ms, window)
            if kind.family is Family.REQUEST_TIME
            else wait_over_limit_ms(observed, limit, window_ms)
        )
    return Balance(tags, shadow, kind, limit, observed, tokens, wait_ms, counters.last_event_ms)


def client_of_key(key: str) -> tuple[str, str]:
    """User and client-id of a key that `client_key` made.

    >>> client_of_key("O%3DA|app")
    ('O=A', 'app')
    """
    user, _, client_id = key.partition("|")
    return unquote(user), unquote(client_id)
