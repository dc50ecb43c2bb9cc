"""Virtual environments with the wheel, outside the repository: each has what the wheel asks for, and nothing else."""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def run(*command: str | Path, folder: Path, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder that is not the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done


def metadata(wheel: Path, file: str = "METADATA") -> str:
    """A file of the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(f".dist-info/{file}")]
        return archive.read(name).decode()


def requirements(wheel: Path) -> list[str]:
    """Requirements of the wheel, those of its extras too."""
    return re.findall(r"^Requires-Dist: (.+)$", metadata(wheel), re.MULTILINE)


def _closure(requirements: Iterable[str], extras: Iterable[str]) -> set[str]:
    """The names of all distributions that the requirements lead to, each in a version that is asked for."""
    environments = [{"extra": extra} for extra in ("", *extras)]
    names: set[str] = set()
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate(each) for each in environments):
            continue
        if requirement.name.startswith("sluice-kafka"):  # the wheels themselves
            continue
        found = importlib.metadata.distribution(requirement.name)
        assert requirement.specifier.contains(found.version), f"{requirement} is not met by {found.version}"
        names |= {canonicalize_name(requirement.name)} | _closure(found.requires or (), requirement.extras)
    return names


def _with_extras_of_extras(requirements: Iterable[str], extras: Iterable[str]) -> set[str]:
    """The extras of sluice-kafka that these extras, and distributions beside it, ask for."""
    found = set(extras)
    while True:
        own = [each for each in map(Requirement, requirements) if each.name == "sluice-kafka"]
        environments = [{"extra": extra} for extra in ("", *found)]
        asked = [each for each in own if not each.marker or any(map(each.marker.evaluate, environments))]
        more = found.union(*(each.extras for each in asked))
        if more == found:
            return found
        found = more


def install(wheel: Path, folder: Path, *extras: str, beside: Sequence[Path] = ()) -> Path:
    """A virtual environment with the wheel, those `beside` it, and links to the installed packages that they ask for.

    Links instead of a download of 400 MB: what the metadata forgets can't be imported there either.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    [packages] = folder.glob("lib/python*/site-packages")
    wheels = (wheel, *beside)
    asked = [each for one in wheels for each in requirements(one)]
    for name in _closure(asked, _with_extras_of_extras(asked, extras)):
        installed = importlib.metadata.distribution(name)
        for entry in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            (packages / entry).symlink_to(str(installed.locate_file(entry)))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    run(*pip, "install", "--no-index", "--no-deps", *wheels, folder=folder)
    return folder / "bin"
