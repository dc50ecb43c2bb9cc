"""The wheel: each install has what it imports and nothing else."""

import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from installs import install, metadata, requirements, run
from sluice.cli.extras import _OWN_EXTRAS
from sluice.jvm.jars import BUILT, REPOSITORY
from sluice_lab.testbed.distribution import BESIDE, EXTRAS, build_extra, build_wheel
from sluice_proxy.jars import BUILT as BUILT_OF_PROXY
from sluice_shared_storage.jars import BUILT as SHARED_STORAGE_BUILT

IMPORT_ALL = """
import importlib, pkgutil
for package in map(importlib.import_module, {packages}):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""

FORGE = "https://forge.example/owner/name"


def import_all(packages: Sequence[str]) -> str:
    """A program that imports every module of the packages."""
    return IMPORT_ALL.format(packages=[*packages])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a release, built from the sdist beside it."""
    release = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SLUICE_KAFKA": "1.2.3", "SLUICE_TAG": "v1.2.3"}
    variables = {**release, "SLUICE_REPOSITORY": FORGE}
    return build_wheel(tmp_path_factory.mktemp("dist"), variables, through_sdist=True)


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an install of the job alone."""
    return install(wheel, tmp_path_factory.mktemp("core") / "venv", "core")


@pytest.fixture(scope="module")
def gateway(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an install without extras."""
    return install(wheel, tmp_path_factory.mktemp("gateway") / "venv")


def test_the_wheel_has_its_data_files_and_the_licence_and_nothing_of_the_repository_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    assert {
        "sluice/configs/default.yaml",
        "sluice/configs/jars.xml",
        "sluice/configs/ivysettings.xml",
        "sluice/configs/jars.sha256",
        "sluice/configs/spark-classes.txt.gz",
        "sluice/gateways/kafka/src/sluice/kafka/SluiceQuotaCallback.java",
        "sluice/py.typed",
        "sluice/streaming/runtime/log4j2.properties",
    } <= names
    built = {f"sluice/jvm/built/{jar.name}" for jar in BUILT.glob("*.jar")}  # by ./scripts/setup, which needs Java
    assert built == {name for name in names if name.endswith(".jar")}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"sluice"}


def test_an_sdist_has_what_its_wheel_has_each_file_once_and_no_links(wheel: Path) -> None:
    [sdist] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive, zipfile.ZipFile(wheel) as built:
        in_sdist = {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
        links = [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
        in_wheel = {name for name in built.namelist() if ".dist-info/" not in name}

    assert links == []
    assert in_wheel == {name for name in in_sdist if name.startswith("sluice/")}
    assert {name for name in in_sdist if "/" not in name} == {*BESIDE, "PKG-INFO", "setup.cfg"}


def test_the_page_for_pypi_is_right(wheel: Path) -> None:
    """And its links lead to the repository, at the tag."""
    run(sys.executable, "-m", "twine", "check", "--strict", *wheel.parent.iterdir(), folder=wheel.parent)
    page, readme = metadata(wheel), (REPOSITORY / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", page)

    assert "\nVersion: 1.2.3\n" in page
    assert f"\nProject-URL: Changelog, {FORGE}/blob/v1.2.3/CHANGELOG.md\n" in page
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", readme)) > 10
    assert f"{FORGE}/raw/v1.2.3/docs/images/brokers.gif" in links
    assert f"{FORGE}/blob/v1.2.3/docs/gateways.md" in links
    assert [link for link in links if not link.startswith("https://")] == []


def test_a_build_without_git_needs_no_tag(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    assert wheel.name == "sluice_kafka-0.0.0-py3-none-any.whl"


def test_a_checkout_without_symbolic_links_is_refused(tmp_path: Path) -> None:
    """Git makes text files of them where it may not make links: the wheel would be built, and be empty."""
    (tmp_path / "sluice").mkdir()
    for path in (REPOSITORY / "sluice").iterdir():
        if path.is_symlink():
            (tmp_path / "sluice" / path.name).write_text(str(path.readlink()))
    for name in ("sluice/__init__.py", *BESIDE):
        shutil.copy(REPOSITORY / name, tmp_path / name)

    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", tmp_path)
    done = run(*build, folder=tmp_path, exit_code=1)

    said = done.stdout + done.stderr
    assert "sluice/state, sluice/streaming should be symbolic links to folders, but are files" in said
    assert "git config core.symlinks true" in said


def test_a_gateway_needs_three_packages(wheel: Path) -> None:
    plain = [Requirement(text).name for text in requirements(wheel) if "extra ==" not in text]

    assert sorted(plain) == ["kafka-python", "msgspec", "prometheus-client"]


def test_a_gateway_has_the_public_names_and_nothing_of_the_job(gateway: Path, tmp_path: Path) -> None:
    heavy = ("pyspark", "delta", "deltalake", "pandas", "numpy", "pyarrow", "yaml", "typer", "starlette", "uvicorn")
    script = f"""
from importlib.util import find_spec
import sluice, sluice.gateways.client
assert all(hasattr(sluice, name) for name in sluice.__all__)
assert sluice.__version__ == "1.2.3"
assert not [name for name in {heavy} if find_spec(name)]
"""

    assert run(gateway / "python", "-c", script, folder=tmp_path).stderr == ""
    run(gateway / "python", "-c", import_all(["sluice.gateways"]), folder=tmp_path)


def test_an_application_may_have_packages_with_the_names_of_sluices_parts(gateway: Path, tmp_path: Path) -> None:
    parts = [path.name for path in (REPOSITORY / "sluice").iterdir() if path.is_symlink()]
    for name in [*parts, "console", "reports"]:
        (tmp_path / f"{name}.py").write_text("OWN = True\n")
    script = f"""
import sluice, {", ".join(parts)}, console, reports
assert all(hasattr(sluice, name) for name in sluice.__all__)
assert all(package.OWN for package in ({", ".join(parts)}, console, reports))
"""

    assert {"configs", "state", "gateways"} < set(parts)
    run(gateway / "python", "-c", script, folder=tmp_path)


def test_every_command_of_an_extra_is_known_where_the_extra_is_missing() -> None:
    found = {point.name: point.dist.name for point in entry_points(group="sluice.commands") if point.dist}

    assert found == {name: f"sluice-kafka-{extra}" for name, extra in _OWN_EXTRAS.items()}


@pytest.mark.parametrize(
    ("installed", "command", "code", "said"),
    [
        ("gateway", ["simulate"], 1, "the commands need the extra job; pip install 'sluice-kafka[job]'"),
        ("core", ["demo", "--x"], 2, "the command demo needs the extra demo; pip install 'sluice-kafka[demo]'"),
        (
            *("core", ["quotas", "exposure"], 2),
            "the command quotas exposure needs the extra toolbox; pip install 'sluice-kafka[toolbox]'",
        ),
    ],
)
def test_a_command_says_which_extra_it_needs(
    request: pytest.FixtureRequest, tmp_path: Path, installed: str, command: list[str], code: int, said: str
) -> None:
    done = run(request.getfixturevalue(installed) / "sluice", *command, folder=tmp_path, exit_code=code)

    assert (done.stdout, done.stderr) == ("", f"sluice: error: {said}\n")


def test_the_extra_core_has_all_that_the_core_imports(core: Path, tmp_path: Path) -> None:
    run(core / "python", "-W", "ignore", "-c", import_all(["sluice"]), folder=tmp_path)


def test_the_core_alone_decides_anywhere(core: Path, tmp_path: Path) -> None:
    examples = REPOSITORY / "docs" / "examples"
    files = {"quotas": "kip-599-quotas.yaml", "config": "kip-599-settings.yaml", "events": "kip-599-events.jsonl"}
    options = [part for option, name in files.items() for part in (f"--{option}", examples / name)]

    assert "Commands:" in run(core / "sluice", "--help", folder=tmp_path).stdout
    assert "Options:" in run(core / "sluice", "tenants", "--help", folder=tmp_path).stdout
    decisions = run(core / "sluice", "simulate", *options, folder=tmp_path).stdout.splitlines()
    assert [re.findall(r'"verdict":"(\w+)"', line) for line in decisions] == [["ALLOW"], ["REJECT"], ["ALLOW"]]


def test_a_job_without_the_engine_of_an_extra_decides_by_python_and_says_what_to_install(
    core: Path, tmp_path: Path
) -> None:
    script = """
from sluice.streaming.enforce.engine import engine_of
from sluice.streaming.workers.engine_start import engine_missing, unbatched
print(type(engine_of(is_native=True)).__name__, engine_missing(), unbatched(), sep="\\n")
"""
    said = run(core / "python", "-c", script, folder=tmp_path).stdout.splitlines()

    assert said == ["PythonEngine", *["it is of the extra native; pip install 'sluice-kafka[native]'"] * 2]


@pytest.fixture(scope="module")
def extras(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of the extras of a release; those by way of their sdists run in `test_wheel.py`."""
    out, variables = tmp_path_factory.mktemp("extras"), {"SLUICE_NATIVE_TARGET": "none"}
    for extra in EXTRAS:
        variables[f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SLUICE_KAFKA_{extra.upper()}"] = "1.2.3"
    return {extra: build_extra(extra, out, variables) for extra in EXTRAS}


def test_the_extra_job_has_the_console_whose_pages_show(wheel: Path, extras: dict[str, Path], tmp_path: Path) -> None:
    programs = install(
        wheel, tmp_path / "venv", "job", beside=[extras["insight"], extras["reading"], extras["toolbox"]]
    )
    load = "from sluice_insight.console.app import PAGES, Pages; pages = Pages(None)"
    load += "; [pages._environment.get_template(f'{name}.html') for name in PAGES]"

    run(programs / "python", "-W", "ignore", "-c", import_all(["sluice_insight", "sluice_toolbox"]), folder=tmp_path)
    run(programs / "python", "-c", load, folder=tmp_path)
    assert "--json" in run(programs / "sluice", "quotas", "exposure", "--help", folder=tmp_path).stdout
    assert "--max-clients" in run(programs / "sluice", "console", "--help", folder=tmp_path).stdout
    with zipfile.ZipFile(extras["insight"]) as archive:
        assert {f"sluice_insight/console/assets/console.{kind}" for kind in ("css", "js")} < {*archive.namelist()}


def test_the_extra_http_needs_the_client_alone(wheel: Path, extras: dict[str, Path], tmp_path: Path) -> None:
    programs = install(wheel, tmp_path / "venv", "http", beside=[extras["http"]])

    run(programs / "python", "-c", import_all(["sluice_http"]), folder=tmp_path)


def test_the_extra_demo_has_all_that_there_is(wheel: Path, extras: dict[str, Path], tmp_path: Path) -> None:
    demo = extras["demo"]
    programs = install(wheel, tmp_path / "venv", "demo", beside=[*extras.values()])

    run(
        programs / "python",
        "-W",
        "ignore",
        "-c",
        import_all(["sluice", "sluice_demo", "sluice_proxy"]),
        folder=tmp_path,
    )
    assert "--brokers" in run(programs / "sluice", "demo", "--help", folder=tmp_path).stdout
    assert "--tls-key" in run(programs / "sluice", "kafka-gateway", "--help", folder=tmp_path).stdout
    assert "\nVersion: 1.2.3\n" in metadata(demo)
    for extra, jars in ("demo", "broker"), ("proxy", "proxy"):
        with zipfile.ZipFile(extras[extra]) as archive:
            files = {f"sluice_{extra}/{jars}-{name}" for name in ("classes.txt.gz", "jars.sha256", "jars.xml")}
            files |= {f"sluice_{extra}/built/{jar.name}" for jar in BUILT_OF_PROXY.glob("*.jar") if extra == "proxy"}
            assert files < {*archive.namelist()}


def test_extras_with_java_have_their_jars_and_the_checksums_of_others(extras: dict[str, Path]) -> None:
    with zipfile.ZipFile(extras["shared_storage"]) as archive:
        names = {*archive.namelist()}
    assert {f"sluice_shared_storage/{name}" for name in ("s3-jars.sha256", "s3-jars.xml", "stores.py")} < names
    assert {name for name in names if name.endswith(".jar")} == {
        f"sluice_shared_storage/built/{jar.name}" for jar in SHARED_STORAGE_BUILT.glob("*.jar")
    }
    with zipfile.ZipFile(extras["telemetry"]) as archive:
        assert "sluice_telemetry/built/sluice-kafka-telemetry.jar" in archive.namelist()
