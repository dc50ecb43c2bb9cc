"""Pages: the counters of all counted entities that hash to a page, read from and written to one block of bytes each."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from sluice.state.arithmetic.columns import (
    Columns,
    Flags,
    Floats,
    Integers,
    columns_of,
    concatenate,
    counters_from,
    empty_columns,
    integers,
    take,
)
from sluice.state.arithmetic.counter import MUTATION_RATE_WINDOW, EntityCounters, charge_mutations
from sluice.state.arithmetic.outcomes import Outcomes
from sluice.state.arithmetic.shapes import Charged, Shapes
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings, burst
from sluice.state.store.codec import decode, decode_blocks, encode, encode_blocks
from sluice.state.store.keys import KeyBlocks, Keys, key_hash

_EARLIEST_MS = np.iinfo(np.int64).min


RowT = TypeVar("RowT", bound=Charged)


class ChargedRows(NamedTuple, Generic[RowT]):
    """Rows that were charged, those of one entity one after another and in order, and the outcomes of each kind."""

    rows: list[RowT]
    outcomes: dict[QuotaKind, Outcomes]


def page_of_entity(key: str, pages: int) -> int:
    """The page that keeps the counters of the entity with this key: the same in every process and release."""
    return key_hash(key.encode()) % pages


def pages_of_entities(keys: Iterable[str], pages: int) -> Integers:
    """The page of each of n entities: (n,). Many at once cost half of what they cost one by one."""
    return integers(key_hash(key.encode()) for key in keys) % pages


class Evicted(NamedTuple):
    """Number of entities forgotten because their page had more than its part."""

    at_rest: int = 0
    """They owed nothing: no later decision is changed."""
    owing: int = 0
    """Their rates or balances start anew."""

    def plus(self, more: "Evicted") -> "Evicted":
        """The sum of both."""
        return Evicted(self.at_rest + more.at_rest, self.owing + more.owing)


def part_of_page(max_entities: int, pages: int) -> int:
    """The most entities of a page, if `max_entities` are split evenly over `pages`.

    >>> part_of_page(5_000_000, 16_384)
    306
    """
    return max(1, -(-max_entities // pages))


class Pages:
    """The counters of many entities: those of one page, or of several that are charged together.

    They are kept as columns. Entities that are charged are converted to objects, which replace their rows until the
    columns are needed again.
    """

    def __init__(self, keys: Sequence[str] = (), columns: Columns | None = None) -> None:
        """The counters of the entities `keys` (n,) in `columns`; none by default."""
        self._keys = Keys(KeyBlocks([], integers([])), pages=1)
        self._numbers = self._keys.add(keys)
        """The number of its key for each row of the columns."""
        self._columns = columns or empty_columns()
        self._singles: dict[str, EntityCounters] = {}
        self._single_rows: list[int] = []
        self._single_numbers: list[int] = []
        self.evicted = Evicted()
        """Entities that `to_bytes` left out of pages that had more than their part."""

    @classmethod
    def from_bytes(cls, payloads: Iterable[bytes], pages: int) -> "Pages":
        """The pages stored in `payloads`, of `pages` in all. Raises StateError if one can't be read."""
        names, columns = decode_blocks(payloads, pages)
        read = cls(columns=columns)
        read._keys, read._numbers = Keys(names, pages), np.arange(len(columns.rate_counts))
        return read

    def charge(
        self, rows_by_key: Mapping[str, Sequence[RowT]], shapes: Shapes, settings: QuotaSettings
    ) -> ChargedRows[RowT]:
        """Charge entities, by their key, with their rows in the order given."""
        self._load(rows_by_key)
        charged, outcomes = list[RowT](), dict[QuotaKind, Outcomes]()
        for key, rows in rows_by_key.items():
            counters = self._singles[key]
            for row in rows:
                for charge in shapes[row.shape].charges_of(row.amounts):
                    of_kind = outcomes.get(charge.kind)
                    if of_kind is None:
                        of_kind = outcomes[charge.kind] = Outcomes()
                    of_kind.add(len(charged), counters.charge(charge, row.timestamp_ms, settings))
                charged.append(row)
        return ChargedRows(charged, outcomes)

    def charge_together(
        self, requests: Sequence[Mapping[str, RowT]], shapes: Shapes, settings: QuotaSettings
    ) -> ChargedRows[RowT]:
        """Charge requests for mutations in this order, each with its rows by key: all are asked before one is charged.

        A request is of a tenant, and of its member if that has a counter of its own. Their rows have no other charges.
        """
        self._load(key for rows in requests for key in rows)
        charged, outcomes = list[RowT](), Outcomes()
        for rows in requests:
            pairs = [
                (self._singles[key], charge)
                for key, row in rows.items()
                for charge in shapes[row.shape].charges_of(row.amounts)
            ]
            timestamp_ms = next(iter(rows.values())).timestamp_ms
            if all(charge.amounts for _, charge in pairs):
                made = charge_mutations(pairs, timestamp_ms, settings.controller_window)
            else:
                made = [counters.charge(charge, timestamp_ms, settings) for counters, charge in pairs]
            for row, outcome in zip(rows.values(), made, strict=True):
                outcomes.add(len(charged), outcome)
                charged.append(row)
        return ChargedRows(charged, {QuotaKind.CONTROLLER_MUTATION_RATE: outcomes})

    def counters(self, key: str) -> EntityCounters:
        """The counters of one entity, created by their first use. The object is valid until the next `charge`."""
        self._load([key])
        return self._singles[key]

    def to_bytes(
        self, numbers: Sequence[int], pages: int, idle_expiry_ms: int, settings: QuotaSettings, part: int | None = None
    ) -> list[bytes]:
        """The stored form of the pages `numbers` (k,), of `pages` in all, without the entities that are at rest.

        A page with more entities than `part` forgets the surplus too, and adds it to `evicted`. The forgotten
        entities depend on the page alone, whichever others are here. Raises ValueError if an entity's page is not among
        `numbers`.
        """
        keys, columns = self._merged()
        ranks = self._keys.ranks(keys)
        places = _places(self._keys.pages_of(keys, pages), numbers)
        newest_ms = np.full(len(numbers), _EARLIEST_MS)
        np.maximum.at(newest_ms, places, columns.last_event_ms)
        now_ms = newest_ms[places]
        kept = ~at_rest(columns, now_ms, idle_expiry_ms, settings)
        if part is not None:
            surplus, debts = _surplus(columns, kept, places, ranks, now_ms, settings, part)
            kept[surplus] = False
            self.evicted = self.evicted.plus(Evicted(int((debts == 0).sum()), int((debts > 0).sum())))
        rows = np.lexsort((ranks, places))
        rows = rows[kept[rows]]
        ends = np.searchsorted(places[rows], np.arange(len(numbers)), side="right")
        return encode_blocks(self._keys.blocks(keys[rows], ends), take(columns, rows), ends, pages)

    def _load(self, keys: Iterable[str]) -> None:
        """Convert these entities to objects, all in one step: that is cheaper than one by one."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._singles]
        if not missing:
            return
        rows = self._rows_of(missing)
        stored = integers(rows.values())
        new = [key for key in missing if key not in rows]
        self._singles.update(zip(rows, counters_from(take(self._columns, stored)), strict=True))
        self._singles.update((key, EntityCounters()) for key in new)
        self._single_rows += rows.values()
        self._single_numbers += [*self._numbers[stored].tolist(), *self._keys.add(new).tolist()]

    def _merged(self) -> tuple[Integers, Columns]:
        """Key numbers and columns of all entities: the untouched rows, then the entities that were charged singly."""
        if not self._singles:
            return self._numbers, self._columns
        untouched = ~_flags(self._single_rows, len(self._numbers))
        columns = concatenate([take(self._columns, untouched), columns_of(self._singles.values())])
        return np.concatenate([self._numbers[untouched], integers(self._single_numbers)]), columns

    def _rows_of(self, keys: Collection[str]) -> dict[str, int]:
        """The rows of those entities that are stored, in ascending order."""
        found = self._keys.find(keys)
        row_of = np.empty(int(self._numbers.max(initial=-1)) + 1, np.int64)
        row_of[self._numbers] = np.arange(len(self._numbers))
        rows, names = row_of[integers(found.values())], list(found)
        order = np.argsort(rows)
        return dict(zip([names[number] for number in order.tolist()], rows[order].tolist(), strict=True))


def _places(found: Integers, numbers: Sequence[int]) -> Integers:
    """Position in `numbers` (k,) of each page of `found` (n,): (n,). Raises ValueError for a missing page."""
    ascending = np.argsort(numbers)
    places: Integers = ascending[np.searchsorted(np.array(numbers), found, sorter=ascending).clip(max=len(numbers) - 1)]
    if (np.array(numbers)[places] != found).any():
        raise ValueError(f"an entity's page is not among {list(numbers)}")
    return places


def _surplus(
    columns: Columns,
    kept: Flags,
    places: Integers,
    key_ranks: Integers,
    now_ms: Integers,
    settings: QuotaSettings,
    part: int,
) -> tuple[Integers, Integers]:
    """The rows (m,) that the `kept` entities of each place have over its part, and the rank (m,) of each.

    Those at rest come first (rank 0), then those with charges in their windows or a bucket that isn't full (1), at last
    those with a bucket below zero (2): who invents names can't wash out a debt before everything else. Of one rank the
    oldest comes first. Of the same age the order is by `key_ranks`, so that a repeated micro-batch forgets the same.
    """
    counts = np.bincount(places[kept], minlength=int(places.max(initial=0)) + 1)
    rows = np.flatnonzero(kept & (counts > part)[places])
    if not len(rows):
        return rows, rows
    some, now_ms = take(columns, rows), now_ms[rows]
    ranks = np.where(at_rest(some, now_ms, 0, settings), 0, np.where(_refilled(some, now_ms) < 0, 2, 1))
    order = np.lexsort((key_ranks[rows], some.last_event_ms, ranks, places[rows]))
    ordered = places[rows[order]]
    nth = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    gone = order[nth < counts[ordered] - part]
    return rows[gone], ranks[gone]


def at_rest(columns: Columns, now_ms: Integers, idle_expiry_ms: int, settings: QuotaSettings) -> Flags:
    """Flags (n,) of the entities that can be forgotten at `now_ms` (n,) without changing a later decision.

    Idle for longer than the expiry (Kafka: 3600 s), every sample outdated, and the bucket full again. Shipped Kafka
    forgets a deficit together with the counter; here the counter stays until the deficit is paid.
    """
    idle = now_ms - columns.last_event_ms > max(idle_expiry_ms, *spans_ms(settings))
    full = _refilled(columns, now_ms) >= burst(settings.controller_window, 1.0) * columns.mutation_limit
    at_rest_now: Flags = idle & (np.isnan(columns.bucket_tokens) | full)
    return at_rest_now


def spans_ms(settings: QuotaSettings) -> Sequence[int]:
    """The time after which each rate's samples are outdated."""
    return [window.samples * window.window_ms for window in (settings.client_window, MUTATION_RATE_WINDOW)]


def _refilled(columns: Columns, now_ms: Integers) -> Floats:
    """The tokens of each bucket at `now_ms` (n,), not capped: (n,), NaN where there is no bucket."""
    refilled: Floats = columns.bucket_tokens + columns.mutation_limit * ((now_ms - columns.bucket_last_ms) / 1000.0)
    return refilled


def _flags(rows: Sequence[int] | Integers, length: int) -> Flags:
    flags = np.zeros(length, np.bool_)
    flags[rows] = True
    return flags


def reshard(payloads: Iterable[bytes], before: int, after: int) -> dict[int, bytes]:
    """Number and stored form of each of `after` pages that has entities; `payloads` are those of `before` pages.

    Raises StateError if a page can't be read.
    """
    keys, columns = decode(payloads, before)
    pages = pages_of_entities(keys, after)
    rows = np.argsort(pages, kind="stable")
    numbers, counts = np.unique(pages, return_counts=True)
    stored = encode([keys[row] for row in rows.tolist()], take(columns, rows), np.cumsum(counts), after)
    return dict(zip(numbers.tolist(), stored, strict=True))
