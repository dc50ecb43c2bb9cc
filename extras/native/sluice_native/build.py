"""Compiles the native code, `plan.c` and `decide.c`, to a shared library: with a C compiler, or with Zig from PyPI.

`python build.py` does so unless there is a library of this source, and `setup.py` does it for a wheel. It needs nothing
of Python's headers, so one library serves every Python of a platform. Without it Python plans and decides all events.

A library's file has three things in its name: the digest of its sources, the platform, and the digest of its content,
as a process that loads half of a library is killed at the first page that isn't there.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
BUILT = _FOLDER / "built"
_SOURCES = _FOLDER / "plan.c", _FOLDER / "decide.c"
_READ = *_SOURCES, _FOLDER / "text.h"
_ZIG_LOCK = _FOLDER / "zig.lock"
_FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off")
_TIMEOUT_S = 600


class NativeBuildError(Exception):
    """The library can't be built; the message says why in a line."""


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]


def sources_digest() -> str | None:
    """The digest of the sources as they are now, and of what else makes a library; None where they can't be read."""
    try:
        read = b"".join(source.read_bytes() for source in _READ)
    except OSError:
        return None
    return _digest(read + " ".join(_FLAGS).encode())


DIGEST = sources_digest()
"""That of this process: an update in place changes the sources, and not the Python that has been imported."""


def libraries(platform: str = "", digest: str | None = DIGEST) -> list[Path]:
    """The files of libraries of these sources, or of any, for a platform such as linux-x86_64, by default this one."""
    return sorted(BUILT.glob(f"native-{digest or '*'}-{platform or sysconfig.get_platform()}-*.so"))


def is_whole(path: Path) -> bool:
    """True if the file's content is that of its name. Raises OSError."""
    return path.stem.rpartition("-")[2] == _digest(path.read_bytes())


def build(target: str = "") -> Path:
    """The library, compiled if there is none of these sources; others for the same platform are deleted.

    With a target of Zig, such as aarch64-linux-gnu.2.17, it is for that platform. Raises NativeBuildError.
    """
    digest, platform = sources_digest(), f"linux-{target.partition('-')[0]}" if target else sysconfig.get_platform()
    if digest is None:
        raise NativeBuildError(f"there are no sources in {_FOLDER}")
    try:
        found = next(filter(is_whole, libraries(platform, digest)), None)
        if found is None:
            BUILT.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=BUILT) as folder:
                made = Path(folder, "native.so")
                compile_source(made, Path(folder), target)
                found = made.replace(BUILT / f"native-{digest}-{platform}-{_digest(made.read_bytes())}.so")
        for other in {*BUILT.glob(f"native-*-{platform}*.so")} - {*filter(is_whole, libraries(platform, digest))}:
            other.unlink(missing_ok=True)  # another build may do the same
    except OSError as error:
        raise NativeBuildError(str(error)) from error
    return found


def compile_source(made: Path, folder: Path, target: str = "", flags: Sequence[str] = ()) -> None:
    """Compile the library to `made`; a compiler that has to be fetched is in `folder`. Raises NativeBuildError."""
    of_target = ("-target", target) if target else ()
    told = f'-DSOURCES="{sources_digest()}"'
    _run([*compiler_of(folder, target), *of_target, *_FLAGS, told, *flags, "-o", str(made), *map(str, _SOURCES), "-lm"])


def compiler_of(folder: Path, target: str) -> list[str]:
    own = os.environ.get("CC") or "cc"
    if not target and shutil.which(own):
        return [own]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    venv.create(folder / "zig", with_pip=True)
    python = str(folder / "zig" / "bin" / "python")
    _run([python, "-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "-r", str(_ZIG_LOCK)])
    return [python, "-m", "ziglang", "cc"]


def _run(command: Sequence[str]) -> None:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(str(error)) from error
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if "error" in line.lower()] or ended.stderr.splitlines()
        raise NativeBuildError(f"{' '.join(command[:4])} fails: {lines[0] if lines else ended.returncode}")


def main() -> None:
    """Build the library, or say in a line why there is none."""
    try:
        build()
    except NativeBuildError as error:
        print(
            f"native code: not built, so Python plans and decides all events, at several times the cost: {error}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
