"""The trends that a soak finds in its samples."""

from dataclasses import replace

import pytest

from scripts.scenarios.soak import Sample, trends

STEADY = Sample(
    java_mib=1000.0, workers_mib=400.0, driver_mib=200.0, state_mib=50.0, batch_ms=900.0, batch_requests=1800.0, lag=0.0
)


def flat(samples: list[Sample], rate_per_s: float = 100.0) -> dict[str, bool | None]:
    return {trend.name: trend.flat for trend in trends(samples, rate_per_s)}


def test_what_stays_is_flat_and_a_single_outlier_is_not_seen() -> None:
    samples = [STEADY] * 8 + [replace(STEADY, java_mib=9000.0, batch_ms=9000.0)]

    assert set(flat(samples).values()) == {True, None}


@pytest.mark.parametrize("name", ["java_mib", "workers_mib", "driver_mib", "batch_ms"])
def test_what_grows_by_more_than_a_fifth_is_not_flat(name: str) -> None:
    """The first third is compared with the last one, whatever is between."""
    grown = [replace(STEADY, **{name: getattr(STEADY, name) * 1.21})] * 3

    found = flat([STEADY] * 6 + grown)

    assert [measure for measure, is_flat in found.items() if is_flat is False] == [name]


def test_a_lag_is_flat_while_it_is_less_than_comes_in_ten_seconds() -> None:
    """However small the first lag was: some requests are always in flight."""
    assert flat([STEADY, replace(STEADY, lag=1000.0)], rate_per_s=100.0)["lag"]
    assert flat([STEADY, replace(STEADY, lag=1001.0)], rate_per_s=100.0)["lag"] is False


def test_a_lag_that_stays_is_flat_however_large() -> None:
    """One or two micro-batches are always in flight, and those of a million entities take seconds."""
    behind = replace(STEADY, lag=5000.0)

    assert flat([behind, replace(STEADY, lag=6000.0)], rate_per_s=100.0)["lag"]
    assert flat([behind, replace(STEADY, lag=6001.0)], rate_per_s=100.0)["lag"] is False


@pytest.mark.parametrize("name", ["state_mib", "batch_requests"])
def test_what_follows_from_the_load_is_not_judged(name: str) -> None:
    """The windows of a million entities fill for hours: their state grows up to its bound."""
    assert flat([STEADY, replace(STEADY, **{name: 1e6})])[name] is None


def test_a_row_shows_both_medians_and_their_ratio() -> None:
    rows = [str(trend) for trend in trends([STEADY, replace(STEADY, driver_mib=400.0)], 100.0)]

    assert rows[2].split() == ["driver_mib", "200.0", "400.0", "2.00", "NOT", "FLAT"]
    assert rows[6].split() == ["lag", "0.0", "0.0", "-", "flat"]
