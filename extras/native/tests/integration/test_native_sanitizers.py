"""Native code under AddressSanitizer and UndefinedBehaviorSanitizer, which end the process at the first fault."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from native_fuzz.builds import SEED, TESTS
from sluice.jvm.jars import REPOSITORY
from sluice_native.build import NativeBuildError, compile_source

_FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-Og")  # a fifth of the time of -O1
_FUZZ = """
import sys
from importlib import import_module
from pathlib import Path
from sluice_native.library import load
print(*import_module(sys.argv[1]).compare(load(Path(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])))
"""


class Sanitized(NamedTuple):
    """The library with both sanitizers, and the environment that it needs."""

    library: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    """Compiled once for all tests. Skips them where the compiler has no sanitizers."""
    folder = tmp_path_factory.mktemp("sanitized")
    made = folder / "native.so"
    try:
        compile_source(made, folder, flags=_FLAGS)
    except NativeBuildError as error:
        pytest.skip(f"the compiler has no sanitizers: {error}")
    runtime = subprocess.run(
        [str(shutil.which("cc")), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    environment = {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0,allocator_may_return_null=1",  # Python keeps what it has at its end
        "PYTHONMALLOC": "malloc",
    }
    return Sanitized(made, environment)


@pytest.mark.parametrize(
    ("fuzz", "events"),
    [
        ("native_fuzz.plans", 4_000),
        ("native_fuzz.pages", 1_000),
        pytest.param("native_fuzz.plans", 40_000, marks=pytest.mark.long),
        pytest.param("native_fuzz.pages", 10_000, marks=pytest.mark.long),
    ],
)
def test_no_event_and_no_page_makes_the_sanitizers_speak(fuzz: str, events: int, sanitized: Sanitized) -> None:
    command = [sys.executable, "-c", _FUZZ, fuzz, str(sanitized.library), str(events), str(SEED)]
    ended = subprocess.run(
        command,
        env=os.environ | sanitized.environment | {"PYTHONPATH": str(TESTS)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert ended.returncode == 0, ended.stderr[-4000:]
