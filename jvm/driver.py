"""The driver's Java, which starts while Python loads PySpark: that takes as long as Java does."""

import logging
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Final

from sluice.jvm.environment import OWN
from sluice.jvm.errors import JavaError
from sluice.jvm.jars import pyspark_jars
from sluice.process.processes import dying_with_this_thread

log = logging.getLogger("sluice.session")

_ADDRESS_FILE: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_NUMBER_BYTES = 4
_POLL_S = 0.02
_LAST_WORDS_S = 5.0
_MAX_LAST_WORDS = 65_536
_MAX_ERROR = 300

_CAUSE = re.compile(r"Caused by: .*|(Exception in thread \S+ )?[\w.$]+(Exception|Error): .*")
_NO_CAUSE = re.compile(
    r"\s+at |\s*\.\.\. |WARNING: |Picked up |Error: (Could not create the Java|A fatal exception)|Error occurred during"
)
"""Lines that say only that there is an error, or something else."""

_STOPPED = re.compile(r"uncaught error in thread (\S+), stopping SparkContext ?(.*)")
"""Line of Spark's log: nothing else tells why it ends, and `streaming/runtime/log4j2.properties` omits the class."""

REDACTED: Final = "(?i)secret|password|token|(access|[._])key|jaas|passphrase"
"""Properties that no command line has, which all users of a machine can read: PySpark tells them through its socket."""


def stopped_by(words: str) -> str | None:
    """The thread and the error by which Spark has stopped itself, as these words of Java say it; None if they don't.

    >>> said = 'Utils: uncaught error in thread bus, stopping SparkContext oh\\nException in thread "bus" x.Bad: oh\\n'
    >>> stopped_by(said), stopped_by(said.splitlines()[0]), stopped_by("WARN Utils: well")
    ('an error in its thread bus: x.Bad: oh', 'an error in its thread bus: oh', None)
    """
    if (found := _STOPPED.search(words)) is None:
        return None
    thread, message = found.groups()
    named = re.search(rf'Exception in thread "{re.escape(thread)}" (.*)', words)
    return f"an error in its thread {thread}: {(named[1] if named else message).strip()[:_MAX_ERROR]}"


class LastWords:
    """The newest that Java wrote to its standard error."""

    def __init__(self) -> None:
        self._bytes = b""

    def note(self, part: bytes) -> None:
        """Take what it wrote next."""
        self._bytes = (self._bytes + part)[-_MAX_LAST_WORDS:]

    def stopped_by(self) -> str | None:
        """The error by which Spark has stopped itself; None if it hasn't."""
        return stopped_by(self._bytes.decode(errors="replace"))


LAST_WORDS = LastWords()
"""The words of this process's Java, of which it has one at most."""


class DriverJava:
    """A Java with these properties of Spark, for PySpark to find. It ends with this process, as its input then does."""

    def __init__(self, properties: Mapping[str, str], folder: Path) -> None:
        """Start it. `folder`, which is for this run alone, is Java's working directory."""
        self.properties = properties
        self._address = folder / "address"
        self._address.unlink(missing_ok=True)  # of one before, in the same process
        home = os.environ.get("SPARK_HOME") or str(pyspark_jars().parent)
        public = ((name, value) for name, value in properties.items() if not re.search(REDACTED, name))
        given = [part for name, value in public for part in ("--conf", f"{name}={value}")]
        shell = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        own = {_ADDRESS_FILE: str(self._address), "SPARK_CONNECT_MODE": "0", "SPARK_HOME": home, "TMPDIR": str(folder)}
        command = [str(Path(home, "bin", "spark-submit")), *given, *shell]
        if current_thread() is main_thread():  # one that starts would read the end of its input long afterwards
            command = dying_with_this_thread(command)
        variables = {"SPARK_LAUNCHER_OPTS": launcher_options(home), **os.environ, **OWN, **own}
        read, write = os.pipe()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=write, stderr=write, env=variables, cwd=folder
        )
        os.close(write)
        self._serves = False
        self._said = b""
        self._passing = Thread(target=self._pass_on, args=(read,), name="java-errors", daemon=True)
        self._passing.start()

    def hand_over(self) -> None:
        """Wait until it answers, and tell PySpark where. Raises JavaError if it has ended."""
        while not self._address.is_file():
            if self.process.poll() is not None:
                raise self._ended(self.process.returncode)
            time.sleep(_POLL_S)
        self._serves = True
        content = self._address.read_bytes()
        self._address.unlink()
        os.environ[_PORT] = str(int.from_bytes(content[:_NUMBER_BYTES]))
        os.environ[_SECRET] = content[2 * _NUMBER_BYTES :].decode()

    def end(self) -> None:
        """End it at once, whatever it does; a signal handler may call this."""
        self.process.kill()

    def _pass_on(self, read: int) -> None:
        """Pass on to standard error what Java writes there, from when it serves: before, it tells of a failed start."""
        with open(read, "rb", buffering=0) as errors:
            while part := errors.read(65_536):
                LAST_WORDS.note(part)
                self._said += part
                while self._serves and self._said:
                    self._said = self._said[os.write(2, self._said) :]

    def _ended(self, code: int) -> JavaError:
        """The error of a Java that has ended at its start; the log has all that it wrote."""
        self._passing.join(_LAST_WORDS_S)
        text = self._said.decode(errors="replace")
        log.error("Spark's Java ended at its start, with exit code %d", code, extra={"fields": {"details": text}})
        why = f"{signal.Signals(-code).name}, from outside or for lack of memory" if code < 0 else start_problem(text)
        return JavaError(
            f"Spark's Java ended at its start, with exit code {code} ({why}); check JAVA_HOME, and spark.driver.memory"
            " and spark.driver.extraJavaOptions in section spark"
        )


def start_problem(text: str) -> str:
    """The line that tells most of why a Java didn't start: the innermost cause, else the first that isn't a phrase.

    >>> start_problem("Error occurred during initialization of VM\\nToo small maximum heap\\n")
    'Too small maximum heap'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _NO_CAUSE.match(line)]
    causes = [line for line in lines if _CAUSE.match(line)]
    told = (causes[-1:] or lines[:1] or ["it said nothing"])[0].removeprefix("Caused by: ")
    return re.sub(r"(?<= through java options) \(was .*\)", "", told)  # there Spark repeats all of them


def launcher_options(spark_home: str) -> str:
    """Options of the Java that writes the command line of the driver's Java, and nothing else.

    It would open all of Spark's jars until it comes to the one that it needs. Spark splits the options at blanks.
    """
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    jar = next(Path(spark_home, "jars").glob("spark-launcher_*.jar"), None)
    return options if jar is None or re.search(r"\s", str(jar)) else f"{options} -Xbootclasspath/a:{jar}"


def forget_address() -> None:
    """Remove what `hand_over` has told PySpark, once it knows."""
    for name in (_PORT, _SECRET):
        os.environ.pop(name, None)
