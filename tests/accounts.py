"""Other accounts of this machine, which only root can become."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STRANGER = 54_321
"""The number of an account without a name."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another account")


@contextmanager
def as_account(number: int) -> Iterator[None]:
    """Have the rights of another account, with a umask of 077."""
    before, own = os.umask(0o077), os.geteuid()
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(own)
        os.umask(before)


def give(folder: Path, number: int) -> None:
    """Give a folder and all in it to an account."""
    for place in (folder, *folder.rglob("*")):
        os.chown(place, number, number)
