"""deploy/: the image has what it says; the manifests fit Kubernetes, the operators, the command line and each other."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from sluice.cli.main import app
from sluice.configs.settings import Settings, load_settings
from sluice.jvm.jars import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(
    path
    for path in KUBERNETES.glob("*/*.yaml")
    if path.name not in ("kustomization.yaml", "settings.yaml", "console.yaml")
)
KUBERNETES_VERSIONS = ("1.30", "1.37")
"""The oldest and the newest that the manifests are held to."""

CRDS = os.environ.get("SLUICE_CRDS")
"""A folder with the CRDs of both operators, files *.yaml, which the repository doesn't have: they are others' work."""

DRIVER = ("run", "--config=/etc/sluice/settings/settings.yaml", "--standby")


def _objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a manifest; those of a List one by one."""
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    return list(chain.from_iterable(each["items"] if each["kind"] == "List" else [each] for each in documents))


ALL = [(path, each) for path in MANIFESTS for each in _objects(path)]
APPLICATIONS = [each for _, each in ALL if each["kind"] == "SparkApplication"]


def _pod_templates(each: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of an object, with metadata and spec."""
    spec = each.get("spec", {})
    if each["kind"] == "Pod":
        return [dict(each)]
    drivers = [spec.get("driverSpec", {}).get("podTemplateSpec"), spec.get("driver", {}).get("template")]
    return [template for template in [spec.get("template"), *drivers] if template]


PODS = [(path, template) for path, each in ALL for template in _pod_templates(each)]
CONTAINERS = [(path, pod, container) for path, pod in PODS for container in pod["spec"]["containers"]]


def _component(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def _drivers() -> list[tuple[Path, dict[str, Any], dict[str, Any]]]:
    return [each for each in CONTAINERS if _component(each[1]) == "driver" and each[2]["name"] != "state"]


def _dockerfile(instruction: str) -> list[str]:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [line.removeprefix(instruction).strip() for line in lines if line.startswith(instruction + " ")]


def _copied() -> list[str]:
    """The files that the Dockerfile copies from the checkout."""
    copies = [line.split() for line in _dockerfile("COPY") if not line.startswith("--from")]
    return [source for words in copies for source in words[:-1]]


def _locked(path: Path) -> dict[str, str]:
    """Package to its whole entry: version, marker and hashes."""
    entries = re.split(r"\n(?=\S)", path.read_text())
    return {entry.partition("==")[0]: entry.strip() for entry in entries if not entry.startswith("#")}


def _without_marker(entry: str) -> str:
    """The entry for all platforms: what only Windows needs is asked for more widely by tools of developers."""
    return re.sub(r" ; .*(?= \\)", "", entry)


# --- the image


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
    image, project = _locked(DEPLOY / "requirements.lock"), _locked(REPOSITORY / "requirements.lock")
    other = {name for name, entry in image.items() if _without_marker(entry) != _without_marker(project[name])}
    installs = [line for line in _dockerfile("RUN") if "pip install" in line]

    assert len(installs) == 2
    assert "--require-hashes -r /build/deploy/requirements.lock" in installs[0]
    assert "--no-deps --no-build-isolation /build" in installs[1]
    assert {"pyspark", "delta-spark", "starlette", "jinja2", "setuptools"} <= set(image)
    assert other == set()


def test_every_base_image_is_pinned_by_its_digest() -> None:
    arguments = dict(line.split("=", 1) for line in _dockerfile("ARG"))
    bases = [line.split()[0] for line in _dockerfile("FROM")]

    assert len(bases) == 3
    for base in bases:
        assert re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", arguments[base.strip("${}")]), base


def test_the_image_runs_as_the_user_of_the_manifests() -> None:
    assert _dockerfile("USER") == ["10001:10001"]
    for path, pod in PODS:
        context = pod["spec"]["securityContext"]

        assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (10001, 10001, True), path


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


# --- the schemas


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    of_kubernetes = [(path, each) for path, each in ALL if each["kind"] != "SparkApplication"]
    pods = [(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {}, **template}) for path, template in PODS]

    for path, each in [*of_kubernetes, *pods]:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{path}: {error.message}")


def test_a_misspelt_field_does_not_fit_the_schemas_of_kubernetes() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "livenesProbe": {}}]}}

    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(pod, KUBERNETES_VERSIONS[0], strict=True)


def _unknown_to_kubeflow(each: dict[str, Any]) -> set[str]:
    """The fields of a SparkApplication that kubeflow's operator doesn't have: its model leaves them out."""
    return _field_names(each) - _field_names(SparkV1beta2SparkApplication.from_dict(each).to_dict())


def _field_names(value: Any, path: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(_field_names(each, path) for each in value))
    if not isinstance(value, dict):
        return {path}
    return set().union(*(_field_names(each, f"{path}.{name}") for name, each in value.items()))


def test_the_applications_fit_the_models_of_kubeflows_operator() -> None:
    applications = [each for each in APPLICATIONS if each["apiVersion"] == "sparkoperator.k8s.io/v1beta2"]

    assert [each["metadata"]["name"] for each in applications] == ["sluice-a", "sluice-b"]
    for each in applications:
        assert _unknown_to_kubeflow(each) == set()
        misspelt = each | {"spec": each["spec"] | {"restartPolicyy": {"type": "Always"}}}
        assert _unknown_to_kubeflow(misspelt) == {".spec.restartPolicyy.type"}


def _strict(schema: Any) -> Any:
    """The schema of a CRD in which fields that it doesn't name are errors, as they are to `kubectl apply`."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    strict = {name: _strict(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def _crd_schemas(folder: Path) -> Iterator[tuple[str, Any]]:
    """(apiVersion, schema) of every version of the kind SparkApplication."""
    for path in sorted(folder.glob("*.yaml")):
        crd = yaml.load(path.read_text(), yaml.CSafeLoader)  # as safe as SafeLoader, and faster: a mebibyte
        if crd.get("kind") == "CustomResourceDefinition" and crd["spec"]["names"]["kind"] == "SparkApplication":
            for version in crd["spec"]["versions"]:
                schema = _strict(version["schema"]["openAPIV3Schema"])
                schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}
                yield f"{crd['spec']['group']}/{version['name']}", schema


@pytest.mark.skipif(CRDS is None, reason="SLUICE_CRDS names no folder with the CRDs of the operators")
def test_the_applications_fit_the_crds_of_their_operators() -> None:
    assert CRDS is not None
    schemas = dict(_crd_schemas(Path(CRDS)))

    assert len(APPLICATIONS) == 4
    for each in APPLICATIONS:
        validator = Draft202012Validator(schemas[each["apiVersion"]])
        misspelt = each | {"spec": each["spec"] | {"restartPolicyy": {}}}

        assert [error.message for error in validator.iter_errors(each)] == []
        assert ["restartPolicyy" in error.message for error in validator.iter_errors(misspelt)] == [True]


# --- the command line and the settings


def _parse(command: Any, arguments: list[str]) -> None:
    """Parse as the command line does, without running anything. Raises TyperException."""
    context = command.make_context("sluice", list(arguments))
    if isinstance(command, TyperGroup):
        _, inner, rest = command.resolve_command(context, list(arguments))
        _parse(inner, rest)


OF_CONTAINERS = [list(container["args"]) for _, _, container in CONTAINERS if "args" in container]
OF_APPLICATIONS = [list(each["spec"].get("arguments") or each["spec"]["driverArgs"]) for each in APPLICATIONS]


@pytest.mark.parametrize("arguments", [*OF_CONTAINERS, *OF_APPLICATIONS], ids=lambda arguments: " ".join(arguments[:2]))
def test_the_command_line_takes_the_arguments_of_every_container(arguments: list[str]) -> None:
    _parse(get_command(app), arguments)


@pytest.mark.parametrize("arguments", [["run", "--standy"], ["state", "exprt", "file"], ["stae"]])
def test_arguments_that_the_command_line_does_not_take_are_noticed(arguments: list[str]) -> None:
    with pytest.raises(TyperException):
        _parse(get_command(app), arguments)


def _settings_of(container: Mapping[str, Any], path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a file with exactly the variables that the container gets."""
    for name in set(os.environ) - {"PATH"}:
        monkeypatch.delenv(name)
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each.get("value", "any"))
    return load_settings(path)


def test_the_settings_load_with_the_variables_of_each_container(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "driver": KUBERNETES / "base" / "settings.yaml",
        "console": KUBERNETES / "base" / "console.yaml",
    }
    loaded = set()
    for _, pod, container in CONTAINERS:
        if "env" in container:
            _settings_of(container, files[_component(pod)], monkeypatch)
            loaded.add(_component(pod))

    assert loaded == set(files)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of the job, with the variables of the Deployment."""
    return _settings_of(_drivers()[0][2], KUBERNETES / "base" / "settings.yaml", monkeypatch)


# --- each other


def test_all_three_forms_have_two_drivers_that_run_the_same_command() -> None:
    [deployment] = _objects(KUBERNETES / "deployment" / "driver.yaml")
    [container] = deployment["spec"]["template"]["spec"]["containers"]

    assert deployment["spec"]["replicas"] == 2
    assert tuple(container["args"]) == DRIVER
    assert [tuple(arguments) for arguments in OF_APPLICATIONS] == [DRIVER] * 4


def test_the_drivers_of_all_three_forms_are_alike() -> None:
    (_, first, driver), *others = _drivers()
    same = ("env", "ports", "startupProbe", "readinessProbe", "livenessProbe", "securityContext", "volumeMounts")
    of_the_pod = ("terminationGracePeriodSeconds", "securityContext", "affinity", "volumes")

    assert len(others) == 4
    for path, pod, container in others:
        assert {name: container[name] for name in same} == {name: driver[name] for name in same}, path
        assert {name: pod["spec"][name] for name in of_the_pod} == {name: first["spec"][name] for name in of_the_pod}
        assert pod["metadata"] == first["metadata"]


def test_one_image_is_used_everywhere() -> None:
    images = {container["image"] for _, _, container in CONTAINERS if "image" in container}
    variables = {
        each["value"] for _, _, container in CONTAINERS for each in container.get("env", ()) if "value" in each
    }
    of_operators = {
        each["spec"].get("image") or each["spec"]["sparkConf"]["spark.kubernetes.container.image"]
        for each in APPLICATIONS
    }

    assert images == variables == of_operators == {"sluice:0.1.0"}


def test_the_image_has_the_spark_that_the_applications_name() -> None:
    versions = {
        each["spec"].get("sparkVersion") or each["spec"]["runtimeVersions"]["sparkVersion"] for each in APPLICATIONS
    }

    assert [f"pyspark=={version}" in _locked(DEPLOY / "requirements.lock")["pyspark"] for version in versions] == [True]


def test_the_operators_start_a_driver_again_however_often_it_ended() -> None:
    for each in APPLICATIONS:
        if each["apiVersion"].startswith("spark.apache.org"):
            restart = each["spec"]["applicationTolerations"]["restartConfig"]

            assert restart["restartPolicy"] == "Always"
            assert restart["restartCounterResetMillis"] > 0
            assert "instanceConfig" not in each["spec"]["applicationTolerations"]  # a standby has no executors
        else:
            assert each["spec"]["restartPolicy"]["type"] == "Always"


def test_probes_and_prometheus_ask_where_the_job_answers(settings: Settings) -> None:
    assert settings.health.address == "0.0.0.0"  # noqa: S104 # a probe comes from the node
    assert settings.health.stalled_after_s > 0
    for path, pod, container in _drivers():
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            target = container[probe]["httpGet"]

            assert (target["path"], ports[target["port"]]) == ("/healthz", settings.health.port), path
        annotations = pod["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == str(settings.health.port)
        assert annotations["prometheus.io/path"] == "/metrics"


def test_a_container_writes_to_mounted_volumes_alone(settings: Settings) -> None:
    for path, pod, container in CONTAINERS:
        context, mounts = container["securityContext"], {each["mountPath"] for each in container["volumeMounts"]}

        assert context["readOnlyRootFilesystem"], path
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context["allowPrivilegeEscalation"]
        assert "/tmp" in mounts  # noqa: S108 # of the container
        assert {each["name"] for each in container["volumeMounts"]} <= {each["name"] for each in pod["spec"]["volumes"]}
    stored = [settings.enforce.checkpoint, settings.audit.checkpoint, settings.delta.quotas, settings.delta.decisions]
    assert all(each.removeprefix("file://").startswith("/var/lib/sluice/") for each in stored)


def test_the_ports_that_policies_admit_are_those_of_the_settings(settings: Settings) -> None:
    policies = {each["metadata"]["name"]: each for each in _objects(KUBERNETES / "base" / "networkpolicy.yaml")}
    admitted = {
        name: {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
        for name, policy in policies.items()
    }
    rpc, blocks = int(settings.spark["spark.driver.port"]), int(settings.spark["spark.blockManager.port"])

    assert admitted["sluice-driver"] == {rpc, blocks, settings.health.port}
    assert admitted["sluice-executor"] == {blocks}
    assert admitted["sluice"] == set()
    assert admitted["sluice-console"] == {8089}


def test_the_settings_fit_executors_disruption_budget_and_files(settings: Settings) -> None:
    spark = settings.spark
    executors = int(spark["spark.executor.instances"])
    budgets = {
        each["metadata"]["name"]: each["spec"]["minAvailable"]
        for each in _objects(KUBERNETES / "base" / "poddisruptionbudget.yaml")
    }
    [generated] = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["configMapGenerator"]

    assert budgets == {"sluice-driver": 1, "sluice-executor": executors - 1}
    assert settings.enforce.shuffle_partitions == executors * int(spark["spark.executor.cores"])
    assert Path(spark["spark.kubernetes.executor.podTemplateFile"]).name in generated["files"]
    assert spark["spark.dynamicAllocation.enabled"] == "false"


def test_every_file_that_a_kustomization_names_is_there() -> None:
    for path in KUBERNETES.glob("*/kustomization.yaml"):
        kustomization = yaml.safe_load(path.read_text())
        generated = [name for each in kustomization.get("configMapGenerator", ()) for name in each["files"]]

        assert [name for name in [*kustomization["resources"], *generated] if not (path.parent / name).exists()] == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="this machine has no kubectl")
@pytest.mark.parametrize("form", ["deployment", "apache-operator", "kubeflow-operator"])
def test_kustomize_builds_each_folder(form: str) -> None:
    command = [shutil.which("kubectl") or "kubectl", "kustomize", str(KUBERNETES / form)]
    built = subprocess.run(command, capture_output=True, text=True, check=True)

    made = list(yaml.safe_load_all(built.stdout))
    for each in made:
        if each["kind"] != "SparkApplication":
            kubernetes_validate.validate(each, KUBERNETES_VERSIONS[0], strict=True)
    assert {each["metadata"].get("namespace", "sluice") for each in made} == {"sluice"}
