"""Tests of what kafkajs negotiates; its package has none of its own that need brokers."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from scripts.scenarios.peers.suite import Outcome, Outcomes, Suite, SuiteError
from sluice.jvm.jars import home_lock, jars_home
from sluice.jvm.processes import last_line

_SOURCE = Path(__file__).resolve().parents[2] / "testbed" / "kafkajs"
_TEST = re.compile(r"^(not ok|ok) \d+ - ([^\n]+?)( # SKIP)?\n  ---\n  duration_ms: ([\d.]+)", re.MULTILINE)


class Kafkajs(Suite):
    """`node --test` of `scripts/testbed/kafkajs`."""

    client = "kafkajs"

    def prepare(self) -> None:
        self._folder = _installed()

    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:
        only = [] if tests is None else [f"--test-name-pattern={tests}"]
        command = [_tool("node"), "--test", "--test-reporter=tap", *only, "client.test.js"]
        with log.open("w") as output:
            environment = os.environ | {"SERVERS": servers}
            subprocess.run(
                command, cwd=self._folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
            )
        found = _TEST.findall(log.read_text(errors="replace"))
        outcomes = {
            name: Outcome("skipped" if skipped else "passed" if word == "ok" else "failed", float(took_ms) / 1_000)
            for word, name, skipped, took_ms in found
        }
        if not outcomes:
            raise SuiteError(f"no test has run: {last_line(log)}; all of it: {log}")
        return outcomes


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SuiteError(f"the tests of kafkajs need {name}, which isn't installed; install it, or name other suites")
    return found


def _installed() -> Path:
    """A folder with the tests and the packages of package-lock.json, which are downloaded if they aren't there."""
    npm, folder = _tool("npm"), jars_home() / "kafkajs"
    with home_lock("kafkajs"):
        shutil.copytree(_SOURCE, folder, dirs_exist_ok=True)
        if not (folder / "node_modules").exists():
            done = subprocess.run(
                [npm, "ci", "--ignore-scripts"], cwd=folder, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SuiteError(f"npm ci: {' '.join(done.stderr.split())[-300:]}; check the network, then try again")
    return folder
