"""The native library for tests, and how much they fuzz it."""

import ctypes
import os
from pathlib import Path

from sluice_native.library import native_library

EXAMPLES, LONG_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "50000")), 10_000_000
TESTS = Path(__file__).parents[1]
"""The folder whose packages the tests of native code share; a process that is started needs it on its path."""

SEED = int(os.environ.get("FUZZ_SEED", "1"))


def library() -> ctypes.CDLL:
    found = native_library()
    assert found is not None, "run ./scripts/setup"
    return found
