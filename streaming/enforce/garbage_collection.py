"""Pauses Python's garbage collector while a PySpark worker processes rows."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def collection_paused() -> Iterator[None]:
    """Disable the cyclic collector while rows are processed: they contain no cycles, and collecting them is expensive.

    The collector is switched for the whole process. A stage yields its output from inside this block, so collection
    stays off while PySpark serialises a batch. It is on again when the stage's generator is exhausted or closed. Python
    closes a generator that PySpark drops after an error, so the worker's next task starts with the collector on.
    """
    freeze_imports()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_objects() -> None:
    """Exclude everything allocated so far from later collections."""
    gc.collect()
    gc.freeze()


@cache
def freeze_imports() -> None:
    """Once per worker process: PySpark runs a full collection after every task, which would scan all of pandas."""
    freeze_objects()
