"""The jars beside pyspark's own: resolved once by the Ivy inside pyspark, checked, and kept in one folder a use.

`configs/jars.xml` lists the versions, `configs/jars.sha256` what every jar must be. As a command
(`python -m streaming.jars`) it makes both folders complete.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from state.errors import SluiceError
from streaming.errors import JarError
from streaming.java import find_java

REPOSITORY = Path(__file__).resolve().parent.parent
VERSIONS = REPOSITORY / "configs" / "jars.xml"
CHECKSUMS = REPOSITORY / "configs" / "jars.sha256"
_IVY_SETTINGS = REPOSITORY / "configs" / "ivysettings.xml"
_CONFS = ("spark", "broker")
_STAMP = "stamp.json"
_ATTEMPTS = 2  # a registry that hiccups once should not fail a first start; Ivy keeps what it has got


def spark_jars() -> list[Path]:
    """The jars to add to Spark's classpath, in order of name; downloaded and checked at the first call.

    Raises JarError (not to be had, or not the right one) and JavaError.
    """
    return _jars("spark")


def broker_jars() -> list[Path]:
    """The classpath of the embedded broker, in order of name; never to be mixed with Spark's. Raises as spark_jars."""
    return _jars("broker")


def jars_home() -> Path:
    """The folder of all downloaded jars: `$SLUICE_HOME/jars`, or `.jars` in the repository."""
    home = os.environ.get("SLUICE_HOME")
    return Path(home).absolute() / "jars" if home else REPOSITORY / ".jars"


def verify(conf: str) -> int:
    """Checks every jar of `conf` ("spark" or "broker") in full, without a download; answers how many there are.

    Raises JarError naming the first jar that is missing, unknown or differs.
    """
    folder = jars_home() / conf
    jars = sorted(folder.glob("*.jar"))
    check_jars(jars, read_checksums(CHECKSUMS, conf), f"remove {folder} and run ./scripts/setup")
    return len(jars)


def read_checksums(file: Path, conf: str) -> dict[str, str]:
    """Jar name to SHA-256 (hex) of the lines `<sum>  <conf>/<jar>` of `file`, for one conf."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {path.removeprefix(f"{conf}/"): digest for digest, path in lines if path.startswith(f"{conf}/")}


def check_jars(jars: list[Path], checksums: Mapping[str, str], mend: str) -> None:
    """Raises JarError, ending in `mend`, when `jars` are not exactly those of `checksums` (name to SHA-256)."""
    for jar in jars:
        expected = checksums.get(jar.name)
        if expected is None:
            raise JarError(f"{jar} is a jar that configs/jars.sha256 doesn't know; {mend}")
        actual = _sha256(jar)
        if actual != expected:
            raise JarError(f"{jar} has SHA-256 {actual}, expected {expected} (configs/jars.sha256); {mend}")
    missing = sorted(checksums.keys() - {jar.name for jar in jars})
    if missing:
        raise JarError(f"{missing[0]} of configs/jars.sha256 is missing; {mend}")


def _jars(conf: str) -> list[Path]:
    folder = jars_home() / conf
    if not _complete(folder):
        with _lock():
            if not _complete(folder):  # a start beside this one may have been faster
                _download(conf, folder)
    return sorted(folder.glob("*.jar"))


def _complete(folder: Path) -> bool:
    """Whether the jars lie there as they were when they were checked; judged by size, so that a start stays fast."""
    try:
        stamp = json.loads((folder / _STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp == _stamp(folder))


def _stamp(folder: Path) -> dict[str, object]:
    wanted = hashlib.sha256(VERSIONS.read_bytes() + CHECKSUMS.read_bytes()).hexdigest()
    return {"wanted": wanted, "bytes": {jar.name: jar.stat().st_size for jar in sorted(folder.glob("*.jar"))}}


@contextmanager
def _lock() -> Iterator[None]:
    """One download at a time for all processes; the lock goes with the process, whatever ends it."""
    home = jars_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        file = (home / "lock").open("w")
    except OSError as error:
        raise JarError(f"the jars can't be kept in {home} ({error}); set SLUICE_HOME to a writable folder") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(conf: str, folder: Path) -> None:
    """Puts the checked jars of `conf` into `folder`, which appears complete or not at all."""
    fresh = folder.with_name(f"{conf}.fresh")
    _resolve(conf, fresh)
    mend = "if configs/jars.xml was changed on purpose, run: python -m streaming.jars --accept; else try again later"
    check_jars(sorted(fresh.glob("*.jar")), read_checksums(CHECKSUMS, conf), mend)
    (fresh / _STAMP).write_text(json.dumps(_stamp(fresh)))
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def _resolve(conf: str, folder: Path) -> None:
    """Makes `folder` anew with the jars that Ivy finds for `conf`, less those that pyspark has."""
    retrieved = folder.with_name(f"{conf}.retrieved")
    for old in (folder, retrieved):
        shutil.rmtree(old, ignore_errors=True)
    _run_ivy(conf, retrieved)
    folder.mkdir()
    present = _names_in_pyspark() if conf == "spark" else []
    for jar in retrieved.glob("*/*.jar"):
        if not has_artifact(jar.parent.name, present):
            jar.rename(folder / jar.name)
    shutil.rmtree(retrieved)


def has_artifact(artifact: str, names: list[str]) -> bool:
    """Whether `names` (of jar files) hold `artifact`, in whatever version."""
    pattern = re.compile(re.escape(artifact) + r"-\d.*\.jar")
    return any(pattern.fullmatch(name) for name in names)


def _run_ivy(conf: str, retrieved: Path) -> None:
    java, _ = find_java()
    home = jars_home()
    command = [
        *(java, "-cp", str(_pyspark_jars() / "*"), "org.apache.ivy.Main"),
        *("-settings", str(_IVY_SETTINGS), "-ivy", str(VERSIONS), "-cache", str(home / "ivy-cache"), "-confs", conf),
        *("-retrieve", f"{retrieved}/[artifact]/[artifact]-[revision].[ext]", "-types", "jar", "bundle"),
    ]
    log = home / f"ivy-{conf}.log"
    for _ in range(_ATTEMPTS):
        with log.open("w") as output:
            ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        if ended.returncode == 0:
            return
    raise JarError(
        f"the jars of conf {conf} can't be downloaded: {_reason(log.read_text())}; check the network (proxy and"
        f" mirror settings reach Ivy through JAVA_TOOL_OPTIONS), then run ./scripts/setup; all of it: {log}"
    )


def _reason(log: str) -> str:
    """The line of an Ivy log that tells most: a failed connection before a module that isn't there."""
    lines = [line.strip() for line in log.splitlines()]
    for sign in (r"HttpClientHandler: ", r"Exception: ", r":: .*: not found"):
        for line in lines:
            if re.search(sign, line):
                return line.removeprefix("HttpClientHandler: ").strip(": ")
    return next((line for line in reversed(lines) if line), "Ivy printed nothing")


def _pyspark_jars() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarError("pyspark is not installed in this Python; run ./scripts/setup and use .venv/bin/python")
    return Path(spec.origin).parent / "jars"


def _names_in_pyspark() -> list[str]:
    return [jar.name for jar in _pyspark_jars().glob("*.jar")]


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _accept() -> None:
    """Resolves everything anew and writes down what came as what is right from now on."""
    lines = []
    with _lock():
        for conf in _CONFS:
            fresh = jars_home() / f"{conf}.fresh"
            _resolve(conf, fresh)
            lines += [f"{_sha256(jar)}  {conf}/{jar.name}\n" for jar in sorted(fresh.glob("*.jar"))]
    CHECKSUMS.write_text("".join(lines))


def main() -> None:
    """Makes both jar folders complete; exit 1 with one line when that fails."""
    parser = argparse.ArgumentParser(prog="python -m streaming.jars", description=main.__doc__)
    parser.add_argument("--accept", action="store_true", help="write configs/jars.sha256 from what the registry sends")
    try:
        if parser.parse_args().accept:
            _accept()
        spark_jars()
        broker_jars()
    except SluiceError as error:
        sys.exit(f"jars: {error}")


if __name__ == "__main__":
    main()
