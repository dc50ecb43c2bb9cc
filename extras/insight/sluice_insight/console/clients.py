"""The page of clients: selection and order of its counters, and the state of the page in its address."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlencode

import numpy as np

from sluice.state.quotas.kinds import KINDS_BY_NAME, QuotaKind
from sluice.state.quotas.tenants import Tenants
from sluice_insight.live import NEAR_LIMIT, OVER, CounterId, CounterRow, CounterState, LiveModel
from sluice_insight.texts import NO_TENANT, tenant_name

PAGE_SIZE = 50
MAX_PAGE = 100_000
MAX_SEARCH = 200
BANDS = (OVER, NEAR_LIMIT, 0.8, 0.5, 0.0)
"""Shares of the limit at which a band begins: over it, at it, and below as in Confluent's notices and dashboards."""


class Sort(StrEnum):
    """The column that the rows are ordered by."""

    USAGE = "usage"
    NAME = "name"
    QUOTA = "quota"
    RATE = "rate"
    LIMIT = "limit"
    REMAINING = "remaining"
    WAIT = "wait"
    HOUR = "hour"
    WEEK = "week"
    SEEN = "seen"


ASCENDING_FIRST = (Sort.NAME, Sort.QUOTA, Sort.REMAINING)


WeekMinutes = Mapping[CounterId, int]
"""Minutes throttled in the last seven days, from the tables."""


@dataclass(frozen=True, slots=True)
class ClientsQuery:
    """The state of the page. Any address, also a meaningless one, gives a valid state."""

    sort: Sort = Sort.USAGE
    descending: bool = True
    search: str = ""
    quota: QuotaKind | None = None
    mode: str = ""
    """"" for both, or `enforce` or `shadow`."""
    band: float | None = None
    """The least share of the limit."""
    tenant: str = ""
    """"" for all."""
    page: int = 1

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """The state in the parameters of an address, without those that make no sense."""
        sort = given["sort"] if given.get("sort") in list(Sort) else Sort.USAGE
        descending = given.get("order", "asc" if sort in ASCENDING_FIRST else "desc") != "asc"
        page = given.get("page", "")
        return cls(
            Sort(sort),
            descending,
            given.get("search", "")[:MAX_SEARCH],
            KINDS_BY_NAME.get(given.get("quota", "")),
            given["mode"] if given.get("mode") in ("enforce", "shadow") else "",
            next((band for band in BANDS if given.get("band") == f"{band * 100:.0f}"), None),
            given.get("tenant", ""),
            min(int(page), MAX_PAGE) if page.isascii() and page.isdigit() and len(page) < 8 and int(page) else 1,
        )

    def address(self, **changes: Any) -> str:
        """The parameters of the page with these changes; a change begins at the first page."""
        query = replace(self, **({"page": 1} | changes))
        parts = {
            "sort": query.sort.value,
            "order": "desc" if query.descending else "asc",
            "search": query.search,
            "quota": query.quota.value if query.quota else "",
            "mode": query.mode,
            "band": "" if query.band is None else f"{query.band * 100:.0f}",
            "tenant": query.tenant,
            "page": str(query.page) if query.page > 1 else "",
        }
        return "?" + urlencode({name: value for name, value in parts.items() if value}, errors="replace")

    def sorted_by(self, column: str) -> str:
        """The parameters of the page sorted by a column: in the other direction if it is already."""
        sort = Sort(column)
        descending = not self.descending if sort is self.sort else sort not in ASCENDING_FIRST
        return self.address(sort=sort, descending=descending)


@dataclass(frozen=True, slots=True)
class ClientsPage:
    """The rows of a page. `found` counters are selected, of `known`; of all, `bands` and `throttled` count some.

    `throttled` are those whose clients waited in the last minute: a wait is often over when its decision is read.
    """

    rows: list[CounterRow]
    found: int
    known: int
    bands: dict[float, int]
    """Counters by the least share of the limit that they use."""
    throttled: int

    def of_then(self) -> "ClientsPage":
        """The page while decisions are old: nobody knows the figures of now."""
        return replace(self, rows=[row.of_then() for row in self.rows])

    @property
    def pages(self) -> int:
        """The number of pages of the selected counters."""
        return max(1, -(-self.found // PAGE_SIZE))


def select(model: LiveModel, query: ClientsQuery, now_ms: int, week: WeekMinutes, tenants: Tenants) -> ClientsPage:
    """The page of the query, by the model's present figures. Without `tenants` its tenant is ignored."""
    with model.lock:
        counters = model.counters()
        shares = np.array(model.usage.shares(counters, now_ms), dtype=float)
        bands = {band: int(np.count_nonzero(shares >= band)) for band in reversed(BANDS) if band}
        throttled = sum(counter.throttled(now_ms) for counter in counters)
        chosen = _chosen(counters, shares, query, tenants)
        found = counters if chosen is None else [counters[index] for index in chosen]
        known_shares = shares if chosen is None else shares[chosen]
        rows = [
            model.row(counter, now_ms, week.get(counter.key))
            for counter in _ordered(model, query, found, known_shares, now_ms, week)
        ]
    return ClientsPage(rows, len(found), len(counters), bands, throttled)


def band_of(share: float | None) -> str:
    """The name of the band of a share of the limit.

    >>> band_of(0.5), band_of(0.95), band_of(3.0), band_of(None), band_of(0.1)
    ('50', '90', '110', '', '0')
    """
    return "" if share is None else f"{next((band for band in BANDS if share >= band), 0.0) * 100:.0f}"


def tenant_of(key: CounterId, tenants: Tenants) -> str:
    """The tenant of a counter, by its names; a name that the counter isn't kept for is empty. Topics have no tenant."""
    return key.tenant or (NO_TENANT if key.topic is not None else tenant_name(tenants, key.user, key.client_id))


def _chosen(
    counters: Sequence[CounterState], shares: "np.ndarray[Any, Any]", query: ClientsQuery, tenants: Tenants
) -> list[int] | None:
    """The places of the counters that search and filters leave; None for all of them."""
    search, quota, mode, band = query.search.casefold(), query.quota, query.mode, query.band
    if not search and quota is None and not mode and band is None and not (tenants and query.tenant):
        return None
    places: Iterable[int] = range(len(counters)) if band is None else np.flatnonzero(shares >= band).tolist()
    shadow = mode == "shadow"

    def is_wanted(key: CounterId) -> bool:
        if (quota is not None and key.kind is not quota) or (mode and key.shadow is not shadow):
            return False
        if tenants and query.tenant and tenant_of(key, tenants) != query.tenant:
            return False
        return not search or any(
            search in name.casefold() for name in (key.user, key.client_id, key.topic or key.tenant)
        )

    return [place for place in places if is_wanted(counters[place].key)]


def _ordered(
    model: LiveModel,
    query: ClientsQuery,
    found: Sequence[CounterState],
    shares: "np.ndarray[Any, Any]",
    now_ms: int,
    week: WeekMinutes,
) -> list[CounterState]:
    """The counters of the page. Of equal ones a throttled counter comes first, then the one that was charged last."""
    end = query.page * PAGE_SIZE
    values: Sequence[Any]
    places: Sequence[int]
    if query.sort in (Sort.NAME, Sort.QUOTA):
        values, places = [_words(query.sort, counter.key) for counter in found], range(len(found))
    else:
        missing = float("-inf") if query.descending else float("inf")
        numbers = shares if query.sort is Sort.USAGE else _numbers(model, query.sort, found, now_ms, week)
        known = np.where(np.isnan(numbers), missing, numbers)
        values, places = known.tolist(), _candidates(known, end, query.descending)
    pick = heapq.nlargest if query.descending else heapq.nsmallest
    first = pick(end, places, key=lambda place: (values[place], found[place].until_ms, found[place].at_ms))
    return [found[place] for place in first[end - PAGE_SIZE :]]


def _candidates(values: "np.ndarray[Any, Any]", count: int, descending: bool) -> Sequence[int]:
    """The places of the `count` greatest, or least, values, and of those that equal the last of them."""
    if count >= len(values):
        return range(len(values))
    if descending:
        places = np.flatnonzero(values >= np.partition(values, -count)[-count])
    else:
        places = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
    return list(map(int, places))


def _words(sort: Sort, key: CounterId) -> tuple[str, ...]:
    """The words to sort by. Clients come before topics, which are named by nobody who looks for a client."""
    is_topic = str(key.topic is not None)
    return (key.kind.value,) if sort is Sort.QUOTA else (is_topic, key.user, key.client_id, key.topic or key.tenant)


def _numbers(
    model: LiveModel, sort: Sort, found: Sequence[CounterState], now_ms: int, week: WeekMinutes
) -> "np.ndarray[Any, Any]":
    """The figures to sort by; NaN where a counter has no such figure."""
    usage = model.usage
    value: dict[Sort, Callable[[CounterState], float | None]] = {
        Sort.RATE: lambda counter: usage.rate(counter, now_ms),
        Sort.LIMIT: lambda counter: counter.limit,
        Sort.REMAINING: lambda counter: usage.remaining(counter, now_ms),
        Sort.WAIT: lambda counter: counter.waited_ms(now_ms),
        Sort.HOUR: lambda counter: counter.throttled_minutes(now_ms),
        Sort.WEEK: lambda counter: week.get(counter.key),
        Sort.SEEN: lambda counter: counter.at_ms,
    }
    return np.array(list(map(value[sort], found)), dtype=float)
