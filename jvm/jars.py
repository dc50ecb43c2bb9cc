"""Jars from a Maven registry: downloaded by the Ivy inside pyspark, checked, and kept in one folder for each set.

`python -m sluice.jvm.jars` downloads those that Spark needs in addition to pyspark's own, and archives their classes.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Self
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from filelock import FileLock, Timeout

from sluice.jvm.errors import JarError
from sluice.jvm.java import find_java
from sluice.process.folders import file_sizes
from sluice.process.processes import SAID_S, run_saying
from sluice.process.trust import CURE, make_folder, stranger
from sluice.state.errors import SluiceError

REPOSITORY: Path = Path(__file__).resolve().parents[1]
"""The checkout, or where the packages are installed."""

_CONFIGS = REPOSITORY / "configs"
_HOME = "SLUICE_HOME"
_STAMP = "stamp.json"
BUILT = REPOSITORY / "jvm" / "built"
"""The folder of Sluice's own jars: the wheel has them, and ./scripts/setup makes those of a checkout."""

JAR = "[artifact]-[revision](-[classifier]).[ext]"
"""Ivy's pattern of a jar's name."""

_ACCEPT = "python -m sluice_lab.testbed.jars"
_ATTEMPTS = 2  # one failed request to a registry should not fail a first start; Ivy keeps what it has downloaded


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars for one classpath.

    `checksums` has a line `<SHA-256>  <organisation>/<module>/<revision>/<jar>` for every jar. Its jars are those that
    `versions`, an Ivy module file with a configuration `name`, asks for with all that they depend on; a set that is
    `added_to_pyspark` leaves out what pyspark has. `command` downloads the set.
    """

    name: str
    versions: Path
    checksums: Path
    command: str
    added_to_pyspark: bool

    @classmethod
    def named(cls, name: str, command: str, *, added_to_pyspark: bool = False, folder: Path = _CONFIGS) -> Self:
        """The set whose files in `folder` are `<name>-jars.xml` and `<name>-jars.sha256`."""
        files = (folder / f"{name}-jars.xml", folder / f"{name}-jars.sha256")
        return cls(name, *files, command, added_to_pyspark=added_to_pyspark)

    @property
    def folder(self) -> Path:
        """The folder of the jars."""
        return jars_home() / self.name

    def paths(self) -> list[Path]:
        """The jars, sorted by name; downloaded and checked at the first call.

        Raises JarError (can't be downloaded, not the right one, or another user's) and JavaError.
        """
        if not self.complete:
            self._jars()  # what can't be read can't be replaced either
            with home_lock(self.name):
                if not self.complete:  # another process may have downloaded them meanwhile
                    self._make_complete()
        return self._jars()

    def verify(self) -> int:
        """Checks every jar in full, without a download; returns how many there are.

        Raises JarError naming the first jar that is missing, unknown or differs.
        """
        jars = self._jars()
        fix = "run ./scripts/setup" if in_checkout() else f"run {sys.executable} -m {self.command}"
        if not jars:
            raise JarError(f"no jars in {self.folder} yet; {fix}")
        check_jars(jars, self.expected(), f"remove {self.folder} and {fix}", self._listed_in)
        return len(jars)

    def expected(self) -> dict[str, str]:
        """Jar name to SHA-256 (hex)."""
        return {path.rpartition("/")[2]: digest for digest, path in self._listed()}

    def _listed(self) -> Iterator[list[str]]:
        return (line.split() for line in self.checksums.read_text().splitlines())

    @property
    def _listed_in(self) -> str:
        return f"{self.checksums.parent.name}/{self.checksums.name}"  # an extra's set lies outside of Sluice's package

    def _jars(self) -> list[Path]:
        """Those that are there. Raises JarError for one that is another user's, or that this account can't read."""
        try:
            jars = sorted(path for path in self.folder.iterdir() if path.suffix == ".jar")
            check_owner("jars", self.folder, *jars)
            for jar in jars:
                jar.open("rb").close()
        except FileNotFoundError:
            return []
        except OSError as error:
            cure = f"give this account ({os.geteuid()}) the right to read it, or set SLUICE_HOME to a folder of its own"
            raise JarError(f"{error.filename} can't be read ({error.strerror}); {cure}") from error
        return jars

    @property
    def complete(self) -> bool:
        """True if the jars are there that were checked; compares sizes only, so that a start stays fast."""
        try:
            stamp = json.loads((self.folder / _STAMP).read_text())
        except (OSError, ValueError):
            return False
        return bool(stamp == self._stamp(self.folder))

    def _stamp(self, folder: Path) -> dict[str, object]:
        wanted = hashlib.sha256(self.versions.read_bytes() + self.checksums.read_bytes()).hexdigest()
        return {"wanted": wanted, "bytes": {jar.name: jar.stat().st_size for jar in sorted(folder.glob("*.jar"))}}

    def _make_complete(self) -> None:
        """Downloads the jars, unless the right ones are there; the folder changes in one step."""
        try:
            check_jars(self._jars(), self.expected(), "", self._listed_in)
        except JarError:
            module = jars_home() / f"ivy-{self.name}.xml"
            module.write_text(self._module())
            fresh = self.retrieved(module, JAR)
            fix = f"if {self.versions.name} was changed on purpose, run: {_ACCEPT} {self.name} --accept; else try"
            check_jars(sorted(fresh.glob("*.jar")), self.expected(), f"{fix} again later", self._listed_in)
            shutil.rmtree(self.folder, ignore_errors=True)
            fresh.rename(self.folder)
        (self.folder / _STAMP).write_text(json.dumps(self._stamp(self.folder)))

    def _module(self) -> str:
        """An Ivy module file of exactly the listed jars: no POM is asked for, which takes most of a first start."""
        jars: dict[tuple[str, str, str], list[str]] = {}
        for _, path in self._listed():
            organisation, module, revision, jar = path.split("/")
            classifier = jar.removeprefix(f"{module}-{revision}").removesuffix(".jar").removeprefix("-")
            jars.setdefault((organisation, module, revision), []).append(
                f'<artifact name="{module}" type="jar" m:classifier="{classifier}"/>'
            )
        # Ivy takes only the first of two dependencies on one module.
        dependencies = [
            f'<dependency org="{organisation}" name="{module}" rev="{revision}" transitive="false"'
            f' conf="{self.name}->default">{"".join(artifacts)}</dependency>'
            for (organisation, module, revision), artifacts in jars.items()
        ]
        return (
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
            f'<info organisation="sluice" module="{self.name}"/><configurations><conf name="{self.name}"/>'
            f"</configurations><dependencies>{''.join(dependencies)}</dependencies></ivy-module>"
        )

    @property
    def _cache(self) -> Path:
        return jars_home() / "ivy-cache" / self.name

    def _progress(self) -> str:
        wanted, found = self.expected(), [(path.name, size) for path, size in file_sizes(self._cache)]
        count, mb = len(wanted.keys() & {name for name, _ in found}), sum(size for _, size in found) / 1e6
        return f"jars: fetching {self.name} {count} of {len(wanted)} ({mb:.0f} MB)"

    def retrieved(self, module: Path, pattern: str, *options: str) -> Path:
        """A new folder with the jars that Ivy finds for a module file, each at the path of the pattern."""
        java, _ = find_java()
        home = jars_home()
        retrieved = home / f"{self.name}.retrieved"
        shutil.rmtree(retrieved, ignore_errors=True)
        command = [
            *(java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *proxy_options(), *options),
            *("-cp", str(pyspark_jars() / "*"), "org.apache.ivy.Main"),
            *("-settings", str(_CONFIGS / "ivysettings.xml"), "-ivy", str(module)),
            *("-cache", str(self._cache), "-confs", self.name),
            *("-retrieve", f"{retrieved}/{pattern}", "-types", "jar", "bundle"),
        ]
        log = home / f"ivy-{self.name}.log"
        for _ in range(_ATTEMPTS):
            with log.open("w") as output:
                ended = run_saying(command, self._progress, stdout=output, stderr=subprocess.STDOUT)
            if ended.returncode == 0:
                return retrieved
        raise JarError(
            f"the jars of conf {self.name} can't be downloaded: {_reason(log.read_text())}; check the disk's room and"
            " the network (a mirror, and a proxy with a password, reach Ivy through JAVA_TOOL_OPTIONS), then try again;"
            f" all of it: {log}"
        )


SPARK_JARS = JarSet("spark", _CONFIGS / "jars.xml", _CONFIGS / "jars.sha256", "sluice.jvm.jars", added_to_pyspark=True)
"""Jars that Spark's classpath needs in addition to those of pyspark."""


def in_checkout() -> bool:
    """True if Sluice runs from its repository rather than from an installed distribution."""
    return (REPOSITORY / "scripts" / "setup").is_file()


def built_jar(name: str, folder: Path | None = None, distribution: str = "sluice-kafka") -> Path:
    """One of Sluice's own jars; of an extra in its folder. Raises JarError if it was not built."""
    jar = (folder or BUILT) / name
    if not jar.is_file():
        fix = "run ./scripts/setup" if in_checkout() else f"install a release of {distribution}, whose wheel has it"
        raise JarError(f"{jar} is missing; {fix}")
    return jar


def jars_home() -> Path:
    """The folder of all downloaded jars: `$SLUICE_HOME/jars`; else `.jars` in a checkout, or in the user's cache."""
    return REPOSITORY / ".jars" if in_checkout() and not os.environ.get(_HOME) else sluice_home() / "jars"


def sluice_home() -> Path:
    """The folder of what Sluice downloads and of its runs: `$SLUICE_HOME`; else `sluice` in the user's cache.

    Without a home it is in the folder of temporary files, where another user may have made it before: who takes code or
    settings from it asks `check_owner`.
    """
    if home := os.environ.get(_HOME):
        return Path(home).absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "sluice"
    except RuntimeError:  # a user without a name, in a container without HOME
        return Path(gettempdir()) / f"sluice-{os.getuid()}"


def check_owner(what: str, *paths: Path) -> None:
    """Raise JarError if another user decides what is at a path: code and settings from there would be theirs."""
    for path in paths:
        if found := stranger(path):
            raise JarError(f"{found}, so no {what} are taken from there; {CURE}")


def make_own(folder: Path, what: str) -> None:
    """Make a folder of this user if it is missing. Raises OSError, and JarError as `check_owner`."""
    check_owner(what, folder)
    make_folder(folder)
    check_owner(what, folder)  # another may have been faster


def check_jars(jars: list[Path], checksums: Mapping[str, str], fix: str, listed_in: str) -> None:
    """Raises JarError, ending in `fix`, unless `jars` are exactly those of `checksums` (name to SHA-256)."""
    for jar in jars:
        expected = checksums.get(jar.name)
        if expected is None:
            raise JarError(f"{jar} is a jar that {listed_in} doesn't know; {fix}")
        actual = sha256(jar)
        if actual != expected:
            raise JarError(f"{jar} has SHA-256 {actual}, expected {expected} ({listed_in}); {fix}")
    missing = sorted(checksums.keys() - {jar.name for jar in jars})
    if missing:
        raise JarError(f"{missing[0]} of {listed_in} is missing; {fix}")


def run_download_command(jars: JarSet, then: Callable[[], object] = lambda: None) -> None:
    """Download the jars of a set that are missing, check all, then do more; exit 1 with one line if that fails."""
    try:
        jars.paths()
        then()
    except SluiceError as error:
        sys.exit(f"jars: {error}")


def proxy_options() -> list[str]:
    """Java's options for the proxies of HTTP_PROXY, HTTPS_PROXY and NO_PROXY, which pip takes and Java doesn't."""
    found, options = getproxies_environment(), list[str]()
    for scheme in ("http", "https"):
        given = found.get(scheme, "")
        address = urlsplit(given if "//" in given else f"//{given}")
        with suppress(ValueError):  # of a port that is no number: pip has said it
            port = address.port or (443 if address.scheme == "https" else 80)
            options += [f"-D{scheme}.proxyHost={address.hostname}", f"-D{scheme}.proxyPort={port}"] * bool(given)
    names = [name.strip().lstrip(".") for name in found.get("no", "").split(",") if name.strip()]
    return options + ([f"-Dhttp.nonProxyHosts={'|'.join(f'{each}|*.{each}' for each in names)}"] if names else [])


@contextmanager
def home_lock(name: str) -> Iterator[None]:
    """One download of this name at a time for all processes; the lock goes with the process, however it ends."""
    home = jars_home()
    lock = FileLock(home / f"lock-{name}", fallback_to_soft=False)  # a soft lock would outlive a killed process
    try:
        make_own(home, "jars")
        while True:
            try:
                lock.acquire(timeout=SAID_S)
                break
            except Timeout:
                print(f"jars: another process makes {name} ready; waiting for it", file=sys.stderr, flush=True)
        yield
    except OSError as error:
        cure = "make room there, or set SLUICE_HOME to a writable folder"
        raise JarError(f"the jars can't be kept in {home} ({error}); {cure}") from error
    finally:
        lock.release()


def _reason(log: str) -> str:
    """The most telling line of an Ivy log: a failed connection before a module that doesn't exist."""
    lines = [line.strip() for line in log.splitlines()]
    for sign in (r"HttpClientHandler: ", r"Exception: ", r":: .*: not found"):
        for line in lines:
            if re.search(sign, line):
                return line.removeprefix("HttpClientHandler: ").strip(": ")
    return next((line for line in reversed(lines) if line), "Ivy printed nothing")


def pyspark_jars() -> Path:
    """The folder of pyspark's own jars. Raises JarError without pyspark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        fix = "run ./scripts/setup and use .venv/bin/python" if in_checkout() else "install the extra job"
        raise JarError(f"pyspark is not installed in this Python; {fix}")
    return Path(spec.origin).parent / "jars"


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


if __name__ == "__main__":
    from sluice.jvm.class_archive import SPARK_CLASSES  # which imports this module

    run_download_command(SPARK_JARS, SPARK_CLASSES.make)
