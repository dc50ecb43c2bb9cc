"""The token bucket of KIP-599."""

import math

from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.token_bucket import TokenBucket, wait_for_tokens_ms
from sluice.state.quotas.kinds import Window, burst

WINDOW = Window(samples=10, window_ms=1000)
LIMITS = st.floats(0.001, 1e9)
AMOUNTS = st.floats(0, 1e9)
TIMES = st.integers(0, 10**12)


def test_a_new_bucket_is_full_whatever_the_clock_says() -> None:
    """Also at time 0, where shipped Kafka's bucket would be empty."""
    assert TokenBucket().measure(5.0, WINDOW, now_ms=0) == 50.0


def test_a_clock_that_steps_back_takes_tokens_and_gives_them_back() -> None:
    """-1 s costs Q tokens, +1 s returns them."""
    bucket = TokenBucket()
    bucket.record(50.0, 10.0, WINDOW, now_ms=5000)

    stepped_back = bucket.measure(10.0, WINDOW, now_ms=4000)
    returned = bucket.measure(10.0, WINDOW, now_ms=5000)

    assert (stepped_back, returned) == (40.0, 50.0)


def test_a_lowered_bound_clips_at_once_and_a_raised_one_gives_nothing_at_once() -> None:
    """100 tokens at Q=10; Q=5 clips to 50; back at Q=10 it is still 50, and grows by 10 a second."""
    bucket = TokenBucket()
    bucket.measure(10.0, WINDOW, now_ms=0)

    assert bucket.measure(5.0, WINDOW, now_ms=0) == 50.0
    assert bucket.measure(10.0, WINDOW, now_ms=0) == 50.0
    assert bucket.measure(10.0, WINDOW, now_ms=1000) == 60.0


def test_a_wait_may_round_to_zero_while_tokens_are_still_missing() -> None:
    """Q=3, -0.001 tokens: 0.33 ms is announced as 0."""
    assert wait_for_tokens_ms(-0.001, 3.0) == 0


@given(limit=LIMITS, charges=st.lists(st.tuples(AMOUNTS, TIMES)))
def test_tokens_never_exceed_the_burst(limit: float, charges: list[tuple[float, int]]) -> None:
    """After any charges and returns, at any times."""
    bucket = TokenBucket()
    for amount, now_ms in charges:
        bucket.record(amount if now_ms % 2 else -amount, limit, WINDOW, now_ms)

        assert bucket.tokens <= burst(WINDOW, limit)


@given(limit=st.floats(1, 1e6), amount=st.integers(0, 1_000_000))
def test_unrecord_undoes_record_below_the_burst(limit: float, amount: int) -> None:
    """At one moment, a charge that is taken back leaves what was there."""
    bucket = TokenBucket()
    bucket.record(burst(WINDOW, limit) / 2, limit, WINDOW, now_ms=0)
    before = bucket.tokens

    bucket.record(amount, limit, WINDOW, now_ms=0)
    bucket.record(-amount, limit, WINDOW, now_ms=0)

    assert math.isclose(bucket.tokens, before, rel_tol=1e-9, abs_tol=1e-6)
