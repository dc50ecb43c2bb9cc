"""The wheels of the engine: one with the library for each platform, and one with the sources for all others."""

import sysconfig
import tarfile
import zipfile
from pathlib import Path

from installs import metadata, requirements
from sluice_lab.testbed.distribution import build_extra
from sluice_native.build import build

SOURCES = {"plan.c", "decide.c", "text.h", "zig.lock", "build.py"}


def test_a_wheel_for_this_machine_has_the_library_and_serves_every_python_of_it(tmp_path: Path) -> None:
    wheel = build_extra("native", tmp_path)

    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"sluice_kafka_native-0.0.0-py3-none-{platform}.whl"
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
    assert libraries == [f"sluice_native/built/{build().name}"]


def test_a_wheel_for_all_machines_has_no_library_and_asks_for_the_core_of_its_release(tmp_path: Path) -> None:
    """It is built from its sdist. The engine of another release is never used."""
    variables = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SLUICE_KAFKA_NATIVE": "1.2.3", "SLUICE_NATIVE_TARGET": "none"}
    wheel = build_extra("native", tmp_path, variables, through_sdist=True)
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/sluice_native/")[2] for name in archive.getnames() if "/sluice_native/" in name}
    with zipfile.ZipFile(wheel) as built:
        names = {name.partition("sluice_native/")[2] for name in built.namelist() if name.startswith("sluice_native/")}

    assert wheel.name == "sluice_kafka_native-1.2.3-py3-none-any.whl"
    assert names == in_sdist > SOURCES
    assert not [name for name in names if name.endswith(".so")]
    assert requirements(wheel) == ["sluice-kafka[core]==1.2.3"]
    assert "native = sluice_native.engine:NativeEngine" in metadata(wheel, "entry_points.txt")
    assert "License-File: LICENSE" in metadata(wheel)
