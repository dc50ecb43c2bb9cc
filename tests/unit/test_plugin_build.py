"""Building the broker plugin: what goes wrong is said in one line."""

from pathlib import Path

import pytest

from scripts.java.build import build_plugin
from scripts.java.compiler import JavaBuildError


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaBuildError, match="no-such-javac can't be run"):
        build_plugin([], tmp_path / "plugin", compiler=lambda _: ["no-such-javac"])


def test_a_java_home_without_a_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaBuildError, match=r"no javac in JAVA_HOME \(.*\); install a whole JDK"):
        build_plugin([], tmp_path / "plugin")
