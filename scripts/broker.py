"""The embedded broker: a real Kafka in KRaft mode, one node on loopback, whose data survives a restart.

    python -m scripts.broker --folder FOLDER [--fresh]

prints the bootstrap address and runs until Ctrl-C.
"""

import argparse
import base64
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from types import FrameType, TracebackType
from typing import IO, NoReturn, Self

from state.errors import SluiceError
from streaming.errors import BrokerError
from streaming.jars import broker_jars
from streaming.java import find_java

_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=INFO")
_STARTED = "Kafka Server started"
_START_SECONDS = 120  # 3 s on an idle machine
_STOP_SECONDS = 30
_ATTEMPTS = 3  # a port that was free may be taken before Kafka listens on it

# Run by a fresh, single-threaded Python which then becomes the command, so that the process id stays. The kernel
# kills the command when its parent dies; a parent that died before prctl is seen by the changed parent id.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Broker:
    """One embedded Kafka broker, as a context manager or by start and stop.

    `folder` holds its data, configuration and log (`broker.log`); `fresh` empties it first. `properties` override the
    server properties; clients come in by the listener named CLIENT, so TLS or SASL is set by, for example,
    `listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT` and `listener.name.client.*`.
    The broker ends with this process, even when that is killed.
    """

    def __init__(self, folder: Path, fresh: bool = False, properties: Mapping[str, str] | None = None) -> None:
        self._folder = folder.absolute()
        self._fresh = fresh
        self._properties = dict(properties or {})
        self._child: Child | None = None
        self._lock: IO[str] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port` of the last start."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the broker's Java virtual machine. Raises BrokerError when it isn't started."""
        return self._running().pid

    def start(self) -> None:
        """Returns once the broker serves; does nothing when it runs already.

        Raises BrokerError (with the reason from Kafka's log), JavaError and JarError.
        """
        if self._child is not None and self._child.alive:
            return
        self._take_folder()
        try:
            if self._fresh:
                self._wipe()
                self._fresh = False  # a restart of this broker keeps its data
            self._start_on_free_ports()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ends the broker in good order (SIGTERM, then SIGKILL after 30 s); does nothing when it isn't running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the broker as a crash would (SIGKILL); a later start recovers its data."""
        self._end(signal.SIGKILL)

    def wait(self) -> NoReturn:
        """Blocks while the broker runs; raises BrokerError when it ends by itself."""
        child = self._running()
        while child.alive:
            time.sleep(0.2)  # not a blocking wait: a signal that another thread receives would not end that
        raise BrokerError(f"the broker ended: {self._last_words()}")

    def _running(self) -> "Child":
        if self._child is None:
            raise BrokerError(f"the broker in {self._folder} is not started")
        return self._child

    def _end(self, sign: signal.Signals) -> None:
        self._end_child(sign)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _end_child(self, sign: signal.Signals) -> None:
        if self._child is not None:
            self._child.end(sign, _STOP_SECONDS)
            self._child = None

    def _take_folder(self) -> None:
        """Two brokers on one folder would ruin each other's data, so the first one locks it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = (self._folder / "lock").open("w")
        except OSError as error:
            raise BrokerError(f"the broker can't write to {self._folder} ({error}); choose another folder") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise BrokerError(f"a broker runs in {self._folder} already; stop it or choose another folder") from error
        self._lock = lock

    def _wipe(self) -> None:
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        (self._folder / "ports.json").unlink(missing_ok=True)

    def _start_on_free_ports(self) -> None:
        java, _ = find_java()
        command = [java, *_JVM_OPTIONS, "-cp", ":".join(map(str, broker_jars()))]
        for attempt in range(1, _ATTEMPTS + 1):
            self._configure()
            self._format_once(command)
            self._child = Child([*command, "kafka.Kafka", str(self._server_properties)], self._log)
            if self._wait_until_started(self._child):
                return
            reason = self._last_words()
            self._end_child(signal.SIGKILL)
            if attempt == _ATTEMPTS or "Address already in use" not in reason:
                raise BrokerError(f"the broker in {self._folder} doesn't start: {reason}; all of it: {self._log}")

    @property
    def _server_properties(self) -> Path:
        return self._folder / "server.properties"

    @property
    def _log(self) -> Path:
        return self._folder / "broker.log"

    def _configure(self) -> None:
        self._port, controller_port = _ports(self._folder / "ports.json")
        properties = _server_properties(self._folder / "data", self._port, controller_port) | self._properties
        self._server_properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def _format_once(self, command: Sequence[str]) -> None:
        if (self._folder / "data" / "meta.properties").exists():
            return
        tool = ["kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._server_properties)]
        with self._log.open("w") as log:
            formatted = subprocess.run([*command, *tool], stdout=log, stderr=subprocess.STDOUT, check=False)
        if formatted.returncode != 0:
            raise BrokerError(f"{self._folder} can't be formatted: {self._last_words()}; all of it: {self._log}")

    def _wait_until_started(self, child: "Child") -> bool:
        """Whether Kafka reports itself started in the log; an open port alone might be somebody else's."""
        deadline = time.monotonic() + _START_SECONDS
        while child.alive and time.monotonic() < deadline:
            if _STARTED in self._log.read_text(errors="replace"):
                return True
            time.sleep(0.05)
        return False

    def _last_words(self) -> str:
        return last_error(self._log.read_text(errors="replace"))


class Child:
    """A child process that dies with this process, whatever ends that; its output goes to the file `log`.

    The kernel ties such a child to the *thread* that starts it: a thread of its own starts it and stays until it ends.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        started: Future[subprocess.Popen[bytes]] = Future()
        Thread(target=_keep, args=(command, log, started), daemon=True).start()
        self._process = started.result()

    @property
    def pid(self) -> int:
        """Process id of the command itself."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def end(self, sign: signal.Signals, patience_seconds: float) -> None:
        """Sends `sign`, and SIGKILL when the process is still there after `patience_seconds`."""
        self._process.send_signal(sign)
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _keep(command: Sequence[str], log: Path, started: "Future[subprocess.Popen[bytes]]") -> None:
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                launcher,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent, which stops the child in good order
            )
    except OSError as error:
        started.set_exception(error)
        return
    started.set_result(process)
    process.wait()


def last_error(log: str) -> str:
    """The line of a Kafka log that tells most: the last innermost cause, else the last error, else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("\tat ")]
    for sign in (r"^Caused by: |^(Exception in thread \S+ )?[\w.$]+(Exception|Error): ", r"\b(ERROR|FATAL)\b"):
        for line in reversed(lines):
            if re.search(sign, line):
                return line.removeprefix("Caused by: ")
    return lines[-1] if lines else "it printed nothing"


def _server_properties(data: Path, port: int, controller_port: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"CLIENT://127.0.0.1:{port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "log.dirs": str(data),
        "message.max.bytes": str(9 * 1024 * 1024),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def _ports(memory: Path) -> tuple[int, int]:
    """The ports of the last start, so that clients find the broker again, or new ones when they are taken."""
    try:
        client, controller = json.loads(memory.read_text())
    except (OSError, ValueError):
        client = controller = 0
    if not (_free(client) and _free(controller)):
        client, controller = _two_free_ports()
    memory.write_text(json.dumps([client, controller]))
    return client, controller


def _free(port: int) -> bool:
    if port == 0:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does: closed connections don't count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _two_free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _cluster_id() -> str:
    """A Kafka UUID: 16 bytes in URL-safe base64 without padding, which must not look like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Once is enough: a second signal would cut the orderly stop short, and the next start would take 10 s longer."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: None)
    raise KeyboardInterrupt


def main() -> None:
    """Runs one embedded broker until Ctrl-C or SIGTERM; exit 1 with one line when it can't run."""
    parser = argparse.ArgumentParser(prog="python -m scripts.broker", description=main.__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where its data, configuration and log lie")
    parser.add_argument("--fresh", action="store_true", help="forget what the folder holds")
    arguments = parser.parse_args()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, _interrupt)
    try:
        with Broker(arguments.folder, arguments.fresh) as broker:
            print(broker.bootstrap_servers, flush=True)
            broker.wait()
    except KeyboardInterrupt:
        pass
    except SluiceError as error:
        sys.exit(f"broker: {error}")


if __name__ == "__main__":
    main()
