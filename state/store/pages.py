"""A page: the counters of all entities that hash to it, read from one block of bytes and written to one."""

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.state.arithmetic.counter import MUTATION_RATE_WINDOW, EntityCounters
from sluice.state.errors import StateError
from sluice.state.quotas.entity import COMMON_MARK
from sluice.state.quotas.kinds import QuotaSettings, burst
from sluice.state.store.codec import decode, encode


def page_of_entity(key: str, pages: int) -> int:
    """The page that keeps the counters of the entity with this key: the same in every process and release.

    Counters that are asked together lie on one page: what is behind the mark counts for nothing.

    >>> page_of_entity("alice|app", 32), {page_of_entity(f"tenant:shop{end}", 32) for end in (">alice|app", ">", "")}
    (27, {12})
    """
    return zlib.crc32(key.partition(COMMON_MARK)[0].encode()) % pages


class Evicted(NamedTuple):
    """Number of entities forgotten because their page had more than `max_entities_of_page`."""

    at_rest: int = 0
    """They owed nothing: no later decision is changed."""
    owing: int = 0
    """Their rates or balances start anew."""

    def plus(self, more: "Evicted") -> "Evicted":
        """The sum of both."""
        return Evicted(self.at_rest + more.at_rest, self.owing + more.owing)


def max_entities_of_page(max_entities: int, pages: int) -> int:
    """The most entities of a page, if `max_entities` are split evenly over `pages`.

    >>> max_entities_of_page(5_000_000, 16_384)
    306
    """
    return max(1, -(-max_entities // pages))


class Page:
    """The counters of the entities of one page, by key."""

    def __init__(self, number: int = 0, pages: int = 1, payload: bytes | None = None) -> None:
        """Page `number` of `pages` in all, from its stored form, if it has one.

        Raises StateError, which names the page, if that can't be read.
        """
        self._number, self._pages = number, pages
        self._counters = {} if payload is None else read_page(number, payload, pages)
        self._stored = len(self._counters)
        self.evicted = Evicted()
        """Entities that `to_bytes` left out because the page had more than it may have."""

    def counters(self, key: str) -> EntityCounters:
        """The counters of one entity, created by their first use.

        Raises ValueError for an entity of another page, where it would not be found again.
        """
        found = self._counters.get(key)
        if found is None:
            if page_of_entity(key, self._pages) != self._number:
                raise ValueError(f"{key!r} is not an entity of page {self._number} of {self._pages}")
            found = self._counters[key] = EntityCounters()
        return found

    def to_bytes(self, idle_expiry_ms: int, settings: QuotaSettings, max_entities: int | None = None) -> bytes:
        """The stored form, without the entities that are at rest.

        One with more than `max_entities` forgets the surplus too, and notes it in `evicted`. Stored entities keep their
        order. New ones come behind them in that of their keys, as a repeated micro-batch may add them in another.
        """
        now_ms = max((one.last_event_ms for one in self._counters.values()), default=0)
        keys = [*self._counters]
        keys[self._stored :] = sorted(keys[self._stored :])
        kept = [key for key in keys if not at_rest(self._counters[key], now_ms, idle_expiry_ms, settings)]
        if max_entities is not None and len(kept) > max_entities:
            losses = {key: _loss(self._counters[key], now_ms, settings) for key in kept}
            surplus = sorted(kept, key=lambda key: (losses[key], self._counters[key].last_event_ms))[:-max_entities]
            at_rest_now = sum(losses[key] == 0 for key in surplus)
            self.evicted = Evicted(at_rest_now, len(surplus) - at_rest_now)
            gone = set(surplus)
            kept = [key for key in kept if key not in gone]
        return encode({key: self._counters[key] for key in kept}, self._pages)


def at_rest(counters: EntityCounters, now_ms: int, idle_expiry_ms: int, settings: QuotaSettings) -> bool:
    """True if the counters can be forgotten at `now_ms` without changing a later decision.

    Idle for longer than the expiry (Kafka: 3600 s), every sample outdated, and the bucket full again. Shipped Kafka
    forgets a deficit together with the counter; here the counter stays until the deficit is paid.
    """
    idle_ms = now_ms - counters.last_event_ms
    if idle_ms <= idle_expiry_ms or idle_ms <= max(spans_ms(settings)):
        return False
    full = burst(settings.controller_window, counters.mutation_limit)
    return counters.bucket is None or counters.bucket.uncapped(counters.mutation_limit, now_ms) >= full


def spans_ms(settings: QuotaSettings) -> Sequence[int]:
    """The time after which each rate's samples are outdated."""
    return [window.samples * window.window_ms for window in (settings.client_window, MUTATION_RATE_WINDOW)]


def _loss(counters: EntityCounters, now_ms: int, settings: QuotaSettings) -> int:
    """The rank of what is lost with the counters: those of the lowest rank, and of these the oldest, go first.

    Those at rest come first (0), then those with charges in their windows or a bucket that isn't full (1), at last
    those with a bucket below zero (2): who invents names can't wash out a debt before everything else.
    """
    if at_rest(counters, now_ms, 0, settings):
        return 0
    return 2 if counters.bucket and counters.bucket.uncapped(counters.mutation_limit, now_ms) < 0 else 1


def read_page(number: int, payload: bytes, pages: int) -> dict[str, EntityCounters]:
    """The counters of a stored page, by key. Raises StateError, which names the page, if it can't be read."""
    try:
        return decode(payload, pages)
    except StateError as error:
        raise StateError(f"page {number}: {error}") from error


def reshard(stored: Mapping[int, bytes], pages_before: int, pages: int) -> dict[int, bytes]:
    """Number and stored form of each of `pages` that has entities; `stored` are some of the `pages_before`.

    So a split reads a page whole and spreads its entities by the hash of their keys over all pages that it becomes.

    Raises StateError, which names the page, if one can't be read.
    """
    counters_of: dict[int, dict[str, EntityCounters]] = {}
    for number, payload in stored.items():
        for key, counters in read_page(number, payload, pages_before).items():
            counters_of.setdefault(page_of_entity(key, pages), {})[key] = counters
    return {number: encode(counters_of[number], pages) for number in sorted(counters_of)}
