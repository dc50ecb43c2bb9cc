"""Live comparison with shipped Kafka: the Java classes of kafka-clients, through Spark's gateway."""

import math
import random
from typing import Any, NamedTuple

import pytest

from sluice.state.arithmetic.sampled_rate import SampledRate, wait_for_rate_ms
from sluice.state.arithmetic.token_bucket import TokenBucket, wait_for_tokens_ms
from sluice.state.quotas.kinds import Window

pytestmark = pytest.mark.spark

drawn = pytest.mark.parametrize("sequences", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
EPOCH_MS = 1_700_000_000_000  # shipped Kafka's bucket is full at its first use only because the clock is far from 0
RANDOM = random.Random(20_260_101)


def close(ours: float, javas: float) -> bool:
    return math.isclose(ours, javas, rel_tol=1e-9, abs_tol=1e-9)


def random_window() -> Window:
    return Window(RANDOM.randint(1, 12), RANDOM.choice([1, 10, 100, 1000, 2000, 30_000]))


def random_limit() -> float:
    return RANDOM.choice([1e-5, 0.015, 0.5, 3.0, 5.0, 1000.0, 1e6, 2.5e8]) * RANDOM.uniform(0.5, 2.0)


def steps(window: Window, *, clock_steps_back: bool) -> list[tuple[int, float]]:
    """(time, amount) of a sequence; a negative amount is an unrecord, NaN a mere measurement."""
    now_ms, sequence = EPOCH_MS + RANDOM.randint(0, 100_000), []
    span_ms = window.samples * window.window_ms
    for _ in range(RANDOM.randint(1, 8)):
        now_ms += RANDOM.choice([0, 1, window.window_ms - 1, window.window_ms, RANDOM.randint(0, 2 * span_ms)])
        if clock_steps_back and RANDOM.random() < 0.1:
            now_ms -= RANDOM.randint(0, span_ms)
        amount = RANDOM.choice([0.0, 1.0, 30.0, RANDOM.uniform(0, 1e4), RANDOM.uniform(0, 1e9)])
        sequence.append((now_ms, RANDOM.choice([amount, amount, amount, -amount, math.nan])))
    return sequence


class Java(NamedTuple):
    """The Java classes that the tests call, found once: finding a class takes as long as ten calls of it."""

    metric_config: Any
    upper_bound: Any
    token_bucket: Any
    rate: Any
    windowed_sum: Any
    round: Any
    milliseconds: Any
    seconds: Any

    @classmethod
    def of(cls, jvm: Any) -> "Java":
        metrics, units = jvm.org.apache.kafka.common.metrics, jvm.java.util.concurrent.TimeUnit
        return cls(
            metric_config=metrics.MetricConfig,
            upper_bound=metrics.Quota.upperBound,
            token_bucket=metrics.stats.TokenBucket,
            rate=metrics.stats.Rate,
            windowed_sum=metrics.stats.WindowedSum,
            round=jvm.java.lang.Math.round,
            milliseconds=units.MILLISECONDS,
            seconds=units.SECONDS,
        )

    def config(self, window: Window, limit: float) -> Any:
        config = self.metric_config().samples(window.samples).timeWindow(window.window_ms, self.milliseconds)
        return config.quota(self.upper_bound(limit))


@drawn
def test_token_buckets_agree_with_java(spark: Any, sequences: int) -> None:
    """Tokens after every step, and the wait that shipped Kafka computes from them, clock steps included."""
    java = Java.of(spark._jvm)
    different = []
    for number in range(sequences):
        window, limit = random_window(), random_limit()
        ours, config = TokenBucket(), java.config(window, limit)
        javas = java.token_bucket()
        for now_ms, amount in steps(window, clock_steps_back=True):
            if not math.isnan(amount):
                ours.record(amount, limit, window, now_ms)
                javas.record(config, amount, now_ms)
            tokens, expected = ours.measure(limit, window, now_ms), javas.measure(config, now_ms)
            wait_ms = wait_for_tokens_ms(tokens, limit)
            expected_ms = java.round(-expected / limit * 1000)
            if not close(tokens, expected) or abs(wait_ms - expected_ms) > 1 + 1e-9 * abs(expected_ms):
                different.append((number, now_ms, tokens, expected, wait_ms, expected_ms))

    assert different == []


@drawn
def test_sampled_rates_agree_with_java(spark: Any, sequences: int) -> None:
    """Rate, window and wait after every step: expiry, padding and the ring's overwriting included."""
    java = Java.of(spark._jvm)
    different = []
    for number in range(sequences):
        window, limit = random_window(), random_limit()
        ours, config = SampledRate(), java.config(window, limit)
        javas = java.rate(java.seconds, java.windowed_sum())
        for now_ms, amount in steps(window, clock_steps_back=False):
            if not math.isnan(amount):
                ours.record(amount, window, now_ms)
                javas.record(config, amount, now_ms)
            (rate, window_ms), expected = ours.observe(window, now_ms), javas.measure(config, now_ms)
            expected_window_ms = javas.windowSize(config, now_ms)
            wait_ms = wait_for_rate_ms(rate, limit, window_ms)
            expected_ms = java.round((expected - limit) / limit * expected_window_ms)
            same = close(rate, expected) and window_ms == expected_window_ms
            if not same or abs(wait_ms - expected_ms) > 1 + 1e-9 * abs(expected_ms):
                different.append((number, now_ms, rate, expected, window_ms, expected_window_ms))

    assert different == []
