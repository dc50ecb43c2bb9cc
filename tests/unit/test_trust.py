"""Sluice takes neither jars nor archives nor settings from where another user can write."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.cli import options
from sluice.jvm import jars
from sluice.jvm.errors import JarError
from sluice.process.trust import make_folder, stranger
from sluice_demo import work_folder as runs
from sluice_demo.announced import announced_run
from sluice_demo.jars import BROKER_CLASSES, BROKER_JARS

STRANGER = 4711
"""A user id that this machine's user isn't."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def give(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_a_group(path: Path) -> None:
    os.chown(path, -1, STRANGER)
    path.chmod(0o775)


WAYS = [
    pytest.param(give, rf"belongs to uid {STRANGER}", marks=as_root),
    pytest.param(open_to_a_group, rf"can be written by the group {STRANGER}", marks=as_root),
    (open_to_all, r"can be written by every user"),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of an installed Sluice, in which the broker's jars are complete by their stamp."""
    monkeypatch.setattr(jars, "in_checkout", lambda: False)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    make_folder(BROKER_JARS.folder)
    (BROKER_JARS.folder / "evil.jar").write_bytes(b"PK any classes")
    (BROKER_JARS.folder / "stamp.json").write_text(json.dumps(BROKER_JARS._stamp(BROKER_JARS.folder)))
    return tmp_path / "home"


@pytest.mark.parametrize(("open_up", "why"), WAYS)
@pytest.mark.parametrize("part", [".", "jars", "jars/broker", "jars/broker/evil.jar"])
def test_jars_are_only_taken_from_where_nobody_else_writes(
    home: Path, part: str, open_up: Callable[[Path], None], why: str
) -> None:
    """On the whole way to them: who can rename a folder above decides what is in it."""
    assert [jar.name for jar in BROKER_JARS.paths()] == ["evil.jar"]  # it is this user's
    open_up(home / part)

    for taken in (BROKER_JARS.paths, BROKER_CLASSES.find, BROKER_JARS.verify):
        expected = rf"^{(home / part).resolve()} {why}, so no jars are taken from there; .*set SLUICE_HOME"
        with pytest.raises(JarError, match=expected):
            taken()


@pytest.mark.parametrize(("open_up", "why"), WAYS)
@pytest.mark.usefixtures("home")
def test_an_archive_that_another_can_write_isnt_used(open_up: Callable[[Path], None], why: str) -> None:
    file = BROKER_CLASSES._archive().file
    file.write_bytes(b"")
    assert BROKER_CLASSES.find() is not None
    open_up(file)

    with pytest.raises(JarError, match=f"{file} {why}, so no classes"):
        BROKER_CLASSES.find()


@pytest.mark.parametrize(("open_up", "why"), WAYS)
def test_settings_of_a_run_that_another_announces_dont_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_up: Callable[[Path], None], why: str
) -> None:
    running = tmp_path / "running"
    monkeypatch.setattr(options, "RUNNING", running)
    make_folder(running)
    (running / "run").write_text("/anywhere/settings.yaml")
    with (running / "run").open() as planted:
        fcntl.flock(planted, fcntl.LOCK_EX)
        assert options.running_settings() == [Path("/anywhere/settings.yaml")]
        open_up(running)
        assert options.running_settings() == []
    with pytest.raises(JarError, match=why), announced_run("mine", tmp_path / "settings.yaml"):
        pass


@pytest.mark.parametrize(("open_up", "why"), WAYS)
def test_a_run_doesnt_work_in_a_folder_of_another(
    home: Path, monkeypatch: pytest.MonkeyPatch, open_up: Callable[[Path], None], why: str
) -> None:
    monkeypatch.setattr(runs, "in_checkout", lambda: False)
    with runs.work_folder("run", fresh=True) as folder:
        assert folder == home / "work" / "run"
    open_up(home / "work")

    with pytest.raises(JarError, match=f"{home}/work {why}"), runs.work_folder("run", fresh=True):
        pass


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder such as /tmp: all write, and nobody replaces what another owns."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@as_root
def test_a_link_of_another_user_is_not_followed(open_folder: Path, tmp_path: Path) -> None:
    """Nor in the middle of a path, nor behind a link of this user, whose links count."""
    (tmp_path / "mine" / "jars").mkdir(parents=True)
    for name in ("own", "planted"):
        (open_folder / name).symlink_to(tmp_path / "mine")
    give(open_folder / "planted")
    (tmp_path / "to-planted").symlink_to(open_folder / "planted")
    (tmp_path / "round").symlink_to(tmp_path / "round")

    assert stranger(open_folder / "own" / "jars") is None
    assert stranger(open_folder / "own" / "not-there-yet") is None
    expected = f"{open_folder}/planted belongs to uid {STRANGER}"
    assert stranger(open_folder / "planted" / "jars") == expected
    assert stranger(open_folder / "planted") == expected
    assert stranger(tmp_path / "to-planted" / "jars") == expected
    assert stranger(tmp_path / "round") == f"{tmp_path}/round is one link of too many"


def test_what_sluice_makes_is_its_owners_whatever_the_umask(
    open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
    before = os.umask(0)
    try:
        make_folder(open_folder / "sluice-1" / "jars")
        make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)

    assert (open_folder / "sluice-1").stat().st_mode & 0o777 == 0o700
    assert stranger(open_folder / "sluice-1" / "jars") is None
    assert stranger(tmp_path / "a" / "b") is None


_AS_A_USER = """
import os, sys
import sluice.jvm.jars as jars
jars.in_checkout = lambda: False
os.setgroups([])
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
with jars.home_lock("x"):
    print(jars.sluice_home(), oct(jars.jars_home().parent.stat().st_mode & 0o777))
"""


@as_root
def test_without_a_home_the_folder_in_tmp_is_private_and_that_of_another_user_refused(open_folder: Path) -> None:
    """The account of a container has neither name nor HOME; the other user needs nothing but the name of the folder."""

    def run(uid: int) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(open_folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", _AS_A_USER, str(uid)]
        return subprocess.run(
            command, env=environment, cwd=jars.REPOSITORY, capture_output=True, text=True, check=False
        )

    planted = open_folder / "sluice-4712"
    planted.mkdir()
    planted.chmod(0o777)
    give(planted)

    assert run(4713).stdout == f"{open_folder}/sluice-4713 0o700\n"
    assert f"JarError: {planted} belongs to uid {STRANGER}, so no jars are taken from there" in run(4712).stderr
