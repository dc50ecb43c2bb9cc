"""The driver's Java, started before PySpark is loaded: found by it, or ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.jvm.driver import DriverJava, forget_address, launcher_options, start_problem
from sluice.jvm.errors import JavaError
from tests.commands import program
from tests.waiting import eventually, is_over

_ANSWERS = """#!/bin/bash
echo "$@" >"$SPARK_HOME/arguments"
printf '\\0\\0\\x1f\\x90\\0\\0\\0\\x06secret' >"$_PYSPARK_DRIVER_CONN_INFO_PATH.draft"
mv "$_PYSPARK_DRIVER_CONN_INFO_PATH.draft" "$_PYSPARK_DRIVER_CONN_INFO_PATH"
cat
"""
"""A Java that tells port 8080 and a secret, as Spark's does, and ends when its input does."""


SECRETS = (
    *("spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.azure.account.key.one.example", "spark.ssl.keyPassword"),
    *("spark.authenticate.secret", "spark.executorEnv.AWS_SECRET_ACCESS_KEY", "spark.hadoop.fs.s3a.session.token"),
)


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that starts Java."""
    script = program(tmp_path / "bin" / "spark-submit", _ANSWERS)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return script


def test_pyspark_is_told_where_java_answers_until_it_knows(submit: Path) -> None:
    java = DriverJava({"spark.master": "local[2]"}, submit.parent)

    java.hand_over()

    assert (os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]) == ("8080", "secret")
    forget_address()
    assert not {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"} & os.environ.keys()
    assert (submit.parents[1] / "arguments").read_text() == "--conf spark.master=local[2] pyspark-shell\n"
    java.process.communicate()
    assert java.process.returncode == 0


@pytest.mark.parametrize("home", ["spark", "my spark"])
def test_the_java_that_writes_the_command_line_opens_one_jar_and_no_name_with_a_blank(
    tmp_path: Path, home: str
) -> None:
    jars = tmp_path / home / "jars"
    jars.mkdir(parents=True)
    without = launcher_options(str(jars.parent))
    (jar := jars / "spark-launcher_2.13-4.2.0.jar").touch()

    options = launcher_options(str(jars.parent))

    assert options == without + ("" if " " in home else f" -Xbootclasspath/a:{jar}")


def test_no_secret_is_on_a_command_line(submit: Path) -> None:
    java = DriverJava({"spark.sql.shuffle.partitions": "2"} | dict.fromkeys(SECRETS, "of-s3"), submit.parent)

    java.hand_over()

    forget_address()
    arguments = (submit.parents[1] / "arguments").read_text()
    assert arguments == "--conf spark.sql.shuffle.partitions=2 pyspark-shell\n"
    assert java.properties.keys() > {*SECRETS}
    java.process.communicate()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "it said nothing"),
        (
            "Exception in thread main a.BError: x\\n\\tat a.C\\nCaused by: a.DException: y\\n\\t... 1 more",
            "a.DException: y",
        ),
        ("Unrecognized option: -x\\nError: Could not create the Java Virtual Machine.", "Unrecognized option: -x"),
        ("Error occurred during initialization of VM\\nCould not reserve space", "Could not reserve space"),
    ],
)
def test_a_java_that_ends_at_its_start_is_one_line_with_the_cause(
    submit: Path, said: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    submit.write_text(f"#!/bin/bash\nprintf '{said}'\nexit 3\n")

    with pytest.raises(JavaError, match=rf"exit code 3 \({why}\); check JAVA_HOME, and spark.driver.memory"):
        DriverJava({}, submit.parent).hand_over()
    assert capfd.readouterr() == ("", "")


def test_a_refused_option_is_told_without_all_the_others() -> None:
    assert start_problem("No Xmx through java options (was -Xss32m -Xmx4g).") == "No Xmx through java options."


def test_a_java_that_starts_can_be_ended(submit: Path) -> None:
    submit.write_text("#!/bin/bash\nexec cat\n")
    java = DriverJava({}, submit.parent)

    java.end()

    with pytest.raises(JavaError):
        java.hand_over()
    assert java.process.returncode == -signal.SIGKILL


def test_a_java_that_starts_dies_with_the_process_even_if_that_is_killed(submit: Path) -> None:
    """It reads the end of its input only once it has started, which takes a minute on a busy machine."""
    submit.write_text('#!/bin/bash\necho $$ >"$SPARK_HOME/pid"\nexec sleep 600\n')
    starts = "from sluice.jvm.driver import *; java = DriverJava({}, Path(sys.argv[1])); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", f"import sys; {starts}", submit.parent])
    eventually(lambda: (submit.parents[1] / "pid").is_file() and bool((submit.parents[1] / "pid").read_text()), 120)
    java = int((submit.parents[1] / "pid").read_text())

    parent.kill()
    parent.wait()

    eventually(lambda: is_over(java), 120)
