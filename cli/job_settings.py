"""Settings that a command takes: --config, else $SLUICE_CONFIG, else a running ./scripts/run, else the defaults."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import Settings, load_settings

CONFIG_VARIABLE = "SLUICE_CONFIG"
"""The environment variable that names the settings file where --config doesn't."""

RUNNING = Path(__file__).resolve().parents[1] / ".work" / "running"
"""One file for each running ./scripts/run of this checkout, with the path of the settings; its process locks it.

A lock ends with its process, so the file of a run that was killed counts no more.
"""


def job_settings(config: Path | None, *, running: bool = True, say: bool = True) -> Settings:
    """Load the settings of the job; unless `config` names them, standard error says which they are.

    Without `running` a running ./scripts/run doesn't count, without `say` nothing is said. Raises InvalidSettingsError.
    """
    path, source = settings_file(config, running=running)
    settings = load_settings(path)
    if say and config is None:
        typer.echo(f"sluice: settings: {source}", err=True)
    return settings


def settings_file(config: Path | None, *, running: bool) -> tuple[Path | None, str]:
    """The settings file, None for the defaults, and its source in words.

    Raises InvalidSettingsError if several ./scripts/run are running and nothing says which one is meant.
    """
    if config is not None:
        return config, str(config)
    if variable := os.environ.get(CONFIG_VARIABLE):
        return Path(variable), f"{variable} (from {CONFIG_VARIABLE})"
    runs = running_settings() if running else []
    if len(runs) > 1:
        names = ", ".join(map(str, runs))
        raise InvalidSettingsError(
            f"{len(runs)} ./scripts/run are running; name the one you mean with --config: {names}"
        )
    if runs:
        return runs[0], f"{runs[0]} (of the running ./scripts/run)"
    return None, f"the defaults; --config or {CONFIG_VARIABLE} names those of a job"


@contextmanager
def announced_run(name: str, settings_file: Path) -> Iterator[None]:
    """Let commands find the settings of this process while the block runs, under a `name` of its own."""
    RUNNING.mkdir(parents=True, exist_ok=True)
    path = RUNNING / name
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate()
        file.write(str(settings_file.absolute()))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running_settings() -> list[Path]:
    """The settings files of the ./scripts/run that are running, sorted; changes nothing."""
    found = []
    for path in sorted(RUNNING.glob("*")):
        try:
            with path.open(encoding="utf-8") as file:
                if _is_locked(file.fileno()):
                    found.append(Path(file.read()))
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return [path for path in found if path.name]


def _is_locked(file: int) -> bool:
    """True if another process holds the file's lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two commands that look at once don't see each other
    except BlockingIOError:
        return True
    return False
