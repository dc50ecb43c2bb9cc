"""The bound by which tests say that clients are limited, at its edges."""

import pytest

from tests.kafka_bound import BURST_S, check_bound

QUOTA = 1_000.0
REQUEST = 500.0


def samples(amount: float, at_s: float) -> list[tuple[float, float]]:
    """An amount in two samples, the first of which comes at once."""
    return [(1_000.0, amount / 2), (1_000.0 + at_s * 1_000, amount / 2)]


@pytest.mark.parametrize("at_s", [0.0, 5.0, 60.0])
def test_the_burst_and_the_quota_since_are_admitted_and_the_request_under_way(at_s: float) -> None:
    admitted = QUOTA * (BURST_S + at_s) + REQUEST
    check_bound([(0.0, 1e9), *samples(min(admitted, 2 * QUOTA * BURST_S), at_s)], QUOTA, 1_000, REQUEST)


def test_more_than_that_fails_at_any_time() -> None:
    with pytest.raises(AssertionError, match="20,000 after 5,000 ms; Kafka admits 15,500"):
        check_bound(samples(20_000, 5.0), QUOTA, 1_000, REQUEST)


def test_a_client_whose_quota_is_half_as_much_again_fails_within_thirty_seconds() -> None:
    paced = [(at_s * 1_000.0, 1.5 * QUOTA) for at_s in range(30)]
    with pytest.raises(AssertionError):
        check_bound(paced, QUOTA, 0, REQUEST)
