"""The jars: one list of versions, checked sums, and a start that does nothing when all is there."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from contextlib import nullcontext
from pathlib import Path

import pytest

from sluice.cli.start_checks import start_checks
from sluice.jvm import jars
from sluice.jvm.errors import JarError, JavaError
from sluice.jvm.jars import SPARK_JARS, JarSet, pyspark_jars
from sluice.jvm.java import NEEDED_MODULES, find_java, parse_java_version
from sluice.jvm.plugin import plugin_jar
from sluice_demo.job import wait_until
from tests.builders import DEFAULTS
from tests.commands import program
from tests.jar_versions import versions_of, versions_of_pom


def _pins() -> dict[str, str]:
    lock = (jars.REPOSITORY / "requirements.lock").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))


@pytest.mark.parametrize(
    ("package", "artifact"), [("pyspark", "spark-sql-kafka-0-10_2.13"), ("delta-spark", "delta-spark_4.2_2.13")]
)
def test_a_jar_has_the_version_of_its_python_package(package: str, artifact: str) -> None:
    assert versions_of(SPARK_JARS)[artifact] == _pins()[package]


def test_the_pom_has_the_versions_that_the_plugin_is_compiled_against() -> None:
    """An IDE would compile against others."""
    of_plugin = versions_of_pom("gateways/kafka")

    assert {*of_plugin} == {"kafka-clients", "jackson-databind", "slf4j-api"}
    there = {*SPARK_JARS.expected(), *os.listdir(pyspark_jars())}
    assert {f"{artifact}-{version}.jar" for artifact, version in of_plugin.items()} <= there


def test_every_jar_has_a_checksum() -> None:
    checksums, artifact = SPARK_JARS.expected(), "delta-spark_4.2_2.13"

    assert f"{artifact}-{versions_of(SPARK_JARS)[artifact]}.jar" in checksums
    assert all(len(digest) == 64 for digest in checksums.values())


def test_spark_gets_no_jar_of_the_broker() -> None:
    assert "kafka-clients-3.9.2.jar" in SPARK_JARS.expected()
    assert "kafka-clients-4.3.1.jar" not in SPARK_JARS.expected()


def test_the_ivy_settings_name_no_host() -> None:
    assert "://" not in (jars.REPOSITORY / "configs" / "ivysettings.xml").read_text()


def _jar(folder: Path, name: str, content: bytes) -> tuple[Path, dict[str, str]]:
    jar = folder / name
    jar.write_bytes(content)
    return jar, {name: hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize(
    ("there", "known", "problem"),
    [
        (["a-1.jar"], {"a-1.jar": b"content"}, None),
        (["a-1.jar"], {"a-1.jar": b"c0ntent"}, r"a-1\.jar has SHA-256 \w{64}, expected \w{64} .*"),
        (["b-1.jar"], {}, r"b-1\.jar is a jar that configs/jars\.sha256 doesn't know"),
        ([], {"a-1.jar": b"content"}, r"a-1\.jar of configs/jars\.sha256 is missing"),
    ],
)
def test_jars_have_the_content_that_is_known(
    tmp_path: Path, there: list[str], known: dict[str, bytes], problem: str | None
) -> None:
    found = [_jar(tmp_path, name, b"content")[0] for name in there]
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in known.items()}

    with nullcontext() if problem is None else pytest.raises(JarError, match=f"{problem}; try again"):
        jars.check_jars(found, checksums, "try again", "configs/jars.sha256")


@pytest.fixture
def jar_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JarSet:
    """A set of an extra, of one jar that is there, as if downloaded for other versions."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "REPOSITORY", tmp_path / "core")
    (tmp_path / "jars" / "own").mkdir(parents=True)
    jar, checksums = _jar(tmp_path / "jars" / "own", "a-1.jar", b"content")
    (tmp_path / "versions.xml").write_text("no Ivy file: a download would fail")
    (tmp_path / "sums").write_text(f"{checksums[jar.name]}  org.example/a/1/{jar.name}\n")
    return JarSet("own", tmp_path / "versions.xml", tmp_path / "sums", "own.jars", added_to_pyspark=False)


@pytest.mark.parametrize(("is_checkout", "fix"), [(True, "run ./scripts/setup"), (False, "install a release")])
def test_a_jar_of_sluices_own_that_was_not_built_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checkout: bool, fix: str
) -> None:
    """No compiler is called: a Java runtime is enough."""
    monkeypatch.setattr(jars, "BUILT", tmp_path)
    monkeypatch.setattr(jars, "in_checkout", lambda: is_checkout)

    with pytest.raises(JarError, match=rf"\.jar is missing; {re.escape(fix)}"):
        plugin_jar()


def test_jars_that_are_right_already_are_not_downloaded_again(jar_set: JarSet) -> None:
    assert [jar.name for jar in jar_set.paths()] == ["a-1.jar"]
    assert jar_set.verify() == 1


def test_a_download_asks_for_the_listed_jars_and_for_no_pom(
    jar_set: JarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, asked = tmp_path / "bin" / "java", tmp_path / "asked"
    program(java, f'#!/bin/bash\n[[ $1 != -version ]] || exec echo \'version "17"\'\necho "$@" >{asked}\nexit 1\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for name, value in {"https": "http://proxy.corp:3128/", "http": "proxy", "no": "localhost, .corp"}.items():
        monkeypatch.setenv(f"{name}_proxy", value)
    jar_set.checksums.write_text(
        f"{'0' * 64}  org.example/a/1/a-1.jar\n{'0' * 64}  org.example/a/1/a-1-test.jar\n"
        f"{'0' * 64}  org.example/b/2.0/b-2.0-linux.jar\n"
    )

    with pytest.raises(JarError, match="can't be downloaded"):
        jar_set.paths()
    module = ElementTree.parse(tmp_path / "jars" / "ivy-own.xml")  # noqa: S314 - our own file
    dependencies = list(module.iter("dependency"))

    assert "-Dpoms=true" not in asked.read_text()
    assert (
        " -Dhttp.proxyHost=proxy -Dhttp.proxyPort=80 -Dhttps.proxyHost=proxy.corp -Dhttps.proxyPort=3128"
        " -Dhttp.nonProxyHosts=localhost|*.localhost|corp|*.corp "
    ) in asked.read_text()
    assert [(each.get("org"), each.get("name"), each.get("rev"), each.get("transitive")) for each in dependencies] == [
        ("org.example", "a", "1", "false"),
        ("org.example", "b", "2.0", "false"),
    ]
    assert [{**artifact.attrib} for each in dependencies for artifact in each] == [
        {"name": "a", "type": "jar", "{http://ant.apache.org/ivy/maven}classifier": ""},
        {"name": "a", "type": "jar", "{http://ant.apache.org/ivy/maven}classifier": "test"},
        {"name": "b", "type": "jar", "{http://ant.apache.org/ivy/maven}classifier": "linux"},
    ]


_FETCHES = """#!/bin/bash
[[ $1 != -version ]] || exec echo 'version "17"'
mkdir -p "$SLUICE_HOME/jars/ivy-cache/own/org.example/a/jars"
head -c 3000000 /dev/zero >"$SLUICE_HOME/jars/ivy-cache/own/org.example/a/jars/a-1.jar"
echo "$$" >"$SLUICE_HOME/pid.new"
mv "$SLUICE_HOME/pid.new" "$SLUICE_HOME/pid"
trap '' INT TERM HUP
exec sleep 60
"""
"""A Java that has fetched a jar of 3 MB, goes on, and leaves signals alone, as one that a shell starts by `&` does."""

_DOWNLOADS = """
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from sluice.cli.start_checks import start_checks
from sluice.jvm import jars
from sluice.jvm.jars import JarSet
from sluice.process import processes
processes.SAID_S, home = 0.1, Path(sys.argv[1])
with processes.leaving_at_once():
    JarSet("own", home / "versions.xml", home / "sums", "own.jars", added_to_pyspark=False).paths()
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_download_says_how_far_it_is_and_its_java_ends_with_it(
    jar_set: JarSet, tmp_path: Path, sent: signal.Signals
) -> None:
    (jar_set.folder / "a-1.jar").unlink()
    java, pid = tmp_path / "bin" / "java", tmp_path / "pid"
    program(java, _FETCHES)
    variables = os.environ | {"JAVA_HOME": str(tmp_path), "SLUICE_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", _DOWNLOADS, str(tmp_path)], env=variables, stderr=subprocess.PIPE, text=True
    ) as downloading:
        assert downloading.stderr is not None
        wait_until(lambda: pid.exists() or downloading.poll() is not None, 120)
        for said in downloading.stderr:
            if "(3 MB)" in said:  # it may be seen half fetched
                break

        downloading.send_signal(sent)

        wait_until(lambda: not Path(f"/proc/{pid.read_text().strip()}/exe").exists(), 120)  # a zombie has none
        rest = downloading.stderr.read()
    assert said == "jars: fetching own 1 of 1 (3 MB)\n"
    assert rest.endswith("" if sent == signal.SIGKILL else "sluice: error: interrupted\n")
    assert downloading.returncode == (-sent if sent == signal.SIGKILL else 128 + sent)


def test_a_folder_that_takes_no_file_is_one_line(jar_set: JarSet) -> None:
    """As on a full disk."""
    (jar_set.folder / "stamp.json").mkdir()

    with pytest.raises(
        JarError, match=r"^the jars can't be kept in .* \(\[Errno 21\] Is a directory.*; make room there"
    ):
        jar_set.paths()


def test_without_a_checkout_the_fix_names_a_command_that_is_installed(jar_set: JarSet) -> None:
    (jar_set.folder / "a-1.jar").unlink()

    with pytest.raises(JarError, match=r"^no jars in .* yet; run .*python.* -m own\.jars$"):
        jar_set.verify()


def test_the_jars_of_an_installed_distribution_are_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_HOME", raising=False)
    assert jars.jars_home() == jars.REPOSITORY / ".jars"

    monkeypatch.setattr(jars, "REPOSITORY", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert jars.jars_home() == Path("/caches/sluice/jars")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert jars.jars_home() == Path.home() / ".cache" / "sluice" / "jars"


@pytest.mark.parametrize(
    ("banner", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Da=b\nopenjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "24-ea" 2025-03-18', 24),
    ],
)
def test_the_java_version_is_read_from_its_banner(banner: str, major: int) -> None:
    assert parse_java_version(banner) == major


@pytest.mark.parametrize("banner", ["", "Error: could not find libjava.so"])
def test_a_java_without_a_version_is_refused(banner: str) -> None:
    with pytest.raises(JavaError, match=r"java -version answers with no version .*; install Java 17 or 21"):
        parse_java_version(banner)


@pytest.mark.parametrize("lacking", [None, "jdk.incubator.vector", "java.sql"])
def test_a_java_of_few_modules_is_named_with_those_that_it_lacks(
    lacking: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java would say that a module or a class isn't found, after topics and tables were made."""
    java = program(tmp_path / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"17.0.15\"'\n")
    (tmp_path / "release").write_text(f'A="b"\nMODULES="java.base {" ".join(NEEDED_MODULES - {lacking})}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    check = dict(start_checks(DEFAULTS))["java"]
    if lacking is None:
        assert check() == f"17 ({java})"
        return
    with pytest.raises(JavaError, match=rf"/bin/java is without {lacking}, as jlink makes it; install Java 17"):
        check()


def test_no_java_at_all_is_one_clear_line_and_a_wrong_java_home_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="no java on PATH and JAVA_HOME is not set; install Java 17 or 21"):
        find_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=f"JAVA_HOME is {tmp_path}, but there is no bin/java in it"):
        find_java()
