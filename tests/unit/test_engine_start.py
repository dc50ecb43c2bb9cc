"""The engine of an extra is used if it is whole and of the core's release; else Python decides, and says why."""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.cli.errors import CheckWarningError
from sluice.cli.start_checks import check_native_code
from sluice.streaming.checkpoint.origin import PAGES, new_pages
from sluice.streaming.enforce.engine import PythonEngine, engine_of
from sluice.streaming.runtime.session import properties_of_workers
from sluice.streaming.workers import engine_start, release
from sluice.streaming.workers.engine_start import NATIVE_VARIABLE, engine_missing, found_engine, unbatched
from tests.builders import DEFAULTS

OWN = version("sluice-kafka")


class OtherEngine(PythonEngine):
    """The engine of an extra that does all that Python does, by itself."""

    @property
    def place(self) -> str:
        return "elsewhere"


def installed(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], object], release: str = OWN, folder: Path = Path("nowhere")
) -> None:
    """An extra with an engine is there, in this version and folder, and no other one."""
    dist = SimpleNamespace(name="sluice-kafka-native", version=release, locate_file=folder.joinpath)
    point = SimpleNamespace(dist=dist, load=load, module="sluice_of_an_extra.engine")
    monkeypatch.setattr(engine_start, "entry_points", lambda **_: [point])


@pytest.fixture(autouse=True)
def _looked_for_anew() -> Iterator[None]:
    found_engine.cache_clear()
    yield
    found_engine.cache_clear()


def test_the_engine_of_an_extra_is_used_where_native_code_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, lambda: OtherEngine)

    assert type(engine_of(is_native=True)) is OtherEngine
    assert type(engine_of(is_native=False)) is PythonEngine
    assert "(elsewhere)" in check_native_code(DEFAULTS)


def test_the_core_beside_an_engine_says_if_it_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A checkout's folder, which Python looks into first, holds the metadata of the last build."""
    (tmp_path / "sluice_kafka-9.9.dist-info").mkdir()
    (tmp_path / "sluice_kafka-9.9.dist-info" / "METADATA").write_text("Name: sluice-kafka\nVersion: 9.9\n")

    installed(monkeypatch, lambda: OtherEngine, "9.9", tmp_path)

    assert type(engine_of(is_native=True)) is OtherEngine


def _broken() -> object:
    raise ImportError("cannot import name 'Planner'")


def _raising() -> object:
    raise ValueError("no such thing")


FAULTS: dict[str, tuple[Callable[[], object], str, str]] = {
    "of another release": (lambda: OtherEngine, "0.0.1", "sluice-kafka-native 0.0.1 is of another release than"),
    "unfit": (_broken, OWN, "doesn't fit this sluice-kafka (cannot import name 'Planner'); install both again"),
    "raising": (_raising, OWN, "doesn't fit this sluice-kafka (no such thing); install both again"),
    "no engine": (lambda: dict, OWN, "gives no engine; uninstall it"),
    "none": (lambda: OtherEngine, "", "it is of the extra native; pip install 'sluice-kafka[native]'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_python_decides_without_an_engine_that_fits_and_the_doctor_says_why(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do the workers, which get their pages one by one: a new checkpoint has fewer."""
    load, of_release, reason = FAULTS[fault]
    installed(monkeypatch, load, of_release)
    if fault == "none":
        monkeypatch.setattr(engine_start, "entry_points", lambda **_: [])

    assert type(engine_of(is_native=True)) is PythonEngine
    with pytest.raises(CheckWarningError, match="not used, so Python plans and decides all events") as found:
        check_native_code(DEFAULTS)

    assert reason in str(found.value)
    assert "\n" not in str(found.value)
    assert engine_missing() == unbatched()
    properties = properties_of_workers(DEFAULTS)
    assert properties["spark.python.daemon.module"] == "sluice.streaming.workers.daemon"
    assert properties[f"spark.executorEnv.{NATIVE_VARIABLE}"] == "missing"
    assert new_pages(DEFAULTS) == PAGES


def test_a_job_has_one_release_of_the_engine_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its files may be replaced under the running job, as those of the core."""
    source = tmp_path / "sluice_of_an_extra" / "decide.c"
    source.parent.mkdir()
    (source.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    installed(monkeypatch, lambda: OtherEngine)
    digests = set()
    for text in ("", "", "double burst;"):
        source.write_text(text)
        digests.add(release.package_digest.__wrapped__())

    assert len(digests) == 2
