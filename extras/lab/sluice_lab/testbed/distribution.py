"""Builds Sluice's distributions from a copy of the checkout, so that the build leaves nothing in it."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.jvm.jars import REPOSITORY
from sluice.state.errors import SluiceError
from sluice_lab.testbed.processes import output_of

BESIDE = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
"""Files that a build needs beside the folder `sluice`."""

EXTRAS = ("elastic", "insight", "native", "proxy", "reading", "shared_storage", "toolbox", "http", "telemetry", "demo")
"""Folders of `extras/` that are distributions of their own: sluice-kafka-insight and so on."""

_BUILD_S = 300


class BuildError(SluiceError):
    """The wheel or the sdist can't be built."""


def build_wheel(out: Path, variables: Mapping[str, str] | None = None, *, through_sdist: bool = False) -> Path:
    """The wheel of sluice-kafka in the folder `out`; with `through_sdist` built from the sdist, which is there too.

    `variables` are added to the environment. Raises BuildError with the last line of the build.
    """
    with TemporaryDirectory(prefix="sluice-source-") as folder:
        source = Path(folder, "source")  # without symbolic links, as in an sdist
        shutil.copytree(REPOSITORY / "sluice", source / "sluice", ignore=shutil.ignore_patterns("__pycache__"))
        for name in BESIDE:
            shutil.copy(REPOSITORY / name, source)
        _build(source, out, variables or {}, through_sdist)
    (wheel,) = out.glob("sluice_kafka-*.whl")
    return wheel


def build_extra(
    extra: str, out: Path, variables: Mapping[str, str] | None = None, *, through_sdist: bool = False
) -> Path:
    """The wheel of one of EXTRAS, as `build_wheel` makes that of the core."""
    with TemporaryDirectory(prefix="sluice-source-") as folder:
        source = Path(folder, "extras", extra)
        no = shutil.ignore_patterns("__pycache__", "tests", "*.egg-info")
        shutil.copytree(REPOSITORY / "extras" / extra, source, ignore=no)
        _build(source, out, variables or {}, through_sdist)
    (wheel,) = out.glob(f"sluice_kafka_{extra}-*.whl")
    return wheel


def _build(source: Path, out: Path, variables: Mapping[str, str], through_sdist: bool) -> None:
    kind = () if through_sdist else ("--wheel",)
    here = ("--no-isolation", "--skip-dependency-check")  # a check takes two more processes for each build
    command = [sys.executable, "-m", "build", *kind, *here, "--outdir", str(out), str(source)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"timeout": _BUILD_S, "cwd": source.parent, "env": environment | dict(variables)}
    output_of(command, BuildError, "the wheel can't be built: {}", **options)
