"""Files that others could have put there: neither code nor settings are taken from where another user can write."""

import os
import pwd
import stat
from pathlib import Path
from tempfile import gettempdir

_MOST_LINKS = 40
"""Links in one path, as Linux follows them."""

_OWNER_OF_CODE = Path(__file__).stat().st_uid

CURE = "make it yours alone (chown, chmod go-w), or set SLUICE_HOME to a folder that nobody else can write"
"""The operator's next step, for the end of a message."""


def stranger(path: Path) -> str | None:
    """Why another user decides what is at a path: the first part of it that is another's; None if nobody does.

    Trusted are this user, root, and the owner of Sluice's own code. Parts that aren't there yet count as this user's.
    Parts that links lead to count, too.
    """
    return _stranger(Path(os.path.abspath(path)), _MOST_LINKS)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, none of them writable for others, whatever the umask.

    One in the folder of temporary files is accessible to this user alone. Raises OSError.
    """
    missing = [part for part in (*reversed(folder.parents), folder) if not part.exists()]
    for part in missing:
        part.mkdir(0o700 if part.parent == Path(gettempdir()) else 0o755, exist_ok=True)


def _stranger(path: Path, links: int) -> str | None:
    for part in (*reversed(path.parents), path):
        try:
            status = os.lstat(part)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{part} can't be looked at ({error.strerror})"
        if fault := _fault(status):
            return f"{part} {fault}"
        if stat.S_ISLNK(status.st_mode):
            if links == 0:
                return f"{part} is one link of too many"
            target = Path(os.path.abspath(part.parent / os.readlink(part)))
            return _stranger(target / path.relative_to(part), links - 1)
    return None


def _fault(status: os.stat_result) -> str | None:
    if status.st_uid not in (0, os.geteuid(), _OWNER_OF_CODE):
        return f"belongs to {_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return None  # a link has no rights; in a folder such as /tmp nobody replaces what another owns
    if status.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    # root's group, or one that has this user alone, as many systems make one of the user's name
    is_own_group = status.st_gid == 0 or status.st_gid == os.getegid() == os.geteuid()
    if status.st_mode & stat.S_IWGRP and not is_own_group:
        return f"can be written by the group {status.st_gid}"
    return None


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
