"""Spark's Kubernetes scheduler with the entrypoint of the image and the settings of deploy/, on a stand-in."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from scripts.testbed.pods import POLLING, Pods
from scripts.testbed.processes import Child
from sluice.jvm.jars import REPOSITORY
from sluice.jvm.java import find_java
from tests.integration.job_process import JobProcess, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]

DEPLOY = REPOSITORY / "deploy"
ENTRYPOINT = str(DEPLOY / "entrypoint")
DRIVER = "sluice-a-driver"
SMALL = {"spark.executor.instances": "2", "spark.executor.cores": "1", "spark.executor.memory": "1g"}


class OperatorsDriver(JobProcess):
    """The driver of a SparkApplication: the entrypoint with the arguments and properties that Spark gives it."""

    def __init__(self, folder: Path, broker: str, spark: Mapping[str, str], variables: Mapping[str, str]) -> None:
        checkpoint = {"checkpoint": (folder / "shared" / "enforce").as_uri(), "shuffle_partitions": 2}
        super().__init__(folder, broker, [], enforce=checkpoint, spark=dict(spark))
        self._variables = variables

    def launch(self, *options: str) -> Child:
        """Start the entrypoint as the pod of an operator does."""
        properties = self.folder / "spark.properties"
        properties.write_text(
            "spark.submit.deployMode=cluster\nspark.kubernetes.submitInDriver=true\nspark.kubernetes.executor.label.operator=yes\n"
        )
        of_spark = ("--properties-file", str(properties), "--class", "org.apache.spark.deploy.PythonRunner")
        of_sluice = ("run", f"--config={self.settings_file}", "--status-file", str(self.status_file), *options)
        set_all = [
            "/usr/bin/env",
            "-i",
            "-C",
            str(self.folder),
            *(f"{name}={value}" for name, value in self._variables.items()),
        ]
        self.status_file.unlink(missing_ok=True)
        self._starts += 1
        command = [*set_all, ENTRYPOINT, "driver", *of_spark, "local:///main.py", *of_sluice]
        self.child = Child(command, self.log_file)
        return self.child


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The variables of the image, with the Java and the packages of this machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    if shutil.which("tini") is None:
        (programs / "tini").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
        (programs / "tini").chmod(0o755)
    java, _ = find_java()
    return {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(Path(java).resolve().parents[1]),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "HOME": str(tmp_path),
    }


@pytest.fixture
def pods(tmp_path: Path, variables: dict[str, str]) -> Iterator[Pods]:
    """A stand-in for Kubernetes with the pod of the driver."""
    with Pods(tmp_path, [ENTRYPOINT], variables) as pods:
        pods.add_driver(DRIVER)
        yield pods


def _spark_settings(pods: Pods) -> dict[str, str]:
    """Section `spark` of the manifests, but for address and size."""
    settings: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "base" / "settings.yaml").read_text())
    template = {"spark.kubernetes.executor.podTemplateFile": str(DEPLOY / "kubernetes" / "base" / "executor.yaml")}
    return {**settings["spark"], **SMALL, **POLLING, **template, "spark.master": pods.master}


def test_executors_are_pods_of_the_template_and_a_lost_one_is_replaced(
    kafka_broker: str, tmp_path: Path, pods: Pods, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request has one decision, in copies alike where a task was repeated; SIGTERM ends driver and executors."""
    of_the_pod = {"POD_NAME": DRIVER, "POD_IP": "127.0.0.1", "SLUICE_IMAGE": "sluice:0.1.0"}
    for name, value in of_the_pod.items():
        monkeypatch.setenv(name, value)  # the test reads the settings too
    job = OperatorsDriver(tmp_path / "job", kafka_broker, _spark_settings(pods), variables | of_the_pod)
    try:
        job.start()
        driver = job.running()
        job.publish([b'{"api": "Metadata"}'] * 100)
        wait_until(lambda: _decided(job) == 100, 180)
        first = pods.running()
        pods.end(first[0], signal.SIGKILL)
        job.publish([b'{"api": "Metadata"}'] * 100)
        wait_until(lambda: _decided(job) == 200, 180)
        wait_until(lambda: len(pods.running()) == 2, 60)
        manifests = pods.manifests()
        os.kill(driver.pid, signal.SIGTERM)

        assert driver.wait(120) == 0
        wait_until(lambda: pods.running() == [], 60)
    finally:
        job.kill()

    assert len(first) == 2
    assert len(manifests) >= 2
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/component"] == "executor"
        assert labels["operator"] == "yes"
        assert manifest["metadata"]["ownerReferences"][0]["name"] == DRIVER
        assert manifest["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


def _decided(job: JobProcess) -> int:
    """How many requests have a decision. All copies of one have to be alike. Raises RunError when the job has ended."""
    job.running()
    records = job.topic(job.settings.topics.decisions)
    values: dict[str, set[bytes]] = {}
    for record, decision in zip(records, job.decisions(), strict=False):
        values.setdefault(decision["decision_id"], set()).add(record.value)
    assert all(len(copies) == 1 for copies in values.values())
    return len(values)
