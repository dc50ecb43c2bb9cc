"""The native library is that of the Python which uses it; any fault of its file leaves all work to Python."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from sluice.jvm.jars import REPOSITORY
from sluice.streaming.enforce.engine import engine_of
from sluice_native import build as native_build
from sluice_native import library as native_library
from sluice_native.build import build, compile_source, libraries
from sluice_native.engine import NativeEngine

_LOOK = """
import sys
from pathlib import Path
from sluice_native import build, library
build.BUILT = Path(sys.argv[1])
library.ABI += int(sys.argv[2])
print(library.native_code().reason or "loaded")
"""
_SOURCES = Path(native_build.__file__).parent


def look_in(folder: Path, package: Path = REPOSITORY, later: int = 0) -> str:
    """The answer of a process that looks for its library in this folder, of so many interfaces later.

    No library kills it.
    """
    ended = subprocess.run(
        [sys.executable, "-c", _LOOK, str(folder), str(later)],
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def named(folder: Path, content: bytes, digest: str = str(native_build.DIGEST)) -> Path:
    """A file of this content, named as a whole library of sources with this digest."""
    name = build().name.rpartition("-")[0].replace(str(native_build.DIGEST), digest)
    path = folder / f"{name}-{sha256(content).hexdigest()[:12]}.so"
    path.write_bytes(content)
    return path


def own(folder: Path) -> Path:
    """A copy of the library."""
    return Path(shutil.copy(build(), folder))


def cut(part: float) -> Callable[[Path], object]:
    """Leaves so much of the library: each page that is missing would kill the process that reads it."""
    return lambda folder: (path := own(folder)).write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])


_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "none": (lambda _: None, "there is none for "),
    "empty": (cut(0), "is damaged; delete it, and "),
    "half": (cut(0.5), "is damaged; delete it, and "),
    "nine tenths": (cut(0.9), "is damaged; delete it, and "),
    "of another release": (lambda folder: named(folder, build().read_bytes(), "0" * 12), "is of another release; "),
    "text": (lambda folder: named(folder, b"this is no library"), "native-"),
    "another library": (
        lambda folder: named(folder, Path(_a_library()).read_bytes()),
        "is not Sluice's, or of another",
    ),
    "a folder": (lambda folder: (folder / build().name).mkdir(), "Is a directory"),
    "not readable": (lambda folder: own(folder).chmod(0), "Permission denied"),
    "of other sources": (
        lambda folder: named(folder, build().read_bytes().replace(str(native_build.DIGEST).encode(), b"0" * 12)),
        "is of another release; ",
    ),
}


def _a_library() -> str:
    """A library of this platform that isn't Sluice's."""
    import _ctypes

    return str(_ctypes.__file__)


@pytest.mark.parametrize("fault", _FAULTS)
def test_python_does_all_where_the_library_can_t_be_used_and_says_why(fault: str, tmp_path: Path) -> None:
    make, expected = _FAULTS[fault]
    folder = tmp_path / "built"
    folder.mkdir()
    make(folder)
    if fault == "not readable" and _may_read_all(folder):
        pytest.skip("this user may read all")

    found = look_in(folder)

    assert expected in found
    assert "\n" not in found


def _may_read_all(folder: Path) -> bool:
    try:
        return bool([path.read_bytes() for path in folder.iterdir()])
    except PermissionError:
        return False


def test_a_library_of_another_interface_is_not_used_whatever_its_name_says(tmp_path: Path) -> None:
    own(tmp_path)

    assert look_in(tmp_path) == "loaded"
    assert "is of another release; " in look_in(tmp_path, later=1)


def test_a_whole_library_beside_a_damaged_one_is_used(tmp_path: Path) -> None:
    own(tmp_path)
    (tmp_path / build().name.replace(build().stem[-12:], "0" * 12)).write_bytes(b"")

    assert look_in(tmp_path) == "loaded"


def package_copy(folder: Path) -> Path:
    """Packages of their own, as of an install, and the folder of the engine's."""
    no = shutil.ignore_patterns("__pycache__", "*.jar")
    shutil.copytree(REPOSITORY / "sluice", folder / "sluice", ignore=no)
    return Path(shutil.copytree(_SOURCES, folder / "sluice_native", ignore=no))


def test_an_install_without_sources_uses_its_library_and_none_of_another_release(tmp_path: Path) -> None:
    native = package_copy(tmp_path)
    for path in (*native.glob("*.c"), *native.glob("*.h")):
        path.unlink()

    assert look_in(native / "built", tmp_path) == "loaded"
    assert "is damaged" in look_in_after_cut(native / "built", tmp_path)


def look_in_after_cut(folder: Path, package: Path) -> str:
    [path] = folder.glob("*.so")
    path.write_bytes(path.read_bytes()[:-1])
    return look_in(folder, package)


_UPGRADED = """
import os, subprocess, sys
from pathlib import Path
from sluice_native import build, daemon, library
from sluice.streaming.workers import engine_start

os.environ[engine_start.NATIVE_VARIABLE] = engine_start.NATIVE_LOADED
daemon.load(lambda: None)
native = Path(build.__file__).parent
source = native / "decide.c"
source.write_text(source.read_text().replace("double burst, span_s;", "double new_setting, burst, span_s;"))
(native / "library.py").write_text("raise RuntimeError('the next release')")
subprocess.run([sys.executable, str(native / "build.py")], check=True)
worker = os.fork()
if not worker:
    code = library.native_code()
    print(code.library.native_sources().decode() == build.DIGEST != build.sources_digest(), flush=True)
    os._exit(0)
os.waitpid(worker, 0)
"""


def test_a_worker_that_is_forked_after_an_update_in_place_has_the_library_of_its_python(tmp_path: Path) -> None:
    package_copy(tmp_path)

    ended = subprocess.run(
        [sys.executable, "-c", _UPGRADED], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900
    )

    assert (ended.stdout, ended.stderr) == ("True\n", "")


def fake_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Builds into this folder; a compilation takes no time and is a copy."""
    content = build().read_bytes()
    monkeypatch.setattr(native_build, "BUILT", folder)
    monkeypatch.setattr(native_build, "compile_source", lambda made, *_: made.write_bytes(content))


def test_a_build_for_another_platform_leaves_this_one_s_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_compiler(monkeypatch, tmp_path)
    here, elsewhere = build(), build("aarch64-linux-gnu.2.17")

    assert here.exists()
    assert elsewhere.name == here.name.replace(sysconfig.get_platform(), "linux-aarch64")
    assert libraries() == [here]


def test_a_build_deletes_what_this_platform_can_t_use_any_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_compiler(monkeypatch, tmp_path)
    here = build()
    here.write_bytes(b"")
    older = here.with_name(here.name.replace(str(native_build.DIGEST), "0" * 12))
    older.write_bytes(b"")

    assert build() == here
    assert list(tmp_path.iterdir()) == [here]
    assert native_build.is_whole(here)


def test_builds_at_once_leave_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also if the compiler makes another file each time."""
    content, numbers = build().read_bytes(), iter(range(99))
    fake_compiler(monkeypatch, tmp_path)
    monkeypatch.setattr(
        native_build, "compile_source", lambda made, *_: made.write_bytes(content + b"%d" % next(numbers))
    )
    with ThreadPoolExecutor(4) as threads:
        found = [each.result() for each in [threads.submit(build) for _ in range(8)]]

    assert all(path.exists() and native_build.is_whole(path) for path in found)


def test_the_number_of_the_interface_changes_with_it() -> None:
    """It has functions and structs, in C and in Python."""
    c = "".join((_SOURCES / name).read_text() for name in ("plan.c", "decide.c"))
    functions = re.findall(r"^API [^{;]*", c, re.MULTILINE)
    structs = re.findall(r"typedef struct \{[^}]*\} Settings;", c)
    assert len(functions) == len(native_library._FUNCTIONS)
    assert len(structs) == 2
    source = inspect.getsource(native_library)
    python = [
        str(ast.get_source_segment(source, node))
        for node in ast.parse(source).body
        if (isinstance(node, ast.ClassDef) and node.name.endswith("Settings"))
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_FUNCTIONS")
    ]
    assert len(python) == 3
    text = " ".join(" ".join([*functions, *structs, *python]).split())

    assert (3, sha256(text.encode()).hexdigest()[:12]) == (native_library.ABI, native_library.INTERFACE), (
        "the interface has changed: raise ABI in library.py, text.h and here by one, and set INTERFACE"
    )
    assert re.findall(r"enum \{ ABI = (\d+) \}", (_SOURCES / "text.h").read_text()) == [str(native_library.ABI)]


def test_a_library_says_the_sources_that_it_was_compiled_of(tmp_path: Path) -> None:
    compile_source(tmp_path / "native.so", tmp_path)

    assert native_library.load(tmp_path / "native.so").native_sources().decode() == native_build.DIGEST


def test_this_environment_plans_and_decides_natively() -> None:
    """Tests that compare the engine of a process with Python would compare Python with itself."""
    engine = engine_of(is_native=True)

    assert type(engine) is NativeEngine
    assert engine.unusable is None
