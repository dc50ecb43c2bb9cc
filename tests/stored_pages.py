"""Pages of counters that were charged, and their stored form."""

from collections import defaultdict
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from sluice.state.arithmetic.columns import Columns, take
from sluice.state.arithmetic.counter import Charge, EntityCounters
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.store.pages import Pages, page_of_entity

SETTINGS = QuotaSettings()
FOREVER_MS = 2**50

PageCharge = tuple[Tags, QuotaKind, float, float, int]
"""Entity, quota, limit, amount and the time in epoch milliseconds."""


def bytes_of(counters: Pages, idle_expiry_ms: int = FOREVER_MS) -> bytes:
    """The only page of these counters."""
    (payload,) = counters.to_bytes([0], 1, idle_expiry_ms, SETTINGS)
    return payload


def charged(*charges: PageCharge) -> Pages:
    page = Pages()
    for tags, kind, limit, amount, now_ms in charges:
        amounts = [amount, 0.0] if kind is QuotaKind.REQUEST_PERCENTAGE else [amount]
        page.counters(tags.key()).charge(Charge(kind, "user", limit, False, amounts), now_ms, SETTINGS)
    return page


def contents(counters: EntityCounters) -> tuple[dict[QuotaKind, SampledRate], object, float, int]:
    bucket = counters.bucket and (counters.bucket.tokens, counters.bucket.last_ms)
    return counters.rates, bucket, counters.mutation_limit, counters.last_event_ms


def stored(charge_list: list[PageCharge], pages: int) -> dict[int, bytes]:
    """The stored form of each page that these charges touch, by number."""
    by_page: dict[int, list[PageCharge]] = defaultdict(list)
    for charge in charge_list:
        by_page[page_of_entity(charge[0].key(), pages)].append(charge)
    return {
        number: charged(*some).to_bytes([number], pages, FOREVER_MS, SETTINGS)[0] for number, some in by_page.items()
    }


def bits(keys: list[str], columns: Columns) -> dict[str, list[bytes]]:
    """Every column of every entity, to the last bit."""
    alone = {key: take(columns, np.array([row])) for row, key in enumerate(keys)}
    return {key: [getattr(one, name).tobytes() for name in Columns.__slots__] for key, one in alone.items()}


names = st.text(alphabet=st.characters(codec="utf-8"), max_size=8)

charges = st.lists(
    st.tuples(
        st.one_of(
            st.builds(Tags, names, names),
            st.builds(Tags, topic=names.filter(bool), partition=st.integers(0, 2**31 - 1)),
        ),
        st.sampled_from(QuotaKind),
        st.floats(1e-6, 1e12),
        st.floats(0, 2**53),
        st.integers(0, 253_402_300_799_999),
    ),
    max_size=12,
)

GOLDEN = Path(__file__).parent / "data"
"""Has a block `state-v*.bin` of each codec version, with the same counters, written by the first release with it."""
