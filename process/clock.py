"""The wall clock."""

import time


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000
