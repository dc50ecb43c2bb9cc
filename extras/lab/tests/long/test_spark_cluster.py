"""`./scripts/cluster` as a process, in a folder of its own: three of its kinds of kills, and the books."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("storage", ["hdfs", "s3", "files"])
def test_each_request_has_one_decision_after_kills_in_a_cluster(tmp_path: Path, storage: str) -> None:
    (tmp_path / "configs").symlink_to(Path("configs").absolute())
    victims = ["executor", "driver", *(["datanode"] if storage == "hdfs" else [])]
    options = ["--storage", storage, "--rate", "50", "--seconds", "30", *(f"--kill={victim}" for victim in victims)]

    done = subprocess.run(
        [sys.executable, "-m", "sluice_lab.scenarios.cluster", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )

    # a library that reads tables says there that the data node that was killed doesn't answer
    errors = [line for line in done.stderr.splitlines() if " WARN  hdfs_native::" not in line]
    assert (done.returncode, errors) == (0, [])
    assert " 0 different from simulate" in done.stdout
    assert done.stdout.endswith(": balanced\n")
    assert re.findall(r"^\| (\w+) +\| ", done.stdout, re.MULTILINE) == ["kind", *victims]
