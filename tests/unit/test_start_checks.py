"""The doctor asks all that a start needs of its machine: both say the same of a fault, before Java starts."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from resource import RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_NPROC
from typing import Any

import pytest

from sluice.cli.errors import CheckError
from sluice.cli.start_checks import check_environment, check_folders
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import Settings, load_settings
from sluice.jvm.errors import JarError
from sluice.jvm.jars import REPOSITORY, SPARK_JARS
from sluice.process.surroundings import NEEDED
from sluice.streaming.job import Job
from sluice.streaming.runtime.properties import left_out
from tests.accounts import STRANGER, as_account, as_root
from tests.builders import DEFAULTS, changed, file_of
from tests.commands import invoke, program

SETTINGS = """kafka: {{bootstrap.servers: "127.0.0.1:1"}}
enforce: {{checkpoint: "{0}/checkpoints/enforce"}}
audit: {{checkpoint: "{0}/checkpoints/audit"}}
delta:
  {{quotas: "{0}/quotas", decisions: "{0}/decisions", quota_metrics: "{0}/quota_metrics",
   dead_letters: "{0}/dead_letters", unreadable: "{0}/unreadable", overrides: "{0}/overrides"}}
"""

Foreign = Callable[[Path, pytest.MonkeyPatch], str]
"""Makes an environment; gives more settings."""


def settings_in(folder: Path) -> Settings:
    """The defaults, with all folders in this one."""
    settings = changed(DEFAULTS, "enforce", checkpoint=str(folder / "ck"))
    tables = ("quotas", "decisions", "quota_metrics", "dead_letters", "unreadable", "overrides")
    settings = changed(settings, "audit", checkpoint=str(folder / "audit"))
    return changed(settings, "delta", **{name: str(folder / name) for name in tables})


def _no_java(folder: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("JAVA_HOME", str(folder / "java"))
    return ""


def _old_java(folder: Path, patch: pytest.MonkeyPatch) -> str:
    program(folder / "java" / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    return _no_java(folder, patch)


def _no_jar(folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / "home" / "jars" / "spark" / "a.jar").mkdir(parents=True)
    return _no_jars(folder, patch)


def _own_dice(folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / "mine").mkdir()
    (folder / "mine" / "random.py").write_text("print('my own dice')")
    patch.setenv("PYTHONPATH", str(folder / "mine"))
    return ""


def _another_spark(folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / "spark" / "python" / "pyspark").mkdir(parents=True)
    (folder / "spark" / "python" / "pyspark" / "__init__.py").touch()
    patch.setenv("PYTHONPATH", str(folder / "spark" / "python"))
    return ""


def _no_jars(folder: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("SLUICE_HOME", str(folder / "home"))
    return ""


def _file_in_the_way(folder: Path, _: pytest.MonkeyPatch) -> str:
    (folder / "decisions").touch()
    return ""


def _limited(kind: int, soft: int, hard: int) -> Foreign:
    def limit(_: Path, patch: pytest.MonkeyPatch) -> str:
        patch.setattr("sluice.cli.start_checks.os.geteuid", lambda: STRANGER)  # root has any number of processes
        patch.setattr("sluice.cli.start_checks.getrlimit", lambda asked: (soft, hard) if asked == kind else (-1, -1))
        return ""

    return limit


def _login(_: Path, __: pytest.MonkeyPatch) -> str:
    login = """security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.jaas.config: 'x required a="1"'"""
    return f'kafka: {{bootstrap.servers: "127.0.0.1:1", {login}}}\n'


def _variable(_: Path, patch: pytest.MonkeyPatch) -> str:
    patch.delenv("NOT_THERE", raising=False)
    return "spark: {spark.app.name: '${NOT_THERE}'}\n"


def _broken_parts(module: str | None) -> Foreign:
    """An extra beside the job, with this module, whose function `parts` is an entry point."""

    def install(folder: Path, patch: pytest.MonkeyPatch) -> str:
        (info := folder / "mine" / "acme_extra-1.0.dist-info").mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-extra\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[sluice.job_parts]\nacme = acme_extra_parts:parts\n")
        if module is not None:
            (folder / "mine" / "acme_extra_parts.py").write_text(module)
        patch.syspath_prepend(folder / "mine")
        patch.delitem(sys.modules, "acme_extra_parts", raising=False)
        return ""

    return install


def _no_toolbox(_: Path, patch: pytest.MonkeyPatch) -> str:
    def installed(*, group: str, **named: Any) -> Iterable[EntryPoint]:
        return () if group in ("sluice.quota_sources", "sluice.checks") else entry_points(group=group, **named)

    for module in ("configs.extras", "cli.doctor"):
        patch.setattr(f"sluice.{module}.entry_points", installed)
    return "quotas: {source: kafka}\n"


BROKEN_PARTS = {
    None: "(No module named 'acme_extra_parts')",
    "raise SystemExit('bye')": "(bye)",
    "parts = 3": "(acme_extra_parts:parts is no function)",
    "def parts(job):\n    1 / 0": "(division by zero)",
    "def parts(job):\n    return []": "(acme_extra_parts:parts gives list in the place of JobParts)",
}
"""The module of an extra, None for none, and the words on it."""


FAULTS: dict[str, tuple[Foreign, int, str]] = {
    "no Java": (_no_java, 1, "but there is no bin/java in it"),
    "an old Java": (_old_java, 1, "is Java 11, which is too old"),
    "a jar that can't be read": (_no_jar, 1, "a.jar can't be read (Is a directory); give this account"),
    "a random.py in PYTHONPATH": (_own_dice, 1, "has another random "),
    "another Spark in PYTHONPATH": (_another_spark, 1, "has another pyspark "),
    "no jars": (_no_jars, 1, "no jars in "),
    "a file in the way": (_file_in_the_way, 1, "decisions, of delta.decisions, is no folder"),
    "few open files": (_limited(RLIMIT_NOFILE, 256, 1_023), 1, "hard limit of open files is 1023; raise it to 1,024"),
    "few threads": (_limited(RLIMIT_NPROC, 511, -1), 1, "processes and threads is 511; raise it to 512 or more"),
    "little address space": (_limited(RLIMIT_AS, (8 << 30) - 1, -1), 1, "address space is 8191 MiB"),
    "no capacity file": (lambda at, _: f'brokers: {{capacity_file: "{at}/none"}}\n', 2, "none can't be read"),
    "a login without semicolon": (_login, 2, "doesn't end with a semicolon"),
    "a seed that isn't there": (
        lambda at, _: f'quotas: {{seed: "{at}/none.yaml"}}\n',
        2,
        "none.yaml: No such file or directory; expected a readable",
    ),
    "a source of quotas without its extra": (_no_toolbox, 2, "quotas.source: kafka is of the extra toolbox; pip insta"),
    "a variable that is not set": (_variable, 2, "needs the environment variable NOT_THERE"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_run_ends_with_the_line_of_the_doctor(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, code, words = FAULTS[fault]
    settings = tmp_path / "sluice.yaml"
    more = make(tmp_path, monkeypatch)
    given = SETTINGS.format(tmp_path)
    settings.write_text((given.partition("\n")[2] if more.startswith("kafka:") else given) + more)

    run = invoke("run", "--config", settings, code=code)
    doctor = invoke("doctor", "--config", settings, code=None)

    said = run.error.splitlines()[-1].removeprefix("sluice: error: ")
    assert words in said
    shown = [line[6:].partition(": ")[2] for line in doctor.output.splitlines() if line.startswith("FAIL")]
    assert said in shown or said in doctor.error
    assert doctor.code in (1, code)
    assert not (tmp_path / "checkpoints").exists(), "run has begun"


@pytest.mark.parametrize("module", BROKEN_PARTS)
def test_an_extra_whose_parts_do_not_fit_is_named_by_run_and_doctor_in_a_line(
    module: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "sluice.yaml"
    settings.write_text(SETTINGS.format(tmp_path) + _broken_parts(module)(tmp_path, monkeypatch))
    line = f"acme is of acme-extra 1.0, which doesn't fit this sluice-kafka {BROKEN_PARTS[module]}; install the same ve"

    doctor = invoke("doctor", "--config", settings, code=1)
    with pytest.raises(InvalidSettingsError) as ended:
        Job(load_settings(settings))

    assert f"FAIL  parts of the job: {line}" in doctor.output
    assert str(ended.value).startswith(line)


@pytest.mark.parametrize("command", ["run", "doctor", "topics"])
def test_a_working_directory_that_was_removed_is_said(command: str, tmp_path: Path) -> None:
    here, gone = os.getcwd(), tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        ended = invoke(command, code=1)
    finally:
        os.chdir(here)

    assert "the working directory was removed, or can't be read" in ended.error_line


@pytest.mark.parametrize("name", ["a%41", "a%2fb", "a[b]", "a|b", "a\\b"])
def test_a_path_that_delta_reads_as_another_is_refused(name: str, tmp_path: Path) -> None:
    """delta-rs takes a path for a URL: it writes one folder, and reads another, or panics."""
    settings = file_of(tmp_path / "sluice.yaml", SETTINGS.format(str(tmp_path / name).replace("\\", "\\\\")))

    for command in ("run", "doctor", "maintain"):
        said = invoke(command, "--config", settings, code=2).error_line
        assert "in its path, which Delta reads as another name; expected a path without it" in said


def test_a_control_character_in_a_path_is_refused(tmp_path: Path) -> None:
    settings = file_of(tmp_path / "sluice.yaml", f'enforce: {{checkpoint: "{tmp_path}/a\\nb"}}\n')

    assert r"enforce.checkpoint is" in invoke("doctor", "--config", settings, code=2).error_line


@pytest.fixture
def own_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No foreign variable is set at first; a Spark that ran in this process before has set some."""
    for name in left_out(DEFAULTS):
        monkeypatch.delenv(name)
    return monkeypatch


def test_variables_of_another_spark_are_left_out_and_said(own_variables: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "_JAVA_OPTIONS", "HADOOP_CONF_DIR", "PYSPARK_PYTHON", "SLUICE_CONFIG"):
        own_variables.setenv(name, "/opt/other")

    assert check_environment(DEFAULTS).endswith(": HADOOP_CONF_DIR, PYSPARK_PYTHON, SPARK_HOME, _JAVA_OPTIONS")


@pytest.mark.parametrize(("section", "key"), [("enforce", "checkpoint"), ("audit", "checkpoint"), ("delta", "quotas")])
def test_the_configuration_of_hadoop_counts_where_any_checkpoint_or_table_is_in_shared_storage(
    section: str, key: str, own_variables: pytest.MonkeyPatch
) -> None:
    """A name service of HDFS is known by it alone."""
    own_variables.setenv("HADOOP_CONF_DIR", "/etc/hadoop")

    assert left_out(changed(DEFAULTS, section, **{key: "hdfs://nameservice/sluice"})) == []


def is_refused_to_a_stranger(everybodys: Path, words: str) -> None:
    with as_account(STRANGER), pytest.raises(CheckError, match=words):
        check_folders(settings_in(everybodys))


@as_root
@pytest.mark.parametrize("place", ["decisions", "decisions/_delta_log", "decisions/date=2026-11-27", "ck/state"])
def test_a_folder_of_another_account_is_named_with_its_owner(place: str, everybodys: Path) -> None:
    folder = everybodys / place
    folder.mkdir(parents=True)
    for each in (everybodys, *folder.relative_to(everybodys).parents):
        (everybodys / each).chmod(0o777)
    folder.chmod(0o700)

    is_refused_to_a_stranger(everybodys, rf"^{folder}, of .*\(54321\).* root, or .* 54321 {folder}$")


@as_root
def test_a_folder_that_cannot_be_made_says_how_to_make_it(everybodys: Path) -> None:
    everybodys.chmod(0o755)

    is_refused_to_a_stranger(everybodys, r"is of root; make it: install -d -m 700 -o 54321 /.*/ck$")


@as_root
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("noexec,size=128m", "is mounted noexec, and Java loads"),
        ("size=8m", "MiB free, and Java unpacks libraries there"),
        ("nr_inodes=9", "room for 8 further files (df -i), and a job makes more"),
        ("ro", "is mounted read-only, and the job writes there"),
    ],
)
def test_run_and_doctor_name_a_small_or_forbidding_mount_before_java(tmp_path: Path, options: str, words: str) -> None:
    """Java would end with the stack trace of a library that it can't load, or of a disk that is full."""
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this account may mount nothing")
    try:
        file = tmp_path.with_suffix(".yaml")
        file.write_text(f"enforce: {{checkpoint: {tmp_path}/enforce}}\naudit: {{checkpoint: {tmp_path}/audit}}\n")
        run = invoke("run", "--config", file, code=1)
        lines = [line for line in invoke("doctor", "--config", file, code=1).output.splitlines() if words in line]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)  # noqa: S607 - the system's own

    assert words in run.error_line
    assert [line.split(":")[0] for line in lines] == [f"FAIL  {'folders' if options == 'ro' else 'temporary files'}"]


@as_root
@pytest.mark.parametrize("place", ["home/jars/spark/a.jar", "home/jars/spark", "home/jars"])
def test_jars_of_another_account_are_named(place: str, everybodys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java would say that it doesn't find a class, and a folder that can't be listed seems empty."""
    _no_jars(everybodys, monkeypatch)
    jar = everybodys / "home" / "jars" / "spark" / "a.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"PK")
    (everybodys / place).chmod(0)

    with as_account(STRANGER):
        for ask in (SPARK_JARS.verify, SPARK_JARS.paths):
            with pytest.raises(JarError, match=r"^/.* can't be .*\(Permission denied\); "):
                ask()


def test_all_modules_of_others_are_looked_for() -> None:
    """PYTHONPATH may hide each that the product imports."""
    product = ("state", "process", "kafka_io", "configs", "gateways", "sinks", "jvm", "insight", "streaming", "cli")
    found = set[str]()
    for folder in product:
        for file in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found |= {name.partition(".")[0] for name in names}

    assert found - sys.stdlib_module_names - {"sluice", ""} == NEEDED & found
