"""Finds the Java virtual machine that Spark and Ivy run on."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from sluice.jvm.environment import without_java_options
from sluice.jvm.errors import JavaError

OLDEST, NEWEST = 17, 21
NEEDED_MODULES = frozenset(
    (
        *("java.desktop", "java.logging", "java.management", "java.naming", "java.security.jgss", "java.security.sasl"),
        *("java.sql", "java.xml", "jdk.incubator.vector", "jdk.security.auth", "jdk.unsupported"),
    )
)
"""Modules that Spark, Hadoop, Kafka's client and their log load at their start."""

_FIX = f"install Java {OLDEST} or {NEWEST}, and set JAVA_HOME if it is not the first java on PATH"


def parse_java_version(banner: str) -> int:
    """Major version out of what `java -version` prints: 17 of `version "17.0.15"`, 8 of `version "1.8.0_412"`.

    Raises JavaError when the text holds no version.
    """
    found = re.search(r'version "(?:1\.)?(\d+)', banner)
    if found is None:
        last_line = (banner.strip().splitlines() or ["nothing"])[-1]
        raise JavaError(f"java -version answers with no version ({last_line}); {_FIX}")
    return int(found.group(1))


def check_java_version(version: int, executable: str) -> None:
    """Raises JavaError when `version` is older than Spark needs."""
    if version < OLDEST:
        raise JavaError(f"{executable} is Java {version}, which is too old; {_FIX}")


def find_java() -> tuple[str, int]:
    """(executable, major version) of the Java that Spark will use: JAVA_HOME first, then PATH.

    Raises JavaError when there is none, it doesn't run, is older than 17 or lacks a module.
    """
    executable = _executable()
    version = parse_java_version(java_banner(executable))
    check_java_version(version, executable)
    if (modules := _modules(executable)) and (lacking := sorted(NEEDED_MODULES - modules)):
        raise JavaError(
            f"{executable} is without {', '.join(lacking)}, as jlink makes it; {_FIX}: one with all modules"
        )
    return executable, version


def _modules(executable: str) -> set[str]:
    """The modules by its file `release`, which jlink writes too; none if unknown."""
    with suppress(OSError):
        said = (Path(executable).resolve().parent.parent / "release").read_text(errors="replace")
        return {name for names in re.findall(r'^MODULES="(.*)"', said, re.MULTILINE) for name in names.split()}
    return set()


@cache  # a job's start asks several times
def java_banner(executable: str) -> str:
    """The output of `java -version`, which names the build. Raises JavaError when it doesn't run."""
    try:
        shown = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
            env=without_java_options(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{executable} can't be run ({error}); {_FIX}") from error
    return shown.stderr + shown.stdout


def _executable() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not executable.is_file():
            raise JavaError(f"JAVA_HOME is {home}, but there is no bin/java in it; {_FIX}")
        return str(executable)
    found = shutil.which("java")
    if found is None:
        raise JavaError(f"no java on PATH and JAVA_HOME is not set; {_FIX}")
    return found
