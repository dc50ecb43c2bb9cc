"""The set-up scripts: what they say when the machine lacks something, and that a second start does nothing."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from scripts.java.build import remove_others
from sluice.jvm.jars import REPOSITORY
from sluice_demo.job import wait_until
from tests.waiting import is_over

EXTRAS = sorted(str(file.relative_to(REPOSITORY)) for file in REPOSITORY.glob("extras/*/pyproject.toml"))
OF_DEMO = ("elastic", "insight", "proxy", "reading", "toolbox", "demo", "native")
DEMO_LOCK = "extras/demo/requirements.lock"
INSTALL = "-m pip install --require-hashes -r requirements.lock"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what ./scripts/setup looks at."""
    locks = ("pyproject.toml", "requirements.lock", "configs/jars.xml")
    return _with_files(tmp_path / "project", "scripts/setup", "scripts/steps", *locks, *EXTRAS, DEMO_LOCK)


def _with_files(project: Path, *names: str) -> Path:
    """The project with a copy of these files, too."""
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, project / name)
    return project


def _setup(project: Path, path: str | None = None, command: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PATH": path} if path else {})
    return subprocess.run(
        ["/bin/bash", project / "scripts" / "setup", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Its lines on standard error, but for those that a step says as often as it takes long."""
    return [line for line in done.stderr.splitlines() if not re.match("setup: (packages: |installing )", line)]


def _program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def _path_without_python(folder: Path) -> str:
    """A PATH with the tools that the script needs, and without a Python."""
    folder.mkdir()
    for tool in ("dirname", "sha256sum", "flock", "cat", "tail", "head", "rm", "mkdir", "grep", "sleep"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return str(folder)


@pytest.mark.parametrize(
    ("python3", "said"),
    [
        (
            'if [[ $1 == --version ]]; then echo "Python 3.9.2"; else exit 1; fi',
            "no Python 3.11 or newer on PATH (python3 is Python 3.9.2); install Python 3.11",
        ),
        (
            'if [[ $1 == -m ]]; then echo "ensurepip is not available"; exit 1; fi',
            "python3 -m venv .venv fails: ensurepip is not available; on Debian and Ubuntu install python3-venv",
        ),
    ],
    ids=["too old", "without venv"],
)
def test_a_python_that_makes_no_venv_is_one_clear_line_and_leaves_nothing(
    project: Path, tmp_path: Path, python3: str, said: str
) -> None:
    path = _path_without_python(tmp_path / "bin")
    _program(tmp_path / "bin", "python3", python3)

    done = _setup(project, path)

    assert done.returncode == 1
    assert _said(done) == [f"setup: {said}"]
    assert not (project / ".venv").exists()


def test_a_newer_python_beside_an_old_python3_is_found(project: Path, tmp_path: Path) -> None:
    path = _path_without_python(tmp_path / "bin")
    _program(tmp_path / "bin", "python3", "exit 1")
    _program(tmp_path / "bin", "python3.12", 'if [[ $1 == -c ]]; then exit 0; else echo "used: $*" >&2; exit 1; fi')

    assert "setup: python3.12 -m venv .venv fails: used: -m venv .venv" in _setup(project, path).stderr


def _made_ready(project: Path) -> None:
    """Leaves what a finished set-up leaves, with a Python that only writes down how it was called."""
    _program(project / ".venv", "calls", "")  # makes the folder
    (project / ".venv" / "bin").mkdir()
    _program(project / ".venv" / "bin", "python", 'echo "$*" >> .venv/calls')
    (project / ".venv" / "calls").write_text("")
    wanted = f"{project}\n".encode() + b"".join(
        (project / name).read_bytes() for name in ("pyproject.toml", *EXTRAS, "requirements.lock", "configs/jars.xml")
    )
    (project / ".venv" / "setup.stamp").write_text(f"{hashlib.sha256(wanted).hexdigest()}  -\n")


def _to_install(project: Path, python: str = "") -> None:
    """Leaves what an installation that was begun leaves, with a Python that does this, or as in `_made_ready`."""
    _made_ready(project)
    (project / ".venv" / "setup.stamp").unlink()
    if python:
        _program(project / ".venv" / "bin", "python", python)


@pytest.mark.parametrize("killed", [True, False])
def test_packages_of_a_killed_installation_are_installed_anew(project: Path, tmp_path: Path, killed: bool) -> None:
    """Pip takes them for installed, though files may be missing, and can't replace them by another version."""
    venv.create(project / ".venv")
    (packages,) = project.glob(".venv/lib/python*/site-packages")
    for name in ("pip", "one"):
        (packages / f"{name}-1.dist-info").mkdir()
        (packages / f"{name}-1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (packages / f"{name}-1.dist-info" / "RECORD").write_text("x,,\n")
    if killed:
        (packages / "one-1.dist-info" / "RECORD").unlink()
    _program(tmp_path / "bin", "python3", '[[ $1 != -m ]] || { echo "made anew"; exit 1; }')

    said = _setup(project, f"{tmp_path / 'bin'}:{os.environ['PATH']}").stderr

    assert ("python3 -m venv .venv fails: made anew" in said) == killed
    assert ("packages can't be installed" in said) != killed


def test_variables_of_another_python_do_not_matter(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another home no Python starts, and pip would take packages of other folders for installed."""
    _to_install(project, 'echo "${PYTHONHOME-}${PYTHONPATH-}" >>.venv/calls')
    for name in ("PYTHONHOME", "PYTHONPATH"):
        monkeypatch.setenv(name, "/opt/another")

    done = _setup(project, command=("bash", "-c", 'echo "${PYTHONHOME-}${PYTHONPATH-}"'))

    assert (done.returncode, done.stdout) == (0, "\n")
    assert "another" not in (project / ".venv" / "calls").read_text()


def test_a_second_start_only_looks_at_the_jars_and_runs_the_command_that_is_given(project: Path) -> None:
    _made_ready(project)

    done = _setup(project, command=("bash", "-c", 'echo "$@"; exit 3', "-", "a b", "c"))

    assert (done.returncode, done.stdout, done.stderr) == (3, "a b c\n", "")
    assert (project / ".venv" / "calls").read_text() == "-m scripts.prepare\n"


def test_a_demo_needs_less_and_the_rest_comes_beside_it_when_another_command_needs_it(project: Path) -> None:
    """A demo that runs meanwhile keeps its packages: nothing of them is installed again."""
    _to_install(project)
    for flags in (["--demo"], ["--demo"], [], [], ["--demo"]):
        assert _setup(project, command=(*flags, "true")).returncode == 0

    calls = [line for line in (project / ".venv" / "calls").read_text().splitlines() if line.startswith("-m ")]
    own = "-m pip install --no-deps --no-build-isolation"
    assert calls == [
        f"-m pip install --require-hashes -r {DEMO_LOCK}",
        f"{own} -e. {' '.join(f'-eextras/{name}' for name in OF_DEMO)}",
        *["-m scripts.prepare --demo"] * 2,
        INSTALL,
        f"{own} -eextras/shared_storage -eextras/http -eextras/telemetry -eextras/lab",
        *["-m scripts.prepare"] * 2,
        "-m scripts.prepare --demo",
    ]


def test_a_demo_starts_with_what_its_set_up_installs() -> None:
    """No other package can be imported here: the first command of the README runs where none of them is."""
    lock = (REPOSITORY / DEMO_LOCK).read_text().splitlines()
    installed = {line.partition("==")[0] for line in lock if "==" in line} | {"pip", "setuptools"}
    installed |= {"sluice-kafka", *(f"sluice-kafka-{name}" for name in OF_DEMO)}
    distributions = packages_distributions().items()
    others = [module for module, names in distributions if not {canonical(each) for each in names} & installed]
    assert {"sluice_shared_storage", "sluice_lab", "hypothesis"} <= {*others}
    started = "scripts.prepare, sluice.streaming.job, sluice_demo.command, sluice_insight.console.server"
    program = f"import sys; sys.modules.update(dict.fromkeys({others})); import {started}, sluice_toolbox.checks"

    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def canonical(name: str) -> str:
    """The name of a package as a lock has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_a_demo_has_the_versions_and_hashes_of_the_projects_lock() -> None:
    demo, project = (
        set(re.findall(r"^\S+==\S+|--hash=\S+", (REPOSITORY / name).read_text(), re.MULTILINE))
        for name in (DEMO_LOCK, "requirements.lock")
    )

    assert demo < project


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock"])
def test_a_changed_pin_installs_again(project: Path, name: str) -> None:
    _made_ready(project)
    with (project / name).open("a") as file:
        file.write("# changed\n")

    assert _setup(project).returncode == 0
    assert INSTALL in (project / ".venv" / "calls").read_text()


def test_two_starts_at_once_install_once(project: Path) -> None:
    _to_install(project)
    command = ["/bin/bash", str(project / "scripts" / "setup")]
    starts = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]

    assert [start.wait() for start in starts] == [0, 0]
    calls = (project / ".venv" / "calls").read_text().splitlines()
    assert calls.count(INSTALL) == 1
    assert calls.count("-m scripts.prepare") == 2


def test_a_start_after_a_killed_one_waits_for_the_pip_that_it_left_and_installs_all(project: Path) -> None:
    _to_install(project)
    waits = "echo begins >>.venv/calls; until [[ -e .venv/go ]]; do sleep 0.1; done; echo ends >>.venv/calls"
    _program(project / ".venv" / "bin", "python", f"[[ $2 != pip ]] || {{ {waits}; }}")
    command, calls = ["/bin/bash", str(project / "scripts" / "setup")], project / ".venv" / "calls"
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: calls.read_text() == "begins\n", 120)
    killed.kill()
    killed.wait()

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as again:
        assert again.stderr is not None
        assert again.stderr.readline().startswith("setup: packages: ")  # it waits
        (project / ".venv" / "go").touch()
        again.communicate()

    assert again.returncode == 0
    assert calls.read_text().splitlines() == ["begins", "ends"] * 3
    assert (project / ".venv" / "setup.stamp").exists()


def test_packages_that_cannot_be_installed_are_one_clear_line(project: Path) -> None:
    _to_install(project, '[[ $2 == pip ]] || exit 0; echo "ERROR: no network"; exit 1')

    done = _setup(project, command=("touch", str(project / "ran")))

    assert done.returncode == 1
    assert _said(done) == [
        "setup: packages can't be installed: ERROR: no network; check the network, then try again; "
        "all of it: .venv/setup.log"
    ]
    assert not (project / "ran").exists()


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
@pytest.mark.parametrize(
    ("script", "step"),
    [
        ("scripts/setup", "pip"),
        ("scripts/setup", "scripts.prepare"),
        ("scripts/check", "scripts.docstrings"),
        ("scripts/test-long", "pytest"),
        (".ci/run", "scripts.docstrings"),
    ],
)
def test_a_signal_ends_each_step_and_what_it_has_started(
    project: Path, sent: signal.Signals, code: int, script: str, step: str
) -> None:
    """Some of what pip and compilers start leaves SIGTERM alone, or is left behind."""
    _made_ready(_with_files(project, "scripts/check", "scripts/test-long", ".ci/run"))
    _program(project / ".venv" / "bin", "ruff", "exit 0")
    if step == "pip":
        (project / ".venv" / "setup.stamp").unlink()
    wait = 'echo "$$" >.venv/pid.new; mv .venv/pid.new .venv/pid; exec sleep 60'
    works = f"""[[ $2 == {step} ]] || exit 0; bash -c 'trap "" TERM; {wait}' & wait"""
    _program(project / ".venv" / "bin", "python", works)
    command = ["/bin/bash", str(project / script), "touch", str(project / "ran")]
    starting = subprocess.Popen(command, start_new_session=True)
    pid = project / ".venv" / "pid"
    wait_until(pid.exists, 120)

    starting.send_signal(sent)

    assert starting.wait() == code
    wait_until(lambda: is_over(int(pid.read_text())), 120)
    assert not (project / "ran").exists()


def test_a_signal_right_after_the_start_of_a_step_ends_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _to_install(project, '[[ $2 == pip ]] || exit 0; echo "$$" >.venv/pid; exec sleep 600 >&- 2>&-')
    signals = "until [[ -s .venv/pid ]]; do sleep 0.1; done; kill -TERM $$"
    (project / "hook").write_text(f"""set -T
        trap '[[ "$BASH_COMMAND $*" != running*pip* ]] || {{ {signals}; }}' DEBUG""")
    monkeypatch.setenv("BASH_ENV", str(project / "hook"))

    assert _setup(project).returncode == 143
    wait_until(lambda: is_over(int((project / ".venv" / "pid").read_text())), 120)


def test_a_long_step_says_every_few_seconds_how_far_it_is(project: Path) -> None:
    """Also to a pipe: nothing at all for minutes looks like a command that hangs."""
    _to_install(project)
    (project / ".venv" / "lib" / "python3.11" / "site-packages" / "one.dist-info").mkdir(parents=True)
    pip = '[[ $2 == pip ]] || exit 0; echo "Collecting one"; echo "Collecting two"'
    _program(project / ".venv" / "bin", "python", f"{pip}; until [[ -e .venv/go ]]; do /bin/sleep 0.1; done")
    _program(project / "bin", "sleep", "exec /bin/sleep 0.1")
    wanted = len([line for line in (project / "requirements.lock").read_text().splitlines() if line[:1].isalnum()])
    environment = os.environ | {"PATH": f"{project / 'bin'}:{os.environ['PATH']}"}

    with subprocess.Popen(
        ["/bin/bash", project / "scripts" / "setup"], env=environment, stderr=subprocess.PIPE, text=True
    ) as starting:
        assert starting.stderr is not None
        # Each step says where it is again and again, and pip hasn't begun yet for as long as the machine needs.
        is_told = any(line == f"setup: packages: 2 of {wanted} fetched, 1 installed\n" for line in starting.stderr)
        (project / ".venv" / "go").touch()
        starting.communicate()

    assert (is_told, starting.returncode) == (True, 0)


def test_checks_without_tests_start_none(project: Path) -> None:
    _made_ready(_with_files(project, "scripts/check"))
    for tool in ("ruff", "mypy", "lint-imports", "mkdocs"):
        _program(project / ".venv" / "bin", tool, 'echo "${0##*/} $1" >> .venv/calls')

    subprocess.run([project / "scripts" / "check", "--no-tests"], check=True)

    calls = [" ".join(line.split()[:2]) for line in (project / ".venv" / "calls").read_text().splitlines()]
    types = ["mypy", "mypy --explicit-package-bases"]  # beside the others
    assert [call for call in calls if call in types] == types
    assert [call for call in calls if call not in types] == [
        "ruff check",
        "ruff format",
        "-m scripts.docstrings",
        "-m scripts.ceilings",
        "-m scripts.fields",
        "lint-imports --no-logo",
        "mkdocs --quiet",
    ]


@pytest.mark.parametrize("failing", ["mypy", "mkdocs"])
def test_a_check_that_fails_fails_them_all_after_the_others_have_ended(project: Path, failing: str) -> None:
    _made_ready(_with_files(project, "scripts/check"))
    for tool in ("ruff", "mypy", "lint-imports", "mkdocs"):
        _program(project / ".venv" / "bin", tool, f'echo "${{0##*/}}" >> .venv/calls; [[ $0 != */{failing} ]]')

    assert subprocess.run([project / "scripts" / "check"], check=False).returncode == 1

    calls = (project / ".venv" / "calls").read_text().splitlines()
    assert (calls.count("mypy"), "mkdocs" in calls) == (2 - (failing == "mypy"), True)
    assert not any("pytest" in call for call in calls)


def test_the_scripts_are_executable() -> None:
    names = ("scripts/setup", "scripts/test", "scripts/test-long", "scripts/lock", ".ci/run")
    assert all(os.access(REPOSITORY / name, os.X_OK) for name in names)


def test_a_jar_that_is_built_no_more_is_in_no_wheel(tmp_path: Path) -> None:
    for name in ("plugin.jar", "moved.jar", "classes.jsa"):
        (tmp_path / name).touch()

    remove_others([tmp_path / "plugin.jar"])

    assert sorted(each.name for each in tmp_path.iterdir()) == ["classes.jsa", "plugin.jar"]
