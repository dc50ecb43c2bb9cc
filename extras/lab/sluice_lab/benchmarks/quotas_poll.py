"""CPU time of a poll that finds new quotas, and the size of the log, at a table of many versions.

`python -m sluice_lab.benchmarks.quotas_poll 40000`, the number of versions.
"""

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from deltalake import DeltaTable

from sluice.sinks.tables.quotas import TABLE_PROPERTIES
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_reading.quotas_admin import QuotasAdmin

_REAL = 35
"""Versions that are written, the last of all: the log of the others is a copy of one, with as many checkpoints."""

_POLLS = 20


def poll_cpu_ms(folder: Path, versions: int) -> float:
    """The median CPU time of a poll of this process, in milliseconds, at a table of so many versions."""
    writer, reader = QuotasAdmin(str(folder)), QuotasAdmin(str(folder))
    writer.create([_quota(1)], "seed", datetime.now(UTC))
    for number in range(2, _REAL + 1):
        _alter(writer, number)
    _begin_with(folder, versions - _REAL)
    reader.newest()
    taken_ms = []
    for number in range(_POLLS):
        _alter(writer, 1_000 + number)
        begin_s = time.process_time()
        if reader.is_newest():
            raise RuntimeError("the poll doesn't see a new version")
        reader.newest()
        taken_ms.append(1000 * (time.process_time() - begin_s))
    return median(taken_ms)


def _quota(value: int) -> QuotaEntry:
    return QuotaEntry(QuotaEntity(user="alice"), QuotaKind.PRODUCER_BYTE_RATE, float(value))


def _alter(table: QuotasAdmin, value: int) -> None:
    table.alter(lambda _: [_quota(value)], "operator", datetime.now(UTC))


def _begin_with(folder: Path, older: int) -> None:
    """Let the log have so many older commits, with their checkpoints."""
    log, interval = folder / "_delta_log", int(TABLE_PROPERTIES["delta.checkpointInterval"])
    DeltaTable(folder).create_checkpoint()
    commit, (checkpoint,) = (log / f"{1:020}.json").read_bytes(), log.glob("0*.parquet")
    for file in sorted(log.glob("0*"), reverse=True):
        version, _, kind = file.name.partition(".")
        file.rename(log / f"{int(version) + older:020}.{kind}")
    last, content = log / "_last_checkpoint", (log / f"{int(checkpoint.stem[:20]) + older:020}.checkpoint.parquet")
    said = json.loads(last.read_bytes())
    last.write_text(json.dumps(said | {"version": said["version"] + older}))
    for number in range(older):
        (log / f"{number:020}.json").write_bytes(commit)
        if number % interval == 0:
            (log / f"{number:020}.checkpoint.parquet").write_bytes(content.read_bytes())


if __name__ == "__main__":
    versions = int(sys.argv[1])
    with TemporaryDirectory() as name:
        cpu_ms = poll_cpu_ms(folder := Path(name) / "quotas", versions)
        log_mib = sum(file.stat().st_size for file in (folder / "_delta_log").iterdir()) / 2**20
    print(f"{versions} versions: {cpu_ms:.1f} ms of CPU time, median of {_POLLS}; the log takes {log_mib:.1f} MiB")
