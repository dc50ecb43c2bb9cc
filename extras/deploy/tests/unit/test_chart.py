"""The chart: what Helm makes of it fits Kubernetes, the operators, the image, the command line, and itself."""

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator
from typer.main import get_command

from deployment import DASHBOARD, DEPLOY, RULES, dockerfile, locked, parse_command
from sluice.cli.main import app
from sluice.configs import extras
from sluice.configs.settings import Settings, load_settings
from sluice.jvm.jars import REPOSITORY
from sluice_demo.job import TABLES
from sluice_lab.testbed.helm import CHART, HelmError, helm
from sluice_shared_storage.settings import S3Settings
from tests.builders import Json

KUBERNETES_VERSIONS = ("1.30", "1.37")
"""The oldest and the newest that the manifests are checked by."""

KAFKA = {"bootstrapServers": "kafka.kafka.svc:9093"}
S3 = {"uri": "s3://bucket/sluice/", "secret": "sluice-s3"}
FORMS = ("deployment", "apache-operator", "kubeflow-operator")

LARGE: Json = {"drivers": 2, "executors": {"instances": 3}}
ON_SEVERAL_NODES: Json = {"volume": {"accessMode": "ReadWriteMany"}}

VALUES: dict[str, Json] = {form: {"job": LARGE | {"form": form}, "storage": ON_SEVERAL_NODES} for form in FORMS} | {
    "small": {},
    "watched": {
        "job": LARGE,
        "storage": ON_SEVERAL_NODES,
        "monitoring": {"podMonitor": True, "alerts": True, "dashboard": True, "labels": {"release": "prometheus"}},
        "podSpec": {
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "streaming", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "registry"}],
        },
    },
    "object storage": {
        "job": LARGE,
        "storage": {"s3": S3},
        "settings": {"s3": {"endpoint": "https://store.example:9000", "region": "eu-west-1"}},
        "serviceAccounts": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/sluice"}},
        "networkPolicy": {"storagePorts": [9000]},
    },
    "certificates": {
        "kafka": KAFKA | {"securityProtocol": "SSL", "clientCertificate": True},
        "storage": {"volume": {"existingClaim": "shared", "class": "nfs"}},
    },
    "proxies": {
        "proxy": {
            "replicas": 2,
            "brokerIds": [0, 1, 2, 7],
            "tlsSecret": "sluice-proxy-tls",
            "options": ["--connections-per-s=5000"],
        },
        "monitoring": {"podMonitor": True},
        "storage": {"s3": S3},
    },
    "nothing": {
        "kafka": KAFKA | {"securityProtocol": "PLAINTEXT"},
        "job": {"drivers": 1},
        "console": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
    "state": {"state": {"arguments": ["state", "export", "/var/lib/sluice/balances.sluice"]}},
}
"""Values of installs that differ in all that the chart decides."""

APPLICATION = "SparkApplication"
OF_OPERATORS = {APPLICATION, "PodMonitor", "PrometheusRule"}

every_install = pytest.mark.parametrize("install", VALUES)
every_form = pytest.mark.parametrize("install", FORMS)


schema_contents = cache(kubernetes_validate.utils.schema_contents)


@cache
def rendered(values: str) -> list[Json]:
    """The objects that Helm makes of these values."""
    made = helm("template", "sluice", str(CHART), "--namespace=sluice", "--values=-", values=values)
    return [each for each in yaml.load_all(made, yaml.CSafeLoader) if each]  # as safe as SafeLoader, and faster


@cache
def objects(install: str, kind: str | None = None) -> list[Json]:
    """The objects of an install, and what executors are made from."""
    made = rendered(json.dumps({"kafka": KAFKA} | VALUES[install]))
    executor = yaml.load(file_of(made, "executor.yaml"), yaml.CSafeLoader)
    return [each for each in [*made, executor] if kind in (None, each["kind"])]


def named(install: str, kind: str) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in objects(install, kind)}


def file_of(made: list[Json], name: str) -> str:
    """A file of the ConfigMap that pods have as /etc/sluice/settings."""
    [found] = [each["data"][name] for each in made if each["metadata"].get("name") == "sluice-settings"]
    return str(found)


def pods(install: str) -> list[Json]:
    """The pod templates, with metadata and spec."""
    found = []
    for each in objects(install):
        spec = each.get("spec", {})
        drivers = [spec.get("driverSpec", {}).get("podTemplateSpec"), spec.get("driver", {}).get("template")]
        templates = [each] if each["kind"] == "Pod" else [spec.get("template"), *drivers]
        found += [template for template in templates if template]
    return found


def component(each: Mapping[str, Any]) -> str:
    return str(each["metadata"]["labels"]["app.kubernetes.io/component"])


def containers(install: str, of: str | None = None) -> list[tuple[Json, Json]]:
    """(pod, container) of a component, or of all."""
    return [(pod, each) for pod in pods(install) if of in (None, component(pod)) for each in pod["spec"]["containers"]]


def commands(install: str) -> list[list[str]]:
    """The arguments of all containers, and those that operators give to drivers."""
    given = [each["spec"].get("arguments") or each["spec"]["driverArgs"] for each in objects(install, APPLICATION)]
    return given + [container["args"] for _, container in containers(install) if "args" in container]


# --- the chart and its values


@every_install
def test_helm_finds_no_fault(install: str) -> None:
    values = json.dumps({"kafka": KAFKA} | VALUES[install])

    assert "0 chart(s) failed" in helm("lint", str(CHART), "--strict", "--values=-", values=values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"jobb": {}}, "additional properties 'jobb' not allowed"),
        ({"job": {"form": "operator"}}, "value must be one of 'deployment'"),
        ({"podSpec": {"containers": []}}, "additional properties 'containers' not allowed"),
        ({"settings": {"enforcee": {}}}, "invalid propertyName 'enforcee'"),
        ({"storage": {"s3": {"uri": "bucket"}}}, "'bucket' does not match pattern"),
        ({"job": {"drivers": 2}}, "storage.volume.accessMode is ReadWriteOnce; expected ReadWriteMany"),
        ({"job": {"form": "apache-operator"}}, "job.executors.instances is 0; expected 1 or more with an operator"),
        ({"kafka": {}}, "kafka.bootstrapServers is empty; expected such as kafka.kafka.svc:9093"),
    ],
)
def test_values_that_the_chart_does_not_know_are_refused(values: Json, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        rendered(json.dumps({"kafka": KAFKA} | values))


def test_every_value_is_in_the_schema_and_every_section_of_the_settings() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    sections = yaml.safe_load((REPOSITORY / "configs" / "default.yaml").read_text())

    Draft7Validator.check_schema(schema)
    assert set(values) | {"global"} == set(schema["properties"])
    for name, value in values.items():
        assert set(value) <= set(schema["properties"][name].get("properties", ())), name
    assert schema["properties"]["settings"]["propertyNames"]["enum"] == [*sections, *sorted(extras.sections())]


@every_install
def test_everything_is_of_one_namespace_and_has_the_labels_of_the_release(install: str) -> None:
    for each in objects(install):
        labels = each["metadata"]["labels"]

        assert each["metadata"].get("namespace") is None  # Helm's
        assert (labels["app.kubernetes.io/name"], labels["app.kubernetes.io/instance"]) == ("sluice", "sluice")


def test_two_releases_in_one_namespace_share_nothing() -> None:
    def kinds_and_names(release: str) -> set[tuple[str, str]]:
        values = json.dumps({"kafka": KAFKA} | VALUES["watched"])
        made = yaml.safe_load_all(helm("template", release, str(CHART), "--values=-", values=values))
        return {(each["kind"], each["metadata"]["name"]) for each in made if each}

    assert kinds_and_names("one").isdisjoint(kinds_and_names("two"))


# --- the schemas


@pytest.fixture(autouse=True)
def _schemas_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The definitions of a version are a mebibyte, which each validation would read."""
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", schema_contents)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@every_install
def test_the_manifests_fit_the_schemas_of_kubernetes(install: str, version: str) -> None:
    of_kubernetes = [each for each in objects(install) if each["kind"] not in OF_OPERATORS]
    templates = [{"apiVersion": "v1", "kind": "Pod", "metadata": {}, **template} for template in pods(install)]

    for each in [*of_kubernetes, *templates]:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{each['kind']}: {error.message}")


def _unknown_to_kubeflow(each: Json) -> set[str]:
    """The fields of a SparkApplication that kubeflow's operator doesn't have: its model leaves them out."""
    # a quarter of what all tests together take to import
    from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication

    return _field_names(each) - _field_names(SparkV1beta2SparkApplication.from_dict(each).to_dict())


def _field_names(value: Any, path: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(_field_names(each, path) for each in value))
    if not isinstance(value, dict):
        return {path}
    return set().union(*(_field_names(each, f"{path}.{name}") for name, each in value.items()))


def test_the_applications_fit_the_models_of_kubeflows_operator() -> None:
    for each in objects("kubeflow-operator", APPLICATION):
        misspelt = each | {"spec": each["spec"] | {"restartPolicyy": {"type": "Always"}}}

        assert each["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
        assert _unknown_to_kubeflow(each) == set()
        assert _unknown_to_kubeflow(misspelt) == {".spec.restartPolicyy.type"}


# --- the command line and the settings


@every_install
def test_the_command_line_takes_the_arguments_of_every_container(install: str) -> None:
    assert commands(install)
    for arguments in commands(install):
        parse_command(get_command(app), arguments)


def _settings_of(install: str, container: Json, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a container, of the file that it names, with exactly the variables that it gets."""
    for name in set(os.environ) - {"PATH"}:
        monkeypatch.delenv(name)
    for each in container.get("env") or ():
        monkeypatch.setenv(each["name"], each.get("value", "any"))
    [given] = {option for arguments in commands(install) for option in arguments if "=/etc/sluice/settings/s" in option}
    arguments = container.get("args", [given])
    [named_file] = [Path(each.partition("=")[2]) for each in arguments if each.startswith("--config=")]
    path = folder / named_file.name
    path.write_text(file_of(objects(install), named_file.name))
    return load_settings(path)


@pytest.fixture
def settings(install: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of the drivers."""
    return _settings_of(install, containers(install, "driver")[0][1], tmp_path, monkeypatch)


@every_install
def test_the_settings_load_with_the_variables_of_each_container(
    install: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pod, container in containers(install):
        if component(pod) != "executor":
            loaded = _settings_of(install, container, tmp_path, monkeypatch)

            assert loaded.kafka["bootstrap.servers"] == KAFKA["bootstrapServers"]


def test_the_job_and_its_console_agree_on_topics_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"kafka": KAFKA, "settings": {"topics": {"decisions": "answers"}, "delta": {"decisions": "file:///d"}}}
    made = rendered(json.dumps(values))
    for name in ("KAFKA_USERNAME", "KAFKA_PASSWORD", "POD_NAME", "POD_IP"):
        monkeypatch.setenv(name, "any")
    read = []
    for name in ("settings.yaml", "console.yaml"):
        path = tmp_path / name
        path.write_text(file_of(made, name))
        read.append(load_settings(path))

    assert read[0].topics == read[1].topics
    assert read[0].delta == read[1].delta
    assert read[0].topics.decisions == "answers"


@pytest.mark.parametrize("install", ["deployment"])
def test_a_setting_of_the_values_wins_over_that_of_the_chart(settings: Settings) -> None:
    given = {"settings": {"spark": {"spark.driver.memory": "6g"}, "topics": {"requests_retention_ms": 864000000}}}
    made = rendered(json.dumps({"kafka": KAFKA} | VALUES["deployment"] | given))
    changed = yaml.safe_load(file_of(made, "settings.yaml"))

    assert changed["spark"]["spark.driver.memory"] == "6g"
    assert changed["spark"]["spark.driver.port"] == settings.spark["spark.driver.port"]
    assert changed["topics"]["requests_retention_ms"] == 864_000_000


# --- each other


@every_form
def test_each_form_has_two_drivers_that_run_the_same_command(install: str) -> None:
    deployed = [each["spec"]["replicas"] for each in objects(install, "Deployment") if component(each) == "driver"]

    assert len(objects(install, APPLICATION)) + sum(deployed) == 2
    assert [each for each in commands(install) if each[0] == "run"] == [
        ["run", "--config=/etc/sluice/settings/settings.yaml", "--standby"]
    ] * (1 if deployed else 2)


def test_a_small_job_is_one_pod_that_decides_on_its_own_cores_and_has_a_volume_of_one_node() -> None:
    """As sizing says for 200 teams: 2 cores and 5 GiB."""
    [(pod, driver)] = containers("small", "driver")
    [(console, _)] = containers("small", "console")
    settings = yaml.safe_load(file_of(objects("small"), "settings.yaml"))
    deployed = {each["metadata"]["name"]: each["spec"]["replicas"] for each in objects("small", "Deployment")}
    [claim] = objects("small", "PersistentVolumeClaim")

    assert deployed == {"sluice": 1, "sluice-console": 1}
    assert driver["resources"]["limits"] == {"cpu": "2", "memory": "5Gi"}
    assert settings["spark"] == {"spark.master": "local[*]", "spark.driver.memory": "2g"}
    assert "shuffle_partitions" not in settings["enforce"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert pod["spec"]["affinity"] == console["spec"]["affinity"]
    assert "podAffinity" in pod["spec"]["affinity"]
    assert "sluice-executor" not in named("small", "NetworkPolicy") | named("small", "PodDisruptionBudget")


def test_a_proxy_that_starts_without_the_job_knows_how_many_share_the_limits() -> None:
    [(_, proxy)] = containers("proxies", "proxy")

    assert "--expected-gateways=2" in proxy["args"]


def test_the_drivers_of_all_three_forms_are_alike() -> None:
    (first, driver), *others = [each for form in FORMS for each in containers(form, "driver")]
    same = ("env", "ports", "startupProbe", "readinessProbe", "livenessProbe", "securityContext", "volumeMounts")

    assert len(others) == 4
    for pod, container in others:
        assert {name: container[name] for name in same} == {name: driver[name] for name in same}
        assert pod["spec"] | {"containers": []} == first["spec"] | {"containers": []}
        assert pod["metadata"]["labels"] == first["metadata"]["labels"]
        assert pod["metadata"]["annotations"].items() <= first["metadata"]["annotations"].items()


@every_install
def test_one_image_is_used_everywhere(install: str, settings: Settings) -> None:
    images = {container["image"] for _, container in containers(install) if "image" in container}
    of_operators = {
        each["spec"].get("image") or each["spec"]["sparkConf"]["spark.kubernetes.container.image"]
        for each in objects(install, APPLICATION)
    }

    own = f"sluice:{yaml.safe_load((CHART / 'Chart.yaml').read_text())['appVersion']}"
    of_executors = settings.spark.get("spark.kubernetes.container.image", own)
    assert images | of_operators == {of_executors} == {own}


@pytest.mark.parametrize("install", FORMS[1:])
def test_the_image_has_the_spark_that_the_applications_name(install: str) -> None:
    versions = {
        each["spec"].get("sparkVersion") or each["spec"]["runtimeVersions"]["sparkVersion"]
        for each in objects(install, APPLICATION)
    }

    assert [f"pyspark=={version}" in locked(DEPLOY / "requirements.lock")["pyspark"] for version in versions] == [True]


def test_the_operators_start_a_driver_again_however_often_it_ended() -> None:
    for each in objects("apache-operator", APPLICATION):
        restart = each["spec"]["applicationTolerations"]["restartConfig"]

        assert restart["restartPolicy"] == "Always"
        assert restart["restartCounterResetMillis"] > 0
        assert "instanceConfig" not in each["spec"]["applicationTolerations"]  # a standby has no executors
    for each in objects("kubeflow-operator", APPLICATION):
        assert each["spec"]["restartPolicy"]["type"] == "Always"


@every_form
def test_probes_and_prometheus_ask_where_the_job_answers(install: str, settings: Settings) -> None:
    assert settings.health.address == "0.0.0.0"  # noqa: S104 # a probe comes from the node
    assert settings.health.stalled_after_s > 0
    for pod, container in containers(install, "driver"):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            target = container[probe]["httpGet"]

            assert (target["path"], ports[target["port"]]) == ("/healthz", settings.health.port)
        annotations = pod["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == str(settings.health.port)
        assert annotations["prometheus.io/path"] == "/metrics"


def test_prometheus_operator_asks_drivers_and_proxies_and_has_alerts_and_dashboard() -> None:
    install = "watched"
    [monitor], [rules] = objects(install, "PodMonitor"), objects(install, "PrometheusRule")
    asked = [(endpoint["port"], endpoint["path"]) for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    [driver], [proxy] = containers(install, "driver"), containers("proxies", "proxy")

    for pod, container in (driver, proxy):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert len([port for port in container["ports"] if (port["name"], "/metrics") in asked]) == 1
        assert "prometheus.io/scrape" not in pod["metadata"].get("annotations", {})  # nobody asks twice
    assert rules["spec"] == yaml.safe_load(RULES.read_text())
    assert {each["metadata"]["labels"]["release"] for each in (monitor, rules)} == {"prometheus"}
    assert json.loads(named(install, "ConfigMap")["sluice-dashboard"]["data"]["sluice.json"]) == DASHBOARD


@every_install
def test_a_container_runs_as_the_user_of_the_image_and_writes_to_mounted_volumes_alone(install: str) -> None:
    [user] = dockerfile("USER")
    for pod, container in containers(install):
        context, of_pod = container["securityContext"], pod["spec"]["securityContext"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}

        assert f"{of_pod['runAsUser']}:{of_pod['runAsGroup']}" == user
        assert of_pod["runAsNonRoot"]
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context["allowPrivilegeEscalation"]
        assert mounts["tmp"] == "/tmp"  # noqa: S108 # of the container
        assert set(mounts) == {each["name"] for each in pod["spec"]["volumes"]}


@every_install
def test_all_that_is_to_stay_is_on_the_volume_or_in_the_store(install: str, settings: Settings) -> None:
    tables = [getattr(settings.delta, table) for table in TABLES]
    stored = [settings.enforce.checkpoint, settings.audit.checkpoint, *tables]
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods(install)
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    made = set(named(install, "PersistentVolumeClaim"))

    if settings.section(S3Settings).credentials_file:
        assert all(each.startswith("s3://bucket/sluice/") for each in stored)
        assert claims == made == set()
    else:
        assert all(each.removeprefix("file://").startswith("/var/lib/sluice/") for each in stored)
        assert (claims, made) == (({"shared"}, set()) if install == "certificates" else ({"sluice-storage"},) * 2)
        for _, container in containers(install):
            assert "/var/lib/sluice" in {each["mountPath"] for each in container["volumeMounts"]}


@pytest.mark.parametrize("install", ["object storage"])
def test_every_pod_has_the_credentials_of_the_object_store_as_a_file_and_a_role(
    install: str, settings: Settings
) -> None:
    assert settings.section(S3Settings).credentials_file == "/etc/sluice/s3/credentials"
    assert settings.section(S3Settings).endpoint == "https://store.example:9000"
    assert {component(pod) for pod in pods(install)} == {"driver", "executor", "console"}
    for pod, container in containers(install):
        [volume] = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "s3"]
        [mount] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "s3"]

        assert volume["secretName"] == S3["secret"]
        assert [f"{mount}/{each['path']}" for each in volume["items"]] == [
            settings.section(S3Settings).credentials_file
        ]
    for account in objects(install, "ServiceAccount"):
        assert account["metadata"]["annotations"] == VALUES[install]["serviceAccounts"]["annotations"]


@pytest.mark.parametrize("install", ["certificates"])
def test_certificates_are_where_the_settings_look_for_them(install: str, settings: Settings) -> None:
    stores = [settings.kafka[f"ssl.{store}.location"] for store in ("truststore", "keystore")]
    for pod, container in [*containers(install, "driver"), *containers(install, "console")]:
        [volume] = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "kafka"]
        [mount] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "kafka"]

        assert [f"{mount}/{each['path']}" for each in volume["items"]] == stores


@every_install
def test_pods_name_config_maps_and_accounts_that_are_there(install: str) -> None:
    accounts = set(named(install, "ServiceAccount"))
    for pod in pods(install):
        if component(pod) != "executor":
            assert pod["spec"]["serviceAccountName"] in accounts
    maps = {
        volume["configMap"]["name"]
        for pod in pods(install)
        for volume in pod["spec"]["volumes"]
        if "configMap" in volume
    }

    assert maps == {"sluice-settings"}
    has_executors = "executors" in VALUES[install].get("job", {})
    assert {
        name for name, each in named(install, "ServiceAccount").items() if each["automountServiceAccountToken"]
    } == ({"sluice-driver"} if has_executors else set())
    assert bool(named(install, "Role")) is has_executors


@every_install
def test_what_selects_pods_finds_some(install: str) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(install)]
    selectors = [
        each["spec"]["selector"].get("matchLabels") or each["spec"]["selector"]
        for each in objects(install)
        if "selector" in each.get("spec", {})
    ] + [each["spec"]["podSelector"]["matchLabels"] for each in objects(install, "NetworkPolicy")]

    assert selectors
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in labels), selector


@pytest.mark.parametrize("install", ["deployment", "object storage"])
def test_the_ports_that_policies_admit_are_those_of_the_settings(install: str, settings: Settings) -> None:
    def ports(direction: str) -> dict[str, set[int]]:
        return {
            name: {port["port"] for rule in policy["spec"].get(direction, ()) for port in rule["ports"]}
            for name, policy in named(install, "NetworkPolicy").items()
        }

    rpc, blocks = int(settings.spark["spark.driver.port"]), int(settings.spark["spark.blockManager.port"])
    admitted, allowed = ports("ingress"), ports("egress")

    assert admitted["sluice-driver"] == {rpc, blocks, settings.health.port}
    assert admitted["sluice-executor"] == {blocks}
    assert admitted["sluice"] == set()
    assert admitted["sluice-console"] == {8089}
    assert allowed["sluice"] == ({53, 9093, 9000} if install == "object storage" else {53, 9093})


@pytest.mark.parametrize("install", ["deployment", "watched"])
def test_the_settings_fit_executors_disruption_budget_and_files(install: str, settings: Settings) -> None:
    spark = settings.spark
    executors = int(spark["spark.executor.instances"])
    budgets = {name: each["spec"]["minAvailable"] for name, each in named(install, "PodDisruptionBudget").items()}

    assert budgets == {"sluice-driver": 1, "sluice-executor": executors - 1}
    assert settings.enforce.shuffle_partitions == executors * int(spark["spark.executor.cores"])
    assert spark["spark.kubernetes.executor.podTemplateFile"] == "/etc/sluice/settings/executor.yaml"
    assert spark["spark.kubernetes.authenticate.executor.serviceAccountName"] in named(install, "ServiceAccount")
    assert spark["spark.kubernetes.namespace"] == "sluice"
    assert spark["spark.dynamicAllocation.enabled"] == "false"


def test_what_all_pods_are_to_get_is_in_all_of_them() -> None:
    install = "watched"

    assert {component(pod) for pod in pods(install)} == {"driver", "executor", "console"}
    for pod in pods(install):
        assert VALUES[install]["podSpec"].items() <= pod["spec"].items()


@every_install
def test_no_file_has_a_password(install: str) -> None:
    for pod, container in containers(install):
        login = {each["name"]: each["valueFrom"] for each in container.get("env") or () if "KAFKA" in each["name"]}

        assert all("secretKeyRef" in source for source in login.values())
        assert bool(login) == (install not in ("certificates", "nothing") and component(pod) != "executor")
