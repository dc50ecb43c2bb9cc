"""Pages of counters that were charged, and their stored form."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from hypothesis import strategies as st

from sluice.state.arithmetic.counter import Charge, EntityCounters
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.entity import Tags
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.store.codec import decode, encode
from sluice.state.store.pages import Page, page_of_entity

SETTINGS = QuotaSettings()
FOREVER_MS = 2**50

PageCharge = tuple[Tags, QuotaKind, float, float, int]
"""Entity, quota, limit, amount and the time in epoch milliseconds."""


def bytes_of(page: Page, idle_expiry_ms: int = FOREVER_MS) -> bytes:
    """The stored form of the page."""
    return page.to_bytes(idle_expiry_ms, SETTINGS)


def charged(*charges: PageCharge, number: int = 0, pages: int = 1) -> Page:
    """Page `number` of `pages` in all, with these charges, which are of its entities."""
    page = Page(number, pages)
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
    return {number: bytes_of(charged(*some, number=number, pages=pages)) for number, some in by_page.items()}


def bits(payloads: Iterable[bytes], pages: int) -> dict[str, bytes]:
    """Every entity of some stored pages, to the last bit."""
    counters = {key: one for payload in payloads for key, one in decode(payload, pages).items()}
    return {key: encode({key: one}, 1) for key, one in counters.items()}


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
