"""Tests of Go modules, built from the sources that the module's own go.sum and that of `go/` pin."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zipfile import ZipFile

from scripts.testbed.processes import output_of
from sluice.jvm.jars import home_lock, jars_home
from sluice.state.errors import SluiceError

_PINNED = Path(__file__).resolve().parent / "go"


class GoError(SluiceError):
    """Go isn't there, or a module can't be downloaded or built."""


class GoTests(NamedTuple):
    """A program with the tests of a package, and the folder in which it runs."""

    program: Path
    folder: Path


class Change(NamedTuple):
    """The text of a source that is built as another one."""

    source: str
    text: str
    instead: str


def go_tests(module: str, package: str = ".", tags: Sequence[str] = (), change: Change | None = None) -> GoTests:
    """Build the tests of a package of a module that `go/go.mod` names, unless they are built. Raises GoError."""
    found = json.loads(_go(_PINNED, "mod", "download", "-json", module))
    source = Path(found["Dir"])
    name = f"{module.rpartition('/')[2]}-{found['Version']}{'-changed' if change else ''}"
    program = jars_home() / "go" / f"{name}.test"
    program.parent.mkdir(parents=True, exist_ok=True)
    with home_lock(program.stem):
        if not program.exists():
            draft = program.with_suffix(f".{os.getpid()}")
            with TemporaryDirectory() as folder:
                built = source if change is None else _changed(Path(found["Zip"]), source.name, change, Path(folder))
                _go(built, "test", "-c", "-tags", ",".join(tags), "-o", str(draft), package)
            draft.rename(program)
    return GoTests(program, source / package)


def _changed(archive: Path, name: str, change: Change, folder: Path) -> Path:
    """The sources of a module, unpacked into `folder`, with the change: in Go's own cache none can be made."""
    with ZipFile(archive) as files:
        files.extractall(folder)
    [sources] = folder.rglob(name)
    source = sources / change.source
    source.write_text(source.read_text().replace(change.text, change.instead))
    return sources


def _go(folder: Path, *arguments: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise GoError("the tests of Go modules need Go, which isn't installed; install it, or name other suites")
    problem = f"go {' '.join(arguments[:2])}: {{}}; check the network and Go's version, then try again"
    return output_of([go, *arguments], GoError, problem, cwd=folder)
