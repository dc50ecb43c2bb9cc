"""Sluice as executors run it: its wheel and the libraries, in a folder without a way back to the checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

from sluice.jvm.jars import REPOSITORY
from sluice.state.errors import SluiceError

_BUILD_S = 300


class InstalledSluice:
    """A folder with Sluice from its wheel and links to the libraries; `pythonpath` names both."""

    def __init__(self, folder: Path) -> None:
        """Build the wheel and unpack it. Raises WheelError."""
        folder.mkdir(parents=True)
        self.python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
        self._sluice, self._libraries = folder / "sluice", folder / "libraries"
        _unpack(_wheel(folder), self._sluice)
        _link_libraries(self._libraries)

    @property
    def pythonpath(self) -> str:
        """The value of PYTHONPATH for the executors."""
        return f"{self._sluice}:{self._libraries}"

    @property
    def spark_home(self) -> Path:
        """Spark, as the machines of the cluster have it."""
        return self._libraries / "pyspark"


class WheelError(SluiceError):
    """The wheel can't be built."""


def _wheel(folder: Path) -> Path:
    """Build from a copy, so that the build leaves nothing in the checkout."""
    source = folder / "source"
    shutil.copytree(REPOSITORY / "sluice", source / "sluice", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_S, cwd=folder)
    if done.returncode:
        raise WheelError(f"the wheel can't be built: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
    shutil.rmtree(source)
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)


def _link_libraries(target: Path) -> None:
    """Everything beside PySpark but Sluice itself, which is installed as a link into the checkout."""
    target.mkdir()
    for entry in Path(pyspark.__file__).parents[1].iterdir():
        if entry.suffix != ".pth" and "sluice" not in entry.name and entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)
