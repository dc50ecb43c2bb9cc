"""The peer in Quix Streams (quix_peer.py): one process for each partition, with packages of its own.

Quix Streams needs an older confluent-kafka than Sluice, so it has a virtual environment beside the jars, made from
quix.lock when it is first used.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from scripts.benchmarks.peers.peer import Application, Peer
from scripts.benchmarks.rig import BenchError
from scripts.testbed.processes import Child, last_line
from sluice.jvm.jars import jars_home

_FOLDER = Path(__file__).parent
_LOCK = _FOLDER / "quix.lock"
_PROGRAM = _FOLDER / "quix_peer.py"
_STOP_SECONDS = 60


def quix_python() -> Path:
    """The Python that has Quix Streams; its packages are installed at the first call and when the lock has changed.

    Raises BenchError.
    """
    home = jars_home() / "quix"
    python, stamp = home / "bin" / "python", home / "stamp"
    wanted = hashlib.sha256(f"{home} {sys.version}".encode() + _LOCK.read_bytes()).hexdigest()
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home.parent / "quix-lock"):  # of two benches the second one waits, and then finds all done
        if not stamp.is_file() or stamp.read_text() != wanted:
            _run(sys.executable, "-m", "venv", "--clear", str(home))
            _run(str(python), "-m", "pip", "install", "--require-hashes", "-r", str(_LOCK))
            stamp.write_text(wanted)
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise BenchError(f"Quix Streams can't be installed: {lines[-1]}; check the network, then try again")


class QuixStreams(Peer):
    """A process for each partition, in one consumer group, exactly-once; new ones at each start."""

    def __init__(self, python: Path, log: Path) -> None:
        self._python = python
        self._log = log
        self._children: list[Child] = []

    def start(self, application: Application) -> None:
        """Start the processes."""
        command = [str(self._python), str(_PROGRAM), json.dumps(asdict(application))]
        self._children = [Child(command, self._log_of(number)) for number in range(application.partitions)]

    def stop(self) -> None:
        """Stop the processes, each after its last commit."""
        children, self._children = self._children, []
        ended = [number for number, child in enumerate(children) if not child.alive]
        for child in children:
            if child.alive:
                os.kill(child.pid, signal.SIGTERM)  # to all at once: one alone would leave its partitions to the others
        for child in children:
            child.end(signal.SIGTERM, _STOP_SECONDS)
        if ended:
            raise BenchError(f"Quix Streams ended: {last_line(self._log_of(ended[0]))}")

    def _log_of(self, number: int) -> Path:
        return self._log.with_name(f"{self._log.stem}-{number}.log")
