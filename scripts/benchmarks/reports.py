"""How long reports take over a day of many decisions, and how much memory.

    python -m scripts.benchmarks.reports --decisions 10000000

Makes the table of one day, in the order of time, in files as a compaction leaves them, and runs the commands on it.
"""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from deltalake import write_deltalake

from scripts.benchmarks.calibration import STEPS, calibration_s
from sluice.insight.reports.span import to_ms
from sluice.sinks.tables.quotas import QuotasTable

DAY = datetime(2026, 11, 2, tzinfo=UTC)
_DAY_MS = 86_400_000
_ROWS_PER_FILE = 500_000
_TEXT = pa.string()
_ENTITY = pa.struct({"user": _TEXT, "client_id": _TEXT, "topic": _TEXT, "partition": pa.int32()}.items())
_SOURCE = "source_topic,source_partition,source_offset"
_LOOKED_UP_BY = f"decision_id,{_SOURCE},timestamp_ms,decided_at_ms,user,client_id"
"""The columns with statistics, as the job sets them."""


def measure_reports(
    decisions: Annotated[int, typer.Option(min=1, help="Decisions of the day.")] = 10_000_000,
    clients: Annotated[int, typer.Option(min=1, help="Clients that sent them.")] = 10_000,
    folder: Annotated[Path | None, typer.Option(help="Keep the table here, and take the one that is there.")] = None,
) -> None:
    """Time `sluice explain`, `sluice usage` and `sluice slo`."""
    with TemporaryDirectory() as temporary:
        where = folder or Path(temporary)
        if not (where / "decisions").exists():
            # The greatest memory of a child begins with that of this process, which has to stay small.
            writer = get_context("spawn").Process(target=_write, args=(where, decisions, clients))
            writer.start()
            writer.join()
        settings = where / "settings.yaml"
        settings.write_text(f"delta: {{decisions: {where / 'decisions'}, quotas: {where / 'quotas'}}}\n")
        day = ["--from", f"{DAY:%Y-%m-%d}", "--to", f"{DAY + timedelta(days=1):%Y-%m-%d}"]
        end = ["--at", f"{DAY + timedelta(days=1):%Y-%m-%d}"]
        print(f"load {os.getloadavg()[0]:.1f}, a loop of {STEPS}: {calibration_s():.2f} s", flush=True)
        for command in (
            ["explain", f"quota-requests-0-{decisions // 2}"],
            ["explain", "--user", "user-7", "--client-id", "app", *end],
            ["explain", "--user", "nobody", "--client-id", "app", *end],
            ["usage", "--by", "user", "--per", "day", "--format", "csv", *day],
            ["usage", "--by", "client", "--per", "hour", "--format", "csv", *day],
            ["usage", "--by", "topic", "--per", "day", "--format", "csv", *day],
            ["slo", *day],
        ):
            seconds, cpu_s, mebibytes = _run(command, settings)
            print(f"sluice {' '.join(command)}: {seconds:.1f} s, {cpu_s:.1f} s of CPU, {mebibytes:.0f} MiB", flush=True)


def _write(where: Path, decisions: int, clients: int) -> None:
    QuotasTable(str(where / "quotas")).create([], "benchmark", DAY)
    generator = np.random.default_rng(1)
    for first in range(0, decisions, _ROWS_PER_FILE):
        offsets = np.arange(first, min(decisions, first + _ROWS_PER_FILE))
        write_deltalake(
            where / "decisions",
            _rows(offsets, decisions, clients, generator),
            mode="append",
            partition_by=["date"],
            configuration={"delta.dataSkippingStatsColumns": _LOOKED_UP_BY},
        )


def _rows(offsets: np.ndarray, decisions: int, clients: int, generator: np.random.Generator) -> pa.Table:
    """Produce requests of one topic-partition and one charge each; one in a hundred is throttled."""
    count = len(offsets)
    at_ms = to_ms(DAY) + offsets * _DAY_MS // decisions
    users = pa.array([f"user-{number}" for number in generator.integers(clients, size=count)])
    ids = pa.array([f"quota-requests-0-{offset}" for offset in offsets])
    waits = np.where(generator.random(count) < 0.01, generator.integers(1, 5000, count), 0)
    sizes, ones = generator.integers(1, 100_000, count), pa.array(np.arange(count + 1, dtype=np.int32))
    nothing = pa.nulls(count, _TEXT)
    entity = _struct(user=users, client_id=nothing, topic=nothing, partition=pa.nulls(count, pa.int32()))
    charge = _struct(
        quota=_same("producer_byte_rate", count), entity=entity, matched=_same("user", count),
        limit=_same(1e6, count), value=pa.array(sizes, pa.float64()), rate=pa.array(sizes, pa.float64()),
        tokens=pa.nulls(count, pa.float64()), throttle_ms=pa.array(waits, pa.int64()), violated=pa.array(waits > 0),
        mode=nothing,
    )  # fmt: skip
    partition = _struct(
        topic=_same("orders", count), partition=_same(0, count, pa.int32()), bytes=pa.array(sizes, pa.int64())
    )
    amounts = _struct(
        bytes=pa.nulls(count, pa.int64()), request_time_ns=pa.array(sizes, pa.int64()),
        network_time_ns=pa.nulls(count, pa.int64()), topic_partitions=pa.ListArray.from_arrays(ones, partition),
        mutations=pa.nulls(count, pa.list_(pa.struct([("topic", _TEXT), ("partitions", pa.int32())]))),
        mutations_charged=pa.nulls(count, pa.int32()), validate_only=pa.nulls(count, pa.bool_()),
        cluster_action=pa.nulls(count, pa.bool_()), withheld=pa.nulls(count, pa.bool_()),
        requests=pa.nulls(count, pa.int32()),
    )  # fmt: skip
    applied = pa.list_(pa.struct([("quota", _TEXT), ("entity", _ENTITY), ("ms", pa.int64())]))
    return pa.table(
        {
            "source_topic": _same("quota-requests", count), "source_partition": _same(0, count, pa.int32()),
            "source_offset": pa.array(offsets, pa.int64()), "decision_id": ids, "request_id": ids,
            "timestamp_ms": pa.array(at_ms, pa.int64()), "user": users, "client_id": _same("app", count),
            "api": _same("Produce", count), "gateway": _same("gateway-1", count),
            "verdict": pa.array(np.where(waits > 0, "THROTTLE", "ALLOW")), "throttle_time_ms": pa.array(waits),
            "mute_until_ms": pa.array(at_ms + waits), "decided_by": _same("producer_byte_rate", count),
            "charges": pa.ListArray.from_arrays(ones, charge), "quota_version": _same(0, count, pa.int64()),
            "decided_at_ms": pa.array(at_ms, pa.int64()), "throttled_by": pa.nulls(count, applied),
            "amounts": amounts, "date": _same(DAY.date(), count, pa.date32()),
        }
    )  # fmt: skip


def _struct(**columns: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _same(value: object, count: int, kind: pa.DataType | None = None) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _run(command: list[str], settings: Path) -> tuple[float, float, float]:
    """Seconds, those of CPU, and the greatest memory of the process in MiB."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # else each start compiles what an install has compiled
    command = [sys.executable, "-m", "sluice.cli.main", *command, "--config", str(settings)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    per_mebibyte = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes on macOS, else in KiB
    cpu_s = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - started, cpu_s, usage.ru_maxrss / per_mebibyte


if __name__ == "__main__":
    typer.run(measure_reports)
