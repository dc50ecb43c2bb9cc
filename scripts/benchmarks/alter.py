"""How long `sluice quotas alter` takes with many quotas in the table.

    python -m scripts.benchmarks.alter --quotas 100000 --runs 5

Prints the median time of the command, and next to it the time of a fixed Python loop: on a busy machine both grow.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from scripts.benchmarks.calibration import STEPS, calibration_s
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind


def measure_alter(
    quotas: Annotated[int, typer.Option(min=1, help="Quotas in the table, each of another user.")] = 100_000,
    runs: Annotated[int, typer.Option(min=1, help="Runs; the median is printed.")] = 5,
) -> None:
    """Time `sluice quotas alter` of one quota."""
    with TemporaryDirectory() as folder:
        table = str(Path(folder) / "quotas")
        entries = [QuotaEntry(QuotaEntity(user=f"u{n}"), QuotaKind.PRODUCER_BYTE_RATE, 1024.0) for n in range(quotas)]
        QuotasTable(table).create(entries, "benchmark", datetime.now(UTC))
        loops, alters = [], []
        for run in range(runs):
            loops.append(calibration_s())
            alters.append(_seconds(lambda value=run + 1: _alter(table, value)))  # type: ignore[misc] # mypy can't infer a lambda with a default
    print(f"alter with {quotas} quotas: {median(alters):.2f} s; a loop of {STEPS}: {median(loops):.2f} s")


def _alter(table: str, value: int) -> None:
    config = f"producer_byte_rate={value}"
    command = ["quotas", "alter", "--user", "u0", "--add-config", config, "--as", "benchmark", "--table", table]
    subprocess.run([sys.executable, "-m", "sluice.cli.main", *command], check=True, stdout=subprocess.DEVNULL)


def _seconds(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    typer.run(measure_alter)
