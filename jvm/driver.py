"""The driver's Java, which starts while Python loads PySpark: that takes as long as Java does."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from threading import current_thread, main_thread
from typing import Final

from sluice.jvm.environment import OWN
from sluice.jvm.errors import JavaError
from sluice.jvm.jars import pyspark_jars
from sluice.process.processes import dying_with_this_thread

_ADDRESS_FILE: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_NUMBER_BYTES = 4
_POLL_S = 0.02

_LAUNCHER = {"SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Options of the Java that writes the command line of the driver's Java, and nothing else."""

REDACTED: Final = "(?i)secret|password|token|(access|[._])key|jaas|passphrase"
"""Properties that no command line has, which all users of a machine can read: PySpark tells them through its socket."""


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
        variables = {**_LAUNCHER, **os.environ, **OWN, **own}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=variables, cwd=folder)

    def hand_over(self) -> None:
        """Wait until it answers, and tell PySpark where. Raises JavaError if it has ended."""
        while not self._address.is_file():
            if self.process.poll() is not None:
                raise JavaError(f"Spark's Java ended at its start, with exit code {self.process.returncode}; see above")
            time.sleep(_POLL_S)
        content = self._address.read_bytes()
        self._address.unlink()
        os.environ[_PORT] = str(int.from_bytes(content[:_NUMBER_BYTES]))
        os.environ[_SECRET] = content[2 * _NUMBER_BYTES :].decode()

    def end(self) -> None:
        """End it at once, whatever it does; a signal handler may call this."""
        self.process.kill()


def forget_address() -> None:
    """Remove what `hand_over` has told PySpark, once it knows."""
    for name in (_PORT, _SECRET):
        os.environ.pop(name, None)
