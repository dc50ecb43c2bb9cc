"""Surroundings in which Sluice can't run as it is: modules of others, no assertions, closed streams.

Imports Python's own modules alone, as those of others may be the fault.
"""

import os
import sys
from importlib.machinery import PathFinder

NEEDED = frozenset(
    (
        *("anyio", "arro3", "crc32c", "deltalake", "filelock", "h11", "hdfs_native", "jinja2", "kafka", "markupsafe"),
        *("msgspec", "numpy", "pandas", "prometheus_client", "psutil", "py4j", "pyarrow", "pydantic", "pyspark"),
        *("rich", "starlette", "typer", "uvicorn", "yaml"),
    )
)
"""The modules of others that the job and the commands import."""


def foreign_python() -> str | None:
    """The change that gives this Python the modules and assertions that Sluice needs; None if it has them."""
    return lost_assertions() or _hidden_module()


def lost_assertions() -> str | None:
    """The change with which Kafka's client reads answers, which it does in assertions; None if it does."""
    if __debug__:
        return None
    return (
        "this Python runs without assertions, in which Kafka's client reads answers; unset PYTHONOPTIMIZE, and start it"
        " without -O"
    )


def _hidden_module() -> str | None:
    given = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    others = [folder for folder in sys.path if folder not in given]
    for folder in given:
        for name in sorted(sys.stdlib_module_names | NEEDED):
            found = PathFinder.find_spec(name, [folder])
            if found and found.origin and (name not in NEEDED or PathFinder.find_spec(name, others)):
                return (
                    f"{folder} of PYTHONPATH has another {name} ({found.origin}) than Sluice needs; leave this folder"
                    " out of PYTHONPATH"
                )
    return None


def open_standard_streams() -> None:
    """Give a process that was started without one of the three the null device: else its next file is one of them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 # for the whole process


def refused_output(error: Exception) -> str | None:
    """Why standard output takes nothing, with the next step; None if it isn't that which the error is about.

    An empty line tells, as an error of the system doesn't name a file that is open. The refused output is forgotten.
    """
    if not isinstance(error, OSError) or error.filename is not None:
        return None
    try:
        print(flush=True)
    except OSError as refusal:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"standard output can't be written ({refusal.strerror}); make room there, or send it elsewhere"
    return None
