"""Tests of Go modules, built from the sources that the module's own go.sum and that of `go/` pin."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.jvm.jars import home_lock, jars_home
from sluice.state.errors import SluiceError

_PINNED = Path(__file__).resolve().parent / "go"


class GoError(SluiceError):
    """Go isn't there, or a module can't be downloaded or built."""


class GoTests(NamedTuple):
    """A program with the tests of a package, and the folder in which it runs."""

    program: Path
    folder: Path


def go_tests(module: str, package: str = ".", tags: Sequence[str] = ()) -> GoTests:
    """Build the tests of a package of a module that `go/go.mod` names, unless they are built. Raises GoError."""
    found = json.loads(_go(_PINNED, "mod", "download", "-json", module))
    source = Path(found["Dir"])
    program = jars_home() / "go" / f"{module.rpartition('/')[2]}-{found['Version']}.test"
    program.parent.mkdir(parents=True, exist_ok=True)
    with home_lock(program.stem):
        if not program.exists():
            draft = program.with_suffix(f".{os.getpid()}")
            _go(source, "test", "-c", "-tags", ",".join(tags), "-o", str(draft), package)
            draft.rename(program)
    return GoTests(program, source / package)


def _go(folder: Path, *arguments: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise GoError("the tests of Go modules need Go, which isn't installed; install it, or name other suites")
    done = subprocess.run([go, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise GoError(f"go {' '.join(arguments[:2])}: {lines[-1]}; check the network and Go's version, then try again")
    return done.stdout
