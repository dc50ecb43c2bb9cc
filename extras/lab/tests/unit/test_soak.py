"""The trends that a soak finds in its samples."""

import pytest

from sluice_lab.scenarios.soak import Sample, trends

STEADY: Sample = {
    "java_mib": 1000.0,
    "workers_mib": 400.0,
    "driver_mib": 200.0,
    "state_mib": 50.0,
    "batch_ms": 900.0,
    "batch_requests": 1800.0,
    "lag": 0.0,
}


def replace(sample: Sample, **values: float) -> Sample:
    return {**sample, **values}


def flat(samples: list[Sample], rate_per_s: float = 100.0) -> dict[str, bool | None]:
    return {trend.name: trend.flat for trend in trends(samples, rate_per_s)}


def test_what_stays_is_flat_and_a_single_outlier_is_not_seen() -> None:
    samples = [STEADY] * 8 + [replace(STEADY, java_mib=9000.0, batch_ms=9000.0)]

    assert set(flat(samples).values()) == {True, None}


@pytest.mark.parametrize("name", ["java_mib", "workers_mib", "driver_mib", "batch_ms"])
def test_what_grows_by_more_than_a_fifth_is_not_flat(name: str) -> None:
    """The first third is compared with the last one, whatever is between."""
    grown = [replace(STEADY, **{name: STEADY[name] * 1.21})] * 3

    found = flat([STEADY] * 6 + grown)

    assert [measure for measure, is_flat in found.items() if is_flat is False] == [name]
