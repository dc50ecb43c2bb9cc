"""How long `sluice quotas apply` takes with many quotas in the file, and how much memory.

    python -m scripts.benchmarks.apply --quotas 200000

Applies a file of quotas to an empty table, then the same file with other values. Prints time and greatest memory of
both.
"""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from sluice.sinks.tables.quotas import QuotasTable


def measure_apply(
    quotas: Annotated[int, typer.Option(min=1, help="Quotas in the file, each of another user.")] = 200_000,
) -> None:
    """Time `sluice quotas apply` of a file."""
    with TemporaryDirectory() as folder:
        table, file = Path(folder) / "quotas", Path(folder) / "quotas.yaml"
        QuotasTable(str(table)).create([], "benchmark", datetime.now(UTC))
        for what, value in (("new", 1024), ("changed", 2048)):
            with file.open("w") as written:
                written.writelines(
                    f"- entity: {{user: user-{number}}}\n  quotas: {{producer_byte_rate: {value}}}\n"
                    for number in range(quotas)
                )
            seconds, mebibytes = _apply(file, table)
            print(f"{quotas} {what} quotas: {seconds:.1f} s, {mebibytes:.0f} MiB", flush=True)


def _apply(file: Path, table: Path) -> tuple[float, float]:
    """Seconds, and the greatest memory of the process in MiB."""
    started = time.perf_counter()
    command = ["quotas", "apply", str(file), "--yes", "--as", "benchmark", "--table", str(table)]
    process = subprocess.Popen([sys.executable, "-m", "sluice.cli.main", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit("apply failed")
    per_mebibyte = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes on macOS, else in KiB
    return time.perf_counter() - started, usage.ru_maxrss / per_mebibyte


if __name__ == "__main__":
    typer.run(measure_apply)
