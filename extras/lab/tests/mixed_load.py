"""A mixed load for a job, some of whose users come at the beginning and at the end only."""

from sluice_demo.load_generator import LoadGenerator
from tests.builders import creates_event

EARLY_USERS = 10
QUOTAS = [
    {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 5, "request_percentage": 5}},
    {"entity": {"client_id": None}, "quotas": {"producer_byte_rate": 100_000, "consumer_byte_rate": 100_000}},
]


def requests_of(start_ms: int) -> list[bytes]:
    """The events from this time on, in epoch milliseconds, one of which is none."""
    load = LoadGenerator(seed=11, users=100, clients=10)
    middle = [load.event(number, start_ms + number // 100) or b"" for number in range(2400)]
    overdrawn = [creates_event(f"early{number}", [60], start_ms, f"first {number}") for number in range(EARLY_USERS)]
    again = [creates_event(f"early{number}", [1], start_ms + 30, f"last {number}") for number in range(EARLY_USERS)]
    return [*overdrawn, *middle, b"no event", *again]
