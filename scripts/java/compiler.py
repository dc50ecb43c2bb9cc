"""Java sources to jars: with the JDK's compiler, or, where there is only a JRE, with one that runs on any Java."""

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.jvm.jars import JarSet
from sluice.jvm.java import find_java
from sluice.process.processes import run_saying
from sluice.state.errors import SluiceError

_QUICK = "-XX:TieredStopAtLevel=1"  # a compiler ends before Java's second compiler has paid for itself
_MANIFEST = b"Manifest-Version: 1.0\r\n\r\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file in the jar, so that the same classes make the same jar

COMPILER_JARS = JarSet.named("compiler", "scripts.java.build", folder=Path(__file__).resolve().parent)


class JavaBuildError(SluiceError):
    """Java code of the project can't be compiled."""


Compiler = Callable[[int], Sequence[str]]
"""Gives the command of a Java compiler for a release of Java, with the options that say what it warns of."""


def javac(release: int) -> Sequence[str]:
    """The compiler of the JDK that JAVA_HOME names, else of that on PATH. Raises JavaBuildError if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=str(Path(home) / "bin") if home else None)
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH, and JAVA_HOME is not set"
        raise JavaBuildError(f"no javac {where}; install a whole JDK")
    return (found, f"-J{_QUICK}", "--release", str(release), "-proc:none", "-Xlint:all,-path,-options", "-Werror")


def java_compiler(release: int) -> Sequence[str]:
    """The command of the JDK's compiler; where there is none, one that runs on any Java."""
    try:
        return javac(release)
    except JavaBuildError:
        java, _ = find_java()
        (jar,) = COMPILER_JARS.paths()
        return (java, _QUICK, "-jar", str(jar), "-source", str(release), "-target", str(release), "-nowarn")


def build_jar(jar: Path, sources: Sequence[Path], class_path: Sequence[Path], release: int, compiler: Compiler) -> Path:
    """`jar`, compiled from the Java files in these folders unless they and the class path are those of the last time.

    The folders' other files are put into it as they are.

    Raises JavaBuildError with the compiler's first error.
    """
    wanted = _fingerprint(sources, class_path, release)
    if jar.is_file() and zipfile.is_zipfile(jar) and _made_of(jar) == wanted:
        return jar
    jar.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as compiled:
        java = [source for folder in sources for source in sorted(folder.rglob("*.java"))]
        compile_java(java, class_path, Path(compiled), release, compiler)
        for name, file in _files(sources):
            if file.suffix != ".java":
                copy = Path(compiled, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
        fresh = jar.with_name(f"{jar.name}.{os.getpid()}")
        _write_jar(Path(compiled), fresh, wanted)
    fresh.replace(jar)  # at once: another process may be starting Java with it
    return jar


def compile_java(
    sources: Sequence[Path], class_path: Sequence[Path], out: Path, release: int, compiler: Compiler = javac
) -> None:
    """Compile Java sources into the folder `out`. Raises JavaBuildError."""
    command = [*compiler(release), "-d", str(out), "-cp", os.pathsep.join(map(str, class_path)), *map(str, sources)]
    try:
        say = f"compiling {len(sources)} files of Java"
        done = run_saying(command, lambda: f"build: {say}", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise JavaBuildError(f"{command[0]} can't be run ({error}); install a whole JDK") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines() or ["it printed nothing"]
        problem = next((line for line in lines if ": error:" in line or ": warning:" in line), lines[0])
        raise JavaBuildError(f"the Java code can't be compiled: {problem}")


def _files(sources: Sequence[Path]) -> list[tuple[str, Path]]:
    """All files in the folders, each with its path there, sorted by it."""
    found = ((file.relative_to(folder).as_posix(), file) for folder in sources for file in folder.rglob("*"))
    return sorted((name, file) for name, file in found if file.is_file())


def _fingerprint(sources: Sequence[Path], class_path: Sequence[Path], release: int) -> bytes:
    digest = hashlib.sha256(f"{release} {sorted(jar.name for jar in class_path)}".encode())
    for name, file in _files(sources):
        digest.update(f"\0{name}\0".encode() + file.read_bytes())
    return digest.hexdigest().encode()


def _made_of(jar: Path) -> bytes:
    with zipfile.ZipFile(jar) as archive:
        return archive.comment


def _write_jar(classes: Path, jar: Path, fingerprint: bytes) -> None:
    """Write the jar. Its comment is the fingerprint: in a file beside it, that could be of another jar."""
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = fingerprint
        archive.writestr(_entry("META-INF/MANIFEST.MF"), _MANIFEST)
        for file in sorted(each for each in classes.rglob("*") if each.is_file()):
            archive.writestr(_entry(file.relative_to(classes).as_posix()), file.read_bytes())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
