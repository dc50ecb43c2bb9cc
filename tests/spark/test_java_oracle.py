"""Live comparison with shipped Kafka: the Java classes of kafka-clients, through Spark's gateway."""

import math
import random
from typing import Any

import pytest

from state.quota import Window
from state.sampled_rate import SampledRate, wait_for_rate_ms
from state.token_bucket import TokenBucket, wait_for_tokens_ms

pytestmark = pytest.mark.spark

SEQUENCES = 5_000  # of each kind: 10 000 in all
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


def java_config(jvm: Any, window: Window, limit: float) -> Any:
    metrics = jvm.org.apache.kafka.common.metrics
    unit = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
    config = metrics.MetricConfig().samples(window.samples).timeWindow(window.window_ms, unit)
    return config.quota(metrics.Quota.upperBound(limit))


def test_token_buckets_agree_with_java(spark: Any) -> None:
    """Tokens after every step, and the wait that shipped Kafka computes from them, clock steps included."""
    jvm = spark._jvm
    different = []
    for number in range(SEQUENCES):
        window, limit = random_window(), random_limit()
        ours, config = TokenBucket(), java_config(jvm, window, limit)
        javas = jvm.org.apache.kafka.common.metrics.stats.TokenBucket()
        for now_ms, amount in steps(window, clock_steps_back=True):
            if not math.isnan(amount):
                ours.record(amount, limit, window, now_ms)
                javas.record(config, amount, now_ms)
            tokens, expected = ours.measure(limit, window, now_ms), javas.measure(config, now_ms)
            wait_ms = wait_for_tokens_ms(tokens, limit)
            expected_ms = jvm.java.lang.Math.round(-expected / limit * 1000)
            if not close(tokens, expected) or abs(wait_ms - expected_ms) > 1 + 1e-9 * abs(expected_ms):
                different.append((number, now_ms, tokens, expected, wait_ms, expected_ms))

    assert different == []


def test_sampled_rates_agree_with_java(spark: Any) -> None:
    """Rate, window and wait after every step: expiry, padding and the ring's overwriting included."""
    jvm = spark._jvm
    stats, seconds = jvm.org.apache.kafka.common.metrics.stats, jvm.java.util.concurrent.TimeUnit.SECONDS
    different = []
    for number in range(SEQUENCES):
        window, limit = random_window(), random_limit()
        ours, config = SampledRate(), java_config(jvm, window, limit)
        javas = stats.Rate(seconds, stats.WindowedSum())
        for now_ms, amount in steps(window, clock_steps_back=False):
            if not math.isnan(amount):
                ours.record(amount, window, now_ms)
                javas.record(config, amount, now_ms)
            rate, expected = ours.measure(window, now_ms), javas.measure(config, now_ms)
            window_ms, expected_window_ms = ours.window_ms(window, now_ms), javas.windowSize(config, now_ms)
            wait_ms = wait_for_rate_ms(rate, limit, window_ms)
            expected_ms = jvm.java.lang.Math.round((expected - limit) / limit * expected_window_ms)
            same = close(rate, expected) and window_ms == expected_window_ms
            if not same or abs(wait_ms - expected_ms) > 1 + 1e-9 * abs(expected_ms):
                different.append((number, now_ms, rate, expected, window_ms, expected_window_ms))

    assert different == []
