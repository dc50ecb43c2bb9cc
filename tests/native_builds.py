"""The native library for tests, also with sanitizers, and how much they fuzz it."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.streaming.native.build import NativeBuildError, compile_source
from sluice.streaming.native.library import native_library

EXAMPLES, LONG_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100000")), 10_000_000
SEED = int(os.environ.get("FUZZ_SEED", "1"))

_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


def library() -> ctypes.CDLL:
    found = native_library()
    assert found is not None, "run ./scripts/setup"
    return found


def sanitized_library(folder: Path) -> tuple[Path, dict[str, str]]:
    """The library with AddressSanitizer and UndefinedBehaviorSanitizer, which end the process at the first fault.

    And the environment that it needs. Skips the test where the compiler has none.
    """
    made = folder / "native.so"
    try:
        compile_source(made, folder, flags=_SANITIZERS)
    except NativeBuildError as error:
        pytest.skip(f"the compiler has no sanitizers: {error}")
    runtime = subprocess.run(
        [str(shutil.which("cc")), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return made, {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0,allocator_may_return_null=1",  # Python keeps what it has at its end
        "PYTHONMALLOC": "malloc",
    }
