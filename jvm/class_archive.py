"""Archives of the classes of a class path, from which Java takes them instead of from jars (class data sharing).

`python -m sluice.jvm.jars` makes the job's. A start with it takes two thirds to three quarters of the CPU time to the
first decision. A file fits one Java and one class path; its name says which. Without one, Java loads classes as ever.
"""

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sluice.jvm.errors import JavaError
from sluice.jvm.jars import REPOSITORY, SPARK_JARS, check_owner, home_lock, jars_home, pyspark_jars
from sluice.jvm.java import find_java, java_banner
from sluice.process.processes import run_saying
from sluice.state.errors import SluiceError

ARCHIVE_OPTION = "-XX:SharedArchiveFile="
_OWNER_ONLY = 0o600
_LONGEST_CLASS_PATH_BYTES = 100_000
"""The longest class path with an archive: Linux takes at most 128 KiB in one argument of a process."""

_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""No word of the classes of the list that a Java doesn't have or can't archive."""


class ClassArchive(NamedTuple):
    """The archive for a class path, whose file need not be there."""

    file: Path
    class_path: Sequence[Path]

    @property
    def options(self) -> list[str]:
        """The options of a Java that uses it; one that doesn't fit, or is damaged, is left aside without a word."""
        unmoved = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")  # else Java moves it all
        used = ("-Xshare:auto", f"{ARCHIVE_OPTION}{self.file}", "-XX:+VerifySharedSpaces")
        return [*used, *unmoved, "-Xlog:cds*=off,class+path=off"]


@dataclass(frozen=True, slots=True)
class ArchivedClasses:
    """The classes of a class path, and the archive of them.

    `owner` is the word for them in messages, such as `Spark's`. `names` is a file with names of the classes, and of
    their lambdas, in the form that Java reads, compressed. `jars` gives the class path. The archive's file is
    `<prefix>-<key>.jsa`.
    """

    owner: str
    prefix: str
    names: Path
    jars: Callable[[], list[Path]]

    def find(self) -> ClassArchive | None:
        """The archive that fits this Java and these jars; None if there is none. Raises JarError and JavaError."""
        archive = self._archive()
        if not (archive.file.is_file() and _has_short_path(archive.class_path)):
            return None
        check_owner("classes", archive.file)  # Java runs what is in it
        return archive

    def options(self) -> list[str]:
        """The options of a Java that takes them from the archive that fits; none without one. Raises as `find`."""
        archive = self.find()
        return archive.options if archive else []

    def make(self) -> None:
        """Make the archive unless it is there, and remove those of other jars. Raises JarError and JavaError.

        Says on standard error that it does, or why it can't.
        """
        archive = self._archive()
        if archive.file.is_file() or not _has_short_path(archive.class_path):
            return
        sys.stderr.write(f"jars: archiving {self.owner} classes for this Java (once, half a minute)\n")  # in one piece
        try:
            with home_lock(self.prefix):
                if not archive.file.is_file():  # another process may have made it meanwhile
                    self._dump(archive)
                    for other in set(jars_home().glob(f"{self.prefix}-*.jsa")) - {archive.file}:
                        other.unlink()  # a Java that uses it keeps it
        except (SluiceError, OSError) as error:  # as of a disk that is full, or a Java without archives
            slower = f"Java loads {self.owner} classes without an archive, which takes longer"
            print(f"jars: {error}; {slower}", file=sys.stderr)

    def _archive(self) -> ClassArchive:
        java, _ = find_java()
        jars = self.jars()
        key = archive_key(java_banner(java), self.names.read_bytes(), jars)
        return ClassArchive(jars_home() / f"{self.prefix}-{key}.jsa", jars)

    def _dump(self, archive: ClassArchive) -> None:
        """Let Java write the archive, which gets its name when it is complete. Raises JavaError."""
        java, _ = find_java()
        folder = archive.file.parent / f"{self.prefix}.making"
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir()
        try:
            classes, fresh = folder / "classes.txt", folder / "fresh.jsa"
            classes.write_bytes(gzip.decompress(self.names.read_bytes()))
            command = [
                *(java, "-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"{ARCHIVE_OPTION}{fresh}"),
                *("-XX:+UseG1GC", "-XX:TieredStopAtLevel=1", "-Xmx512m", f"-XX:ErrorFile={folder / 'crash.log'}"),
                *(*_QUIET, "-cp", joined(archive.class_path)),
            ]
            begun_s = time.monotonic()
            ended = run_saying(
                command,
                lambda: f"jars: archiving {self.owner} classes for {time.monotonic() - begun_s:.0f} s",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            if ended.returncode != 0 or not fresh.is_file():
                # Java begins each line about a crash of its own with a #
                said = (line.strip("# ") for line in (ended.stderr or ended.stdout).splitlines())
                reason = next(filter(None, said), f"exit code {ended.returncode}")
                raise JavaError(f"{java} can't archive classes: {reason}")
            fresh.chmod(_OWNER_ONLY)
            fresh.rename(archive.file)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def class_path() -> list[Path]:
    """The jars of Sluice's set and of pyspark, Spark's first: for a class to archive Java tries all jars before it."""
    jars = sorted(pyspark_jars().glob("*.jar"), key=lambda jar: (not jar.name.startswith(("spark-", "scala-")), jar))
    return [*SPARK_JARS.paths(), *jars]


def archive_key(java: str, classes: bytes, class_path: Sequence[Path]) -> str:
    """A name for what Java compares before it uses an archive: its own version, and paths, sizes and times of the jars.

    `java` is what `java -version` prints.
    """
    jars = [(str(jar), stat.st_size, int(stat.st_mtime)) for jar in class_path if (stat := jar.stat())]
    return hashlib.sha256(repr((java, hashlib.sha256(classes).hexdigest(), jars)).encode()).hexdigest()[:16]


def _has_short_path(class_path: Sequence[Path]) -> bool:
    return len(os.fsencode(joined(class_path))) <= _LONGEST_CLASS_PATH_BYTES


def joined(class_path: Iterable[Path | str]) -> str:
    """The class path as Java takes it."""
    return os.pathsep.join(map(str, class_path))


SPARK_CLASSES: ArchivedClasses = ArchivedClasses(
    "Spark's", "classes", REPOSITORY / "configs" / "spark-classes.txt.gz", class_path
)
"""Those of the job's Java."""
