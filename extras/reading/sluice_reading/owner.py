"""Files that a command of another account leaves to the account of the table."""

import logging
import os
import stat
from shlex import quote

log = logging.getLogger("sluice.tables")


def warn_of_owner(path: str, beside: str | None = None) -> None:
    """Give what this account has written into another's table to that one; if it may not, a line of the log says so.

    A command that root runs would leave files that the table's own account can't read. A table that this account may
    have made is of the account that the one `beside` it is of.
    """
    if "://" in path:
        return
    try:
        own = os.stat(beside or path)
    except OSError:  # the table beside it isn't there yet
        return
    if own.st_uid == os.geteuid():
        return
    for folder, _, files, opened in os.fwalk(os.path.realpath(path)):
        for name in (".", *files):
            try:
                _give(name, opened, own)
            except FileNotFoundError:  # removed meanwhile
                continue
            except OSError as error:
                log.warning(
                    "%s is of this account (%d), in a table of account %d, which may not read it (%s); run such"
                    " commands as that one, and give it the file: chown -R %d:%d %s",
                    *(os.path.normpath(os.path.join(folder, name)), os.geteuid(), own.st_uid, error.strerror),
                    *(own.st_uid, own.st_gid, quote(os.path.abspath(path))),
                )
                return


def _give(name: str, folder: int, own: os.stat_result) -> None:
    """Give a file or folder of this account, in an open folder, to another account. Raises OSError.

    That account may have put links to other files of this one into its table: those stay.
    """
    if os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid != os.geteuid():
        return
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        found = os.fstat(opened)
        is_folder = stat.S_ISDIR(found.st_mode)
        if found.st_uid == os.geteuid() and (is_folder or found.st_nlink == 1):
            os.fchown(opened, own.st_uid, own.st_gid)
            os.fchmod(opened, own.st_mode & (0o777 if is_folder else 0o666))
    finally:
        os.close(opened)
