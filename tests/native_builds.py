"""The native library for tests, and how much they fuzz it."""

import ctypes
import os

from sluice.streaming.native.library import native_library

EXAMPLES, LONG_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100000")), 10_000_000
SEED = int(os.environ.get("FUZZ_SEED", "1"))


def library() -> ctypes.CDLL:
    found = native_library()
    assert found is not None, "run ./scripts/setup"
    return found
