"""The gate of speed on a tiny load: it passes a commit against itself, and fails a checkout that was made slower."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kafka

SLOW = """

_plan_of = planner


def planner(settings, pipeline_settings):
    plan_fast = _plan_of(settings, pipeline_settings)

    def plan(batches):
        batches = list(batches)
        for _ in range(10_000 * sum(batch.num_rows for batch in batches)):
            pass
        return plan_fast(iter(batches))

    return plan
"""
"""At the end of streaming/enforce/stages.py: some 80 microseconds more for each request."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of this repository, which uses its packages and jars, and has the native library as after set-up."""
    clone, here = tmp_path / "clone", Path.cwd()
    subprocess.run(["git", "clone", "--quiet", "--shared", str(here), str(clone)], check=True)  # noqa: S607 - of the PATH
    (clone / ".jars").symlink_to(here / ".jars")
    subprocess.run([sys.executable, "extras/native/sluice_native/build.py"], cwd=clone, check=True)
    return clone


def gate(checkout: Path) -> "subprocess.CompletedProcess[str]":
    """The gate's end on a tiny load, whose figures a busy machine may double."""
    command = [sys.executable, "-m", "sluice_lab.benchmarks.gate", "--quick", "--limit", "100", "--baseline", "HEAD"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=900)


def test_a_commit_passes_against_itself(checkout: Path) -> None:
    done = gate(checkout)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| ok ") == 7  # the workers with 1, 2 and 4 charges, two of throughput, two of latency
    listed = ["git", "worktree", "list"]  # the one that the gate made is gone
    worktrees = subprocess.run(listed, cwd=checkout, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(worktrees) == 1


def test_a_slower_checkout_fails(checkout: Path) -> None:
    stages = checkout / "streaming/enforce/stages.py"
    stages.write_text(stages.read_text() + SLOW)

    done = gate(checkout)

    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("WORSE by more than 100 %") >= 3
