"""How fast `sluice whatif` replays a recorded span, and how much memory it takes.

    python -m scripts.benchmarks.whatif --hours 1 --processes 2

Writes a table of decisions as the audit query does, a file for every 10 s and compacted like the job's, with 1 000
requests/s of one charge each by 1 000 users, then replays it under half of the limit of the busiest users.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from deltalake import DeltaTable, write_deltalake

from scripts.benchmarks.calibration import STEPS, calibration_s
from sluice.state.arithmetic.columns import Integers

START_MS = 1_780_000_000_000
BATCH_MS = 10_000
MICRO_BATCH_MS = 500
LIMIT = 100_000.0
BYTES = 20_000
"""Of a request; a user has one a second on average, and the busiest ten have twelve."""

_AMOUNTS = pa.struct(
    [
        ("bytes", pa.int64()),
        ("request_time_ns", pa.int64()),
        (
            "topic_partitions",
            pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("bytes", pa.int64())])),
        ),
        ("withheld", pa.bool_()),
        ("requests", pa.int32()),
    ]
)


def measure_whatif(
    hours: Annotated[float, typer.Option(help="Length of the recording.")] = 1.0,
    rate: Annotated[int, typer.Option(help="Requests a second.")] = 1000,
    users: Annotated[int, typer.Option(help="Users, each with one client-id.")] = 1000,
    processes: Annotated[int, typer.Option(help="Processes of the replay.")] = 2,
    compacted: Annotated[bool, typer.Option(help="Compact the table, as the job does.")] = True,
) -> None:
    """Time a replay."""
    with TemporaryDirectory() as folder:
        table, quotas, settings = Path(folder) / "decisions", Path(folder) / "quotas.yaml", Path(folder) / "s.yaml"
        rows = 0
        for batch in recorded(int(hours * 3_600_000), rate, users):
            rows += batch.num_rows
            write_deltalake(str(table), batch, mode="append", partition_by=["date"])
        if compacted:
            DeltaTable(str(table)).optimize.compact()
        quotas.write_text(f"- {{entity: {{user: null}}, quotas: {{producer_byte_rate: {LIMIT:.0f}}}}}\n")
        settings.write_text(f"delta: {{decisions: {table}}}\n")
        command = ["whatif", "--quotas", str(quotas), "--config", str(settings), "--json"]
        command += ["--from", _time(START_MS), "--to", _time(START_MS + int(hours * 3_600_000))]
        seconds, cpu_s, mebibytes, found = _run([*command, "--processes", str(processes)])
        print(
            f"{rows} decisions in {len(DeltaTable(str(table)).file_uris())} files, {processes} processes: "
            f"{seconds:.1f} s ({rows / seconds:.0f}/s, {hours * 3600 / seconds:.0f} times the recorded time at "
            f"{rate}/s), CPU {cpu_s:.1f} s, {mebibytes:.0f} MiB at most in one process, load {os.getloadavg()[0]:.1f}; "
            f"{found['total']['throttled_now']} of {found['total']['requests']} requests throttled; "
            f"a loop of {STEPS}: {calibration_s():.2f} s",
            flush=True,
        )


def recorded(length_ms: int, rate: int, users: int) -> Iterator[pa.Table]:
    """The rows of decisions, BATCH_MS by BATCH_MS: users at random, ten of them twelve times as busy."""
    random = np.random.default_rng(21)
    weights = np.where(np.arange(users) < 10, 12.0, 1.0)
    offset = 0
    for start_ms in range(START_MS, START_MS + length_ms, BATCH_MS):
        count = rate * BATCH_MS // 1000
        times_ms = start_ms + np.arange(count) * 1000 // rate
        chosen = random.choice(users, count, p=weights / weights.sum())
        yield _rows(times_ms, chosen, offset)
        offset += count


def _rows(times_ms: Integers, chosen: Integers, offset: int) -> pa.Table:
    count = len(times_ms)
    offsets = offset + np.arange(count)
    amounts = [
        {"topic_partitions": [{"topic": "orders", "partition": number % 6, "bytes": BYTES}]} for number in range(count)
    ]
    return pa.table(
        {
            "decision_id": [f"quota-requests-0-{number}" for number in offsets],
            "source_partition": pa.array(np.zeros(count), pa.int32()),
            "source_offset": pa.array(offsets),
            "timestamp_ms": pa.array(times_ms),
            "decided_at_ms": pa.array((times_ms // MICRO_BATCH_MS + 1) * MICRO_BATCH_MS),
            "user": [f"user-{number}" for number in chosen],
            "client_id": ["app"] * count,
            "api": ["Produce"] * count,
            "verdict": ["ALLOW"] * count,
            "throttle_time_ms": pa.array(np.zeros(count), pa.int64()),
            "throttled_by": pa.nulls(count, pa.list_(pa.struct([("quota", pa.string()), ("ms", pa.int64())]))),
            "amounts": pa.array(amounts, _AMOUNTS),
            "date": [datetime.fromtimestamp(int(times_ms[0]) / 1000, UTC).date()] * count,
        }
    )


def _run(command: list[str]) -> tuple[float, float, float, dict[str, dict[str, int]]]:
    """Seconds, seconds of CPU, the greatest memory of a process in MiB, and what was printed."""
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        with out.open("w") as written:
            process = subprocess.Popen([sys.executable, "-m", "sluice.cli.main", *command], stdout=written)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit("whatif failed")
        seconds = time.perf_counter() - started
        per_mebibyte = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes on macOS, else in KiB
        return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / per_mebibyte, json.loads(out.read_text())


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


if __name__ == "__main__":
    typer.run(measure_whatif)
