"""A disk that is really full: a job waits for room, says so in all places, and loses nothing."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluice_proxy.processes import free_ports
from sluice_reading.job_probe import asked
from tests.commands import SLUICE, run_sluice
from tests.integration.faulty_job import Faulty
from tests.integration.job_process import AUDITED, wait_until
from tests.waiting import eventually
from tests.web import answer_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

NO_ROOM = "there is no room to write ("  # begins the reason of a query that waits


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Faulty]:
    """A job whose folder, with its log, is a disk of its own."""
    disk = tmp_path / "faults"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this account may mount nothing")
    try:
        faulty = Faulty(tmp_path, audit=AUDITED, health={"port": free_ports(1)[0]})
        faulty.job.start()
        yield faulty
        faulty.job.stop()
        faulty.broker.stop()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # noqa: S607 - the system's own


def test_a_full_disk_ends_no_job_and_is_said_in_all_places(faulty: Faulty) -> None:
    """It waits for longer than `restart.max_failures` attempts, and goes on by itself."""
    config, port = ("--config", faulty.job.settings_file), faulty.settings.health.port

    def restarts() -> int:
        """By the metrics, which begin with the first poll of the queries: the status file can't be written."""
        lines = answer_of(port, "/metrics")[1].splitlines()
        name = 'sluice_query_restarts{query="enforce"}'
        return sum(int(float(each.rsplit(" ", 1)[1])) for each in lines if each.startswith(name))

    faulty.publish(50)
    faulty.job.answered(50)  # Java has unpacked its libraries
    filler = faulty.job.folder / "filler"
    fill(filler)
    faulty.publish(500)
    wait_until(lambda: fill(filler) or restarts() >= 8, 240)
    texts = {each: run_sluice(*each.split(), *config).output for each in ("doctor", "top --once")}
    texts |= {path: answer_of(port, path)[1] for path in ("/healthz", "/readyz")}
    command = [*SLUICE, "console", "--port", "0", *map(str, config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        eventually(lambda: NO_ROOM in asked(url, 30.0).decode())
        process.terminate()
    assert answer_of(port, "/healthz")[0] == 200
    assert [place for place, text in texts.items() if NO_ROOM not in text or "Traceback" in text] == []
    filler.unlink()
    assert faulty.balance().balanced


def fill(filler: Path) -> bool:
    """Fill the disk of this file: others may have removed some meanwhile. False, for who waits for something else."""
    for size in (1 << 20, 1 << 12):
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(size)):
                pass
    return False
