"""Which engine charges a page faster, by the number of entities charged in a micro-batch.

    python -m scripts.benchmarks.engines

prints, for each number of entities and of requests each, the CPU time per request of reading a page of 1000 entities,
charging it and writing it, with the scalar and with the array engine: the best of several runs.
"""

import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

from scripts.command import run_command
from sluice.state.arithmetic.charge import Charge
from sluice.state.quotas.kinds import QuotaKind, QuotaSettings
from sluice.state.store.pages import TOGETHER, Pages

_KNOWN = 1000
_CHARGED = (1, 4, 16, 32, TOGETHER, 128, 500)
_REQUESTS_EACH = (1, 8)
_RUNS = 7
_RUN_REQUESTS = 4000  # charged per run, over several micro-batches
_FOREVER_MS = 2**50
_SETTINGS = QuotaSettings()
_CHARGES = [
    Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 10_000.0, False, [1234.0]),
    Charge(QuotaKind.REQUEST_PERCENTAGE, "user", 1.0, False, [0.02, 0.005]),
]


@dataclass(frozen=True)
class EnginesOptions:
    """Compare the engines that charge a page, by the number of entities charged in a micro-batch."""


class _Request(NamedTuple):
    timestamp_ms: int
    charges: list[Charge]


def cost_us(entities: int, requests_each: int, together: int) -> float:
    """CPU time in microseconds per request, if `together` entities or more are charged by the array engine."""
    stored, now_ms = _known(), 1_700_000_000_000
    requests = entities * requests_each
    batches = max(_RUN_REQUESTS // requests, 3)
    began_s = time.process_time()
    for _ in range(batches):
        now_ms += 500
        page = Pages.from_bytes(stored, 1)
        page.charge(
            {_key(number): [_Request(now_ms, _CHARGES)] * requests_each for number in range(entities)},
            _SETTINGS,
            together,
        )
        stored = page.to_bytes([0], 1, _FOREVER_MS, _SETTINGS)
    return (time.process_time() - began_s) / (batches * requests) * 1e6


def _known() -> list[bytes]:
    """One stored page whose entities have all been charged."""
    page = Pages()
    page.charge({_key(number): [_Request(1_700_000_000_000, _CHARGES)] for number in range(_KNOWN)}, _SETTINGS)
    return page.to_bytes([0], 1, _FOREVER_MS, _SETTINGS)


def _key(number: int) -> str:
    return f"user-{number}|"


def run_engines(_: EnginesOptions) -> int:
    """Print the table."""
    print("entities  requests each  scalar us/request  arrays us/request")
    for requests_each in _REQUESTS_EACH:
        for entities in _CHARGED:
            scalar, arrays = (
                min(cost_us(entities, requests_each, together) for _ in range(_RUNS)) for together in (entities + 1, 1)
            )
            print(f"{entities:>8}  {requests_each:>13}  {scalar:>17.1f}  {arrays:>17.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command("engines", EnginesOptions, run_engines))
