"""`sluice top` with a real broker, and on a real pseudo-terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer

from sluice.configs.settings import load_settings
from sluice.state.quotas.entity import DEFAULT
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.enforce.simulation import Simulation
from sluice_insight.commands.top import SINCE_S
from tests.builders import quota
from tests.commands import SLUICE, Ended, invoke
from tests.deciding_side import own_settings

pytestmark = pytest.mark.kafka

QUOTAS = Quotas(
    [
        quota(QuotaKind.PRODUCER_BYTE_RATE, 1000.0, user=DEFAULT),
        quota(QuotaKind.CONSUMER_BYTE_RATE, 1e6, user=DEFAULT),
    ]
)
AHEAD_MS = 50_000
DEADLINE_S = 120.0


@pytest.fixture
def settings_file(kafka_broker: str, tmp_path: Path) -> Path:
    """The settings of a job whose topics no other test uses, with two partitions."""
    path, topics = tmp_path / "settings.yaml", own_settings(kafka_broker, partitions=2).topics
    names = {name: getattr(topics, name) for name in ("requests", "decisions", "dead_letters", "limits")}
    path.write_text(json.dumps({"kafka": {"bootstrap.servers": kafka_broker}, "topics": names}))
    return path


def publish(settings_file: Path, *events: tuple[str, str, int]) -> None:
    """Decide requests, and write the decisions to the topic: user, api, bytes.

    They lie ahead by less than is allowed, so that their rates last however long a process takes to start.
    """
    settings = load_settings(settings_file, environment={})
    at_ms = time.time_ns() // 1_000_000 + AHEAD_MS
    values = [
        json.dumps({"user": user, "api": api, "bytes": size, "timestamp_ms": at_ms}).encode()
        for user, api, size in events
    ]
    with closing(KafkaProducer(bootstrap_servers=settings.kafka["bootstrap.servers"])) as producer:
        for record in Simulation(QUOTAS, settings).decide(values):
            producer.send(settings.topics.decisions, record.value, record.key)


BUSY = [("alice", "Produce", 20_000), ("bob", "Produce", 5000), ("\x1b[2Jeve", "Fetch", 1000)]


def top(settings_file: Path, *arguments: str) -> Ended:
    return invoke("top", "--config", settings_file, *arguments, code=None)


class Terminal:
    """A pseudo-terminal in which `sluice top` runs."""

    def __init__(self, settings_file: Path, columns: int = 120) -> None:
        self.ours, self.theirs = pty.openpty()
        self.output = ""
        self.resize(columns)
        self.before = termios.tcgetattr(self.theirs)
        command = [*SLUICE, "top", "--config", str(settings_file)]
        streams = {"stdin": self.theirs, "stdout": self.theirs, "stderr": self.theirs}
        self.process: subprocess.Popen[bytes] = subprocess.Popen([*command, "--since", "60"], **streams)  # type: ignore[call-overload] # three descriptors

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def screen(self) -> list[str]:
        """The lines of the last whole screen, without colours."""
        *_, whole, _ = ["", "", *self.output.split("\x1b[H")]
        return [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", whole).split("\n")]

    def until(self, shown: Callable[[list[str]], bool]) -> list[str]:
        """Read until the screen shows it."""
        until_s = time.monotonic() + DEADLINE_S
        while not shown(self.screen()):
            assert time.monotonic() < until_s, self.output[-2000:]
            self._read()
        return self.screen()

    def until_ended(self) -> int:
        """Read until the process has ended; its exit code."""
        until_s = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < until_s, self.output[-2000:]
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self.ours], [], [], 0.1)[0]:
            self.output += os.read(self.ours, 65_536).decode(errors="replace")


@contextmanager
def terminal(settings_file: Path, columns: int = 120) -> Iterator[Terminal]:
    running = Terminal(settings_file, columns)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        os.close(running.ours)
        os.close(running.theirs)


def users(screen: list[str]) -> list[str]:
    """The clients of the table, in order."""
    return [line.split()[0] for line in screen if "_byte_rate" in line and not line.startswith("by ")]


@pytest.mark.parametrize("once", [["--once"], []], ids=str)
def test_once_or_without_a_terminal_one_look_shows_who_is_nearest_to_a_limit(
    settings_file: Path, once: list[str]
) -> None:
    publish(settings_file, *BUSY)

    done = top(settings_file, *once, "--since", "60")

    assert done.code == 0, done.error
    head, columns, *rows = done.output.splitlines()
    assert head.startswith("3 decisions in ")
    assert columns.split()[:4] == ["CLIENT", "QUOTA", "USED", "LIMIT"]
    assert [row.split()[:4] for row in rows] == [
        ["alice", "producer_byte_rate", "100", "%"],
        ["bob", "producer_byte_rate", "50", "%"],
        [r"\x1b[2Jeve", "consumer_byte_rate", "0", "%"],
    ]
    assert "\x1b" not in done.output


def test_json_has_all_figures(settings_file: Path) -> None:
    publish(settings_file, *BUSY)

    found = json.loads(top(settings_file, "--json", "--since", "60", "--quota", "producer_byte_rate").output)

    alice, bob = found["counters"]
    assert (found["verdicts"], found["troubles_known"]) == ({"ALLOW": 2, "THROTTLE": 1}, True)
    assert (alice["entity"], alice["limit"], alice["rate"]) == ({"user": "alice"}, 1000.0, 2000.0)
    assert alice["matched"] == "default user"
    assert (bob["usage"], bob["remaining"], bob["wait_ms"]) == (0.5, 500.0, 0)


def test_only_recent_decisions_are_read(settings_file: Path) -> None:
    publish(settings_file, *BUSY)
    time.sleep(1.1)  # a broker finds offsets by its records' times

    found = json.loads(top(settings_file, "--json", "--since", "1").output)

    assert (found["decisions_read"], found["counters"]) == (0, [])


def test_all_decisions_of_the_last_minute_are_read_however_many(settings_file: Path) -> None:
    publish(settings_file, *(("old", "Produce", 1) for _ in range(6000)), ("new", "Produce", 1))

    found = json.loads(top(settings_file, "--json").output)

    assert found["decisions_read"] == 6001
    assert found["at_ms"] - found["since_ms"] >= SINCE_S * 1000


def test_a_topic_that_is_not_there_and_wrong_options_are_one_line(settings_file: Path, kafka_broker: str) -> None:
    nowhere = settings_file.with_name("nowhere.yaml")
    nowhere.write_text(f"kafka: {{bootstrap.servers: '{kafka_broker}'}}\ntopics: {{decisions: nowhere}}\n")

    missing, wrong = top(nowhere, "--once"), top(settings_file, "--sort", "size")

    assert (missing.code, missing.output) == (1, "")
    assert missing.error.startswith("sluice: error: there is no topic nowhere")
    assert (wrong.code, len(wrong.error.splitlines())) == (2, 1)


def test_live_with_keys_new_decisions_and_a_new_size(settings_file: Path) -> None:
    publish(settings_file, *BUSY)
    with terminal(settings_file) as live:
        live.until(lambda screen: users(screen) == ["alice", "bob", r"\x1b[2Jeve"])

        publish(settings_file, ("carol", "Produce", 30_000))
        live.until(lambda screen: users(screen)[:1] == ["carol"])
        live.press("sss")
        live.until(lambda screen: users(screen) == [r"\x1b[2Jeve", "alice", "bob", "carol"])
        live.press("/AL\n")
        live.until(lambda screen: users(screen) == ["alice"] and "filter AL" in screen[1])
        live.press("\x1b")
        live.until(lambda screen: len(users(screen)) == 4)
        live.press("ff")
        live.until(lambda screen: users(screen) == [r"\x1b[2Jeve"])
        live.resize(50)
        screen = live.until(lambda screen: max(map(len, screen)) <= 50)
        live.press("q")

        assert live.until_ended() == 0
        assert screen[0].startswith("sluice top")
        assert live.output.endswith("\x1b[?25h\x1b[?1049l")
        assert termios.tcgetattr(live.theirs) == live.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(settings_file: Path, number: signal.Signals) -> None:
    publish(settings_file, *BUSY)
    with terminal(settings_file) as live:
        live.until(lambda screen: "alice" in users(screen))
        assert termios.tcgetattr(live.theirs) != live.before

        live.process.send_signal(number)

        assert live.until_ended() == 0
        assert live.output.endswith("\x1b[?25h\x1b[?1049l")
        assert termios.tcgetattr(live.theirs) == live.before
