"""The windowed rate of byte-rate and request quotas."""

import copy
import math

from hypothesis import given
from hypothesis import strategies as st

from sluice.state.arithmetic.sampled_rate import SampledRate, padded_window_ms, wait_for_rate_ms
from sluice.state.quotas.kinds import Window

WINDOW = Window(samples=11, window_ms=1000)
EVENTS = st.lists(st.tuples(st.integers(0, 30_000), st.floats(0, 1e6)))


def recorded(events: list[tuple[int, float]]) -> SampledRate:
    rate = SampledRate()
    for now_ms, value in sorted(events):
        rate.record(value, WINDOW, now_ms)
    return rate


def samples_of(rate: SampledRate) -> tuple[list[int], list[int], list[float], int]:
    return rate.starts_ms, rate.last_events_ms, rate.values, rate.current


def test_a_fresh_rate_divides_by_all_but_one_window() -> None:
    """50 over (11-1) * 1 s."""
    assert recorded([(0, 50.0)]).observe(WINDOW, now_ms=0)[0] == 5.0


def test_a_sample_dies_by_its_last_event() -> None:
    """A burst at 0 counts until 10 999 ms and is gone at 11 000 ms."""
    rate = recorded([(0, 2000.0)])

    assert rate.observe(WINDOW, now_ms=10_999)[0] > 0
    assert rate.observe(WINDOW, now_ms=11_000)[0] == 0


def test_the_ring_overwrites_its_oldest_sample() -> None:
    """S+1 samples are kept, the next window takes the place of the first."""
    rate = recorded([(second * 1000, 1.0) for second in range(13)])

    assert len(rate.values) == 12
    assert rate.current == 0
    assert rate.starts_ms[0] == 12_000


def test_no_quota_of_zero_ends_in_an_error() -> None:
    """Q = 0 asks for an infinite wait, which saturates."""
    assert wait_for_rate_ms(1.0, 0.0, 1000) == 2**63 - 1


def measured_as_kafka_does(rate: SampledRate, window: Window, now_ms: int) -> tuple[float, int]:
    """Empty every outdated sample, then find the oldest start, pad to S-1 windows, and add up the samples in order."""
    for slot, last_event_ms in enumerate(rate.last_events_ms):
        if last_event_ms <= now_ms - window.samples * window.window_ms:
            rate.starts_ms[slot], rate.last_events_ms[slot], rate.values[slot] = now_ms, now_ms, 0.0
    window_ms = padded_window_ms(now_ms - min(rate.starts_ms), window)
    total = 0.0
    for value in rate.values:
        total += value
    return total / (window_ms / 1000.0), window_ms


@given(
    requests=st.lists(st.tuples(st.integers(-3_000, 13_000), st.floats(0, 1e9)), min_size=1, max_size=60),
    window=st.builds(Window, st.integers(2, 11), st.sampled_from([100, 1_000])),
)
def test_a_rate_is_observed_to_the_bit_as_kafka_measures_it_though_clocks_step_back(
    requests: list[tuple[int, float]], window: Window
) -> None:
    rate, kafka, now_ms = SampledRate(), SampledRate(), 1_000_000
    for pause_ms, value in requests:
        now_ms += pause_ms
        rate.record(value, window, now_ms)
        kafka.record(value, window, now_ms)
        assert rate.observe(window, now_ms) == measured_as_kafka_does(kafka, window, now_ms)
        assert samples_of(rate) == samples_of(kafka)


@given(events=EVENTS, now_ms=st.integers(0, 60_000))
def test_peeking_sees_what_measuring_sees_and_leaves_no_trace(events: list[tuple[int, float]], now_ms: int) -> None:
    """Reading a rate for display never changes it."""
    rate = recorded(events)
    before = copy.deepcopy(samples_of(rate))

    peeked = rate.peek(WINDOW, now_ms)

    assert samples_of(rate) == before
    assert peeked == rate.observe(WINDOW, now_ms)[0]


@given(events=EVENTS, value=st.integers(0, 10**6))
def test_unrecord_undoes_record(events: list[tuple[int, float]], value: int) -> None:
    """Bytes that are taken back leave the rate as if they had only opened a sample."""
    rate, reference = recorded(events), recorded(events)
    reference.record(0.0, WINDOW, now_ms=30_000)

    rate.record(float(value), WINDOW, now_ms=30_000)
    rate.record(-float(value), WINDOW, now_ms=30_000)

    assert math.isclose(
        rate.observe(WINDOW, 30_000)[0], reference.observe(WINDOW, 30_000)[0], rel_tol=1e-9, abs_tol=1e-6
    )
