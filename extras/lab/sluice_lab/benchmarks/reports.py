"""Cost of reports over the table of one day: CPU time and memory of the commands."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from numpy.typing import NDArray

from sluice.sinks.tables.decisions import decisions_table
from sluice.sinks.tables.delta import create_table
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_lab.benchmarks.report import Findings
from sluice_lab.benchmarks.rig import BenchError, BenchmarkRig
from sluice_lab.benchmarks.scale import Scale

DAY = datetime(2026, 11, 2, tzinfo=UTC)
USERS = 10_000
_DAY_MS = 86_400_000
_ROWS_OF_FILE = 500_000
_LIMIT = 1e6
_SPAN = ("--from", f"{DAY:%Y-%m-%d}", "--to", f"{DAY + timedelta(days=1):%Y-%m-%d}")

_COMMANDS: dict[str, Sequence[str]] = {
    "usage --by user --per day": ("usage", "--by", "user", "--per", "day", "--format", "csv", *_SPAN),
    "usage --by client --per hour": ("usage", "--by", "client", "--per", "hour", "--format", "csv", *_SPAN),
    "usage --by topic --per day": ("usage", "--by", "topic", "--per", "day", "--format", "csv", *_SPAN),
    "slo": ("slo", *_SPAN),
    "advise --processes 1": ("advise", "--processes", "1", *_SPAN),
}
"""Title -> arguments of `sluice`."""


def measure_reports(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """CPU time of each command with its processes, and the most memory of one of them."""
    decisions = scale.of(1_000_000, 10_000_000)
    folder = rig.folder / "reports"
    # the greatest memory of a child begins with that of this process, which has to stay small
    writer = get_context("spawn").Process(target=write_day, args=(folder, decisions))
    writer.start()
    writer.join()
    settings = folder / "settings.yaml"
    settings.write_text(f"delta: {{decisions: {folder / 'decisions'}, quotas: {folder / 'quotas'}}}\n")
    section = f"Reports over {decisions} decisions of {USERS} users"
    for title, arguments in _COMMANDS.items():
        runs = [_run([*arguments, "--config", str(settings)]) for _ in range(scale.runs)]
        findings.add(section, title, "CPU-s", [cpu_s for cpu_s, _ in runs])
        findings.add(section, f"{title}: memory", "MiB", [mib for _, mib in runs])


def write_day(folder: Path, decisions: int) -> None:
    """Write the table, in the order of time, in files as a compaction leaves them."""
    quota = QuotaEntry(QuotaEntity(user=DEFAULT), QuotaKind.PRODUCER_BYTE_RATE, _LIMIT)
    QuotasTable(str(folder / "quotas")).create([quota], "bench", DAY)
    table = decisions_table(str(folder / "decisions"))
    create_table(table, {})
    generator = np.random.default_rng(1)
    for first in range(0, decisions, _ROWS_OF_FILE):
        offsets = np.arange(first, min(decisions, first + _ROWS_OF_FILE))
        write_deltalake(table.path, _rows(table.columns, offsets, decisions, generator), mode="append")


def _rows(columns: pa.Schema, offsets: NDArray[np.int64], decisions: int, generator: np.random.Generator) -> pa.Table:
    """Produce requests of none to four topic-partitions and one charge each; one in a hundred is throttled."""
    count = len(offsets)
    at_ms = int(DAY.timestamp() * 1000) + offsets * _DAY_MS // decisions
    users = pa.array([f"user-{number}" for number in generator.integers(USERS, size=count)])
    ids = pa.array([f"quota-requests-0-{offset}" for offset in offsets])
    waits = np.where(generator.random(count) < 0.01, generator.integers(1, 5_000, count), 0)
    touched = generator.integers(0, 5, count)
    sizes = generator.integers(1, 100_000, touched.sum())
    starts = np.concatenate([[0], np.cumsum(touched)])
    total = np.add.reduceat(np.append(sizes, 0), np.minimum(starts[:-1], len(sizes))) * (touched > 0)
    made = partial(_filled, count=count)
    entity = made(columns.field("charges").type.value_type.field("entity").type, user=users)
    charge = made(
        columns.field("charges").type.value_type,
        quota="producer_byte_rate", entity=entity, matched="user default", limit=_LIMIT, value=total.astype(float),
        rate=total / 10, throttle_ms=waits, violated=waits > 0,
    )  # fmt: skip
    said = columns.field("amounts").type
    partition = _filled(
        said.field("topic_partitions").type.value_type,
        len(sizes),
        topic=pa.array([f"orders-{number}" for number in generator.integers(200, size=len(sizes))]),
        partition=generator.integers(12, size=len(sizes)),
        bytes=sizes,
    )
    amounts = made(
        said,
        request_time_ns=generator.integers(1, 10_000_000, count),
        topic_partitions=pa.ListArray.from_arrays(
            starts.astype(np.int32), partition, said.field("topic_partitions").type
        ),
    )
    row = made(
        pa.struct(list(columns)),
        source_topic="quota-requests", source_partition=0, source_offset=offsets, decision_id=ids, request_id=ids,
        timestamp_ms=at_ms, user=users, client_id="app", api="Produce", gateway="gateway-1", instance="gateway-1-a",
        verdict=np.where(waits > 0, "THROTTLE", "ALLOW"), throttle_time_ms=waits, mute_until_ms=at_ms + waits,
        decided_by="producer_byte_rate",
        charges=pa.ListArray.from_arrays(
            np.arange(count + 1, dtype=np.int32), charge, columns.field("charges").type
        ),
        quota_version=0, decided_at_ms=at_ms // 500 * 500, amounts=amounts, date=DAY.date(),
    )  # fmt: skip
    return pa.Table.from_struct_array(row)


def _filled(kind: pa.StructType, count: int, **values: Any) -> pa.StructArray:
    """Structs with these values, or the same one in all of them; other fields are null."""
    arrays = []
    for field in kind:
        value = values.get(field.name)
        if isinstance(value, np.ndarray | pa.Array):
            arrays.append(pa.array(value).cast(field.type) if isinstance(value, np.ndarray) else value)
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _run(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds of CPU time, and the greatest memory in MiB. Raises BenchError for a command that fails."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # else each start compiles what an install has compiled
    command = [sys.executable, "-m", "sluice.cli.main", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchError(f"sluice {arguments[0]} ends with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024  # KiB on Linux
