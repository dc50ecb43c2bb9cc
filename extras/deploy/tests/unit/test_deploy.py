"""Dockerfile and entrypoint: the image has what it says, and runs what its arguments say."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from deployment import DEPLOY, dockerfile, locked
from sluice.jvm.jars import REPOSITORY


def _copied() -> list[str]:
    """The files that the Dockerfile copies from the checkout."""
    copies = [line.split() for line in dockerfile("COPY") if not line.startswith("--from")]
    return [source for words in copies for source in words[:-1]]


def _without_marker(entry: str) -> str:
    """The entry for all platforms: what only Windows needs is asked for more widely by tools of developers."""
    return re.sub(r" ; .*(?= \\)", "", entry)


def test_everything_that_the_image_copies_is_there_and_is_sent_to_the_builder() -> None:
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sent = [rule[1:] for rule in rules if rule.startswith("!")]

    assert "*" in rules
    assert [source for source in _copied() if not (REPOSITORY / source).exists()] == []
    assert sorted(_copied()) == sorted(sent)


def test_the_image_has_every_package_of_the_wheel() -> None:
    linked = {path.resolve().name for path in (REPOSITORY / "sluice").iterdir() if path.is_symlink()}

    assert {"state", "streaming", "cli"} < linked
    assert {"sluice", *linked} <= set(_copied())


def test_the_image_installs_by_hash_what_the_lock_of_the_project_has() -> None:
    image, project = locked(DEPLOY / "requirements.lock"), locked(REPOSITORY / "requirements.lock")
    other = {name for name, entry in image.items() if _without_marker(entry) != _without_marker(project[name])}
    installs = [line for line in dockerfile("RUN") if "pip install" in line]

    assert len(installs) == 2
    assert "--require-hashes -r /build/extras/deploy/requirements.lock" in installs[0]
    assert "--no-deps --no-build-isolation /build" in installs[1]
    assert {"pyspark", "delta-spark", "starlette", "jinja2", "setuptools"} <= set(image)
    assert other == set()


def test_every_base_image_is_pinned_by_its_digest() -> None:
    arguments = dict(line.split("=", 1) for line in dockerfile("ARG"))
    bases = [line.split()[0] for line in dockerfile("FROM")]

    assert len(bases) == 3
    for base in bases:
        assert re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", arguments[base.strip("${}")]), base


@pytest.fixture
def container(tmp_path: Path) -> dict[str, str]:
    """Variables with which the entrypoint shows the command in place of running it, a line for each argument."""
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$PYSPARK_SUBMIT_ARGS"\n')
    tini.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JAVA_HOME": "/java", "SPARK_HOME": "/spark"}


def _entrypoint(variables: Mapping[str, str], *arguments: str) -> list[str]:
    command = [str(DEPLOY / "entrypoint"), *arguments]
    return subprocess.run(command, env=dict(variables), capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_container_runs_the_command_that_its_arguments_say(container: dict[str, str]) -> None:
    assert _entrypoint(container, "run", "--standby") == ["-s", "--", "sluice", "run", "--standby", ""]
    assert _entrypoint(container, "python", "a.py", "--port=1") == ["-s", "--", "python", "a.py", "--port=1", ""]


def test_the_driver_of_an_operator_is_sluice_with_sparks_properties(container: dict[str, str]) -> None:
    given = ("driver", "--properties-file", "/conf/spark.properties", "--class", "org.apache.spark.deploy.PythonRunner")
    shown = _entrypoint(container, *given, "local:///main.py", "run", "--standby")

    assert shown[:-1] == ["-s", "--", "sluice", "run", "--standby"]
    assert shown[-1] == (
        "--properties-file /conf/spark.properties --deploy-mode client"
        " --conf spark.kubernetes.submitInDriver=false pyspark-shell"
    )


def test_an_executor_is_started_with_what_spark_puts_into_its_variables(container: dict[str, str]) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in range(11)}
    names = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP")
    others = ("RESOURCE_PROFILE_ID", "EXECUTOR_POD_NAME", "EXECUTOR_MEMORY", "CONF_DIR")
    shown = _entrypoint(container | options | {f"SPARK_{name}": name.lower() for name in names + others}, "executor")

    assert shown[2] == "/java/bin/java"
    assert shown[3:14] == list(options.values())
    assert shown[14:19] == [
        *("-Xmsexecutor_memory", "-Xmxexecutor_memory", "-cp", "conf_dir:/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
    ]
    assert shown[19:31] == [
        *("--driver-url", "driver_url", "--executor-id", "executor_id", "--cores", "executor_cores"),
        *("--app-id", "application_id", "--hostname", "executor_pod_ip"),
        *("--resourceProfileId", "resource_profile_id"),
    ]
