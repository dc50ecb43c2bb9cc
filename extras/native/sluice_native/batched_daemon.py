"""The worker daemon with batched workers (`spark.python.daemon.module`); PySpark's own where the contract is broken."""

import sys

from sluice_native.batched import use_batched_groups
from sluice_native.contract import contract
from sluice_native.daemon import run_loaded


def use_batched_workers() -> None:
    """Replace the path of groups of all workers to come, or say in one line why they keep PySpark's own."""
    import pyspark.worker

    release, reason = contract()
    if release is not None:
        use_batched_groups(pyspark.worker, release)
    else:
        print(f"sluice: workers are PySpark's own, slower with many pages: {reason}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_loaded(use_batched_workers)
