"""compose.yaml fits the compose specification, the image, the command line, settings and the broker plugin."""

import json
import re
from collections.abc import Mapping
from importlib.metadata import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.main import get_command

from deployment import DEPLOY, dockerfile, parse_command
from sluice.cli.main import app
from sluice.configs.settings import Settings, load_settings
from sluice.configs.yaml_file import read_yaml
from sluice.jvm.jars import REPOSITORY
from sluice_demo.job import TABLES
from sluice_insight.console.server import token_of
from sluice_toolbox.broker_plugin import PROPERTIES_NAME, property_lines, write_broker_plugin
from tests.builders import Json

COMPOSE: Json = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: Json = COMPOSE["services"]
BROKERS = [service for name, service in SERVICES.items() if name.startswith("kafka-")]
OWN = {name: service for name, service in SERVICES.items() if "build" in service}


def schema_of(name: str) -> Any:
    """A schema that check-jsonschema has, which isn't imported: it takes a second."""
    (file,) = (each for each in files("check-jsonschema") or () if each.match(f"builtin_schemas/vendor/{name}.json"))
    return json.loads(file.read_text())


SCHEMA = schema_of("compose-spec")

PLUGIN_MOUNT = "/opt/sluice-plugin"


def problems(compose: Mapping[str, object]) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(compose)]


def variables_interpolated(text: str) -> str:
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Volume or file by the path where a container has it."""
    volumes = [volume.split(":") for volume in service.get("volumes", ())]
    return {target: source for source, target, *_ in volumes} | {
        each["target"]: each["source"] for each in service.get("configs", ())
    }


def of_kafka(environment: Mapping[str, object]) -> dict[str, str]:
    """Server properties as the image apache/kafka makes them of variables."""
    given = {name.removeprefix("KAFKA_"): str(value) for name, value in environment.items() if "KAFKA_" in name}
    return {name.lower().replace("_", "."): value for name, value in given.items() if name != "HEAP_OPTS"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "settings.yaml"
    path.write_text(COMPOSE["configs"]["settings"]["content"])
    return load_settings(path)


def test_it_fits_the_schema_of_the_compose_specification() -> None:
    misspelt = COMPOSE | {"services": SERVICES | {"job": SERVICES["job"] | {"healthchek": {}}}}

    assert problems(COMPOSE) == []
    assert ["healthchek" in problem for problem in problems(misspelt)] == [True]


def test_every_volume_and_file_that_a_service_mounts_is_there_and_no_other() -> None:
    known = {*COMPOSE["volumes"], *COMPOSE["configs"]}
    named = [source for service in SERVICES.values() for source in mounts(service).values()]

    assert set(named) == known
    for name, config in COMPOSE["configs"].items():
        assert "content" in config or (DEPLOY / config["file"]).resolve().is_file(), name


def test_services_wait_for_services_that_are_there_and_say_how_they_are() -> None:
    for name, service in SERVICES.items():
        for other, condition in service.get("depends_on", {}).items():
            healthy = condition["condition"] == "service_healthy"
            assert ("healthcheck" in SERVICES[other]) == healthy, f"{name} waits for {other}"


def test_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert len(ports) == len(set(ports)) == 6
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_sluice_is_the_image_of_the_dockerfile_and_of_the_chart() -> None:
    chart = yaml.safe_load((DEPLOY / "chart" / "Chart.yaml").read_text())

    assert list(OWN) == ["plugin", "job", "console"]
    for service in OWN.values():
        build = service["build"]
        assert service["image"] == f"sluice:{chart['appVersion']}"
        assert (DEPLOY / build["context"]).resolve() == REPOSITORY
        assert (REPOSITORY / build["dockerfile"]).is_file()


def test_the_other_images_have_a_version_and_kafka_that_of_the_tests() -> None:
    tested = ElementTree.parse(REPOSITORY / "extras" / "demo" / "sluice_demo" / "broker-jars.xml").getroot()  # noqa: S314 # our own
    [version] = {each.get("rev") for each in tested.iter("dependency") if each.get("name", "").startswith("kafka_")}
    images = {service["image"] for service in SERVICES.values()} - {service["image"] for service in OWN.values()}

    assert all(re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", image) for image in images)
    assert {service["image"] for service in (*BROKERS, SERVICES["client"])} == {f"apache/kafka:{version}"}


@pytest.mark.parametrize("name", OWN)
def test_the_command_line_takes_the_arguments_and_finds_the_files(name: str) -> None:
    arguments, there = OWN[name]["command"], mounts(OWN[name])
    parse_command(get_command(app), arguments)

    for option in arguments:
        if "=/etc/" in option:
            assert option.partition("=")[2] in there
    assert OWN[name]["environment"]["SLUICE_CONFIG"] in there


def test_the_user_of_the_image_may_write_where_volumes_are() -> None:
    """A new volume takes the owner of the folder that it covers."""
    [folders] = [line for line in dockerfile("RUN") if "install --directory" in line]

    assert "install --directory --owner sluice --group sluice /var/lib/sluice" in folders
    assert all("/var/lib/sluice" in mounts(service) for service in OWN.values())


def test_the_job_keeps_everything_in_its_volume_and_begins_with_the_quota_of_the_client(settings: Settings) -> None:
    tables = [getattr(settings.delta, table) for table in TABLES]
    stored = [settings.enforce.checkpoint, settings.audit.checkpoint, *tables]
    [entry] = yaml.safe_load(COMPOSE["configs"]["quotas"]["content"])

    assert all(each.startswith("/var/lib/sluice/") for each in stored)
    assert settings.quotas.seed in mounts(SERVICES["job"])
    assert f"client.id={entry['entity']['client_id']}" in SERVICES["client"]["command"]


def test_health_and_prometheus_ask_where_the_job_answers(settings: Settings) -> None:
    asked = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])
    [scraped] = asked["scrape_configs"]

    assert settings.health.address == "0.0.0.0"  # noqa: S104 # of the container
    assert f"http://127.0.0.1:{settings.health.port}/readyz" in SERVICES["job"]["healthcheck"]["test"][-1]
    assert scraped["static_configs"] == [{"targets": [f"job:{settings.health.port}"]}]
    assert set(asked["rule_files"]) <= set(mounts(SERVICES["prometheus"]))


def test_the_console_is_published_on_its_port_and_has_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(variables_interpolated(COMPOSE["configs"]["token"]["content"]))

    assert token_of(None, token) is not None
    assert {"--address=0.0.0.0", "--port=8089"} <= set(SERVICES["console"]["command"])
    assert SERVICES["console"]["ports"] == ["127.0.0.1:8089:8089"]


def test_grafana_reads_prometheus_and_the_dashboard_from_where_they_are() -> None:
    there, configs = mounts(SERVICES["grafana"]), COMPOSE["configs"]
    [source] = yaml.safe_load(configs["datasource"]["content"])["datasources"]
    [provider] = yaml.safe_load(configs["dashboards"]["content"])["providers"]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])

    assert source["url"] == "http://prometheus:9090"
    assert there[str(home)] == "dashboard"
    assert str(home.parent) == provider["options"]["path"]


def test_brokers_have_the_lines_of_the_broker_plugin(settings: Settings) -> None:
    wanted = dict(line.split("=", 1) for line in property_lines(settings, "User:sluice", by_client_id=True))

    assert wanted["client.quota.callback.class"]
    for broker in BROKERS:
        given = of_kafka(broker["environment"])
        own = {name: value for name, value in given.items() if name in wanted or name.startswith("sluice.")}

        assert own.pop("sluice.gateway.name").startswith("kafka-")
        assert own == wanted


def test_brokers_find_the_jar_where_the_plugin_service_puts_it(settings: Settings, tmp_path: Path) -> None:
    [out] = [each.partition("=")[2] for each in SERVICES["plugin"]["command"] if each.startswith("--out=")]
    folder = Path(out).relative_to("/var/lib/sluice")
    write_broker_plugin(settings, tmp_path / folder, "User:sluice")
    written = {path.name for path in (tmp_path / folder).iterdir()}

    assert mounts(SERVICES["plugin"])["/var/lib/sluice"] == "plugin"
    assert written - {PROPERTIES_NAME} == {"sluice-kafka-plugin.jar"}
    for broker in BROKERS:
        assert mounts(broker)[PLUGIN_MOUNT] == "plugin"
        assert broker["environment"]["CLASSPATH"] == f"{PLUGIN_MOUNT}/{folder}/*"
        assert broker["depends_on"] == {"plugin": {"condition": "service_completed_successfully"}}


def test_brokers_are_a_cluster_that_others_and_this_machine_reach(settings: Settings) -> None:
    numbers = [str(number) for number in range(1, len(BROKERS) + 1)]
    servers = [f"kafka-{number}:19092" for number in numbers]

    assert settings.kafka["bootstrap.servers"] == ",".join(servers)
    assert settings.topics.replication_factor == len(BROKERS) == 3
    for number, broker in zip(numbers, BROKERS, strict=True):
        given = of_kafka(broker["environment"])
        [published] = [port.rsplit(":", 2)[1] for port in broker["ports"]]

        assert given["node.id"] == number
        assert given["controller.quorum.voters"].split(",") == [f"{each}@kafka-{each}:29092" for each in numbers]
        assert given["advertised.listeners"] == f"CLIENT://kafka-{number}:19092,HOST://localhost:{published}"


@pytest.mark.parametrize("path", sorted((REPOSITORY / ".github").glob("workflows/*.yml")), ids=lambda path: path.name)
def test_workflows_fit_the_schema_of_github(path: Path) -> None:
    workflow = read_yaml(path)  # to YAML 1.1 `on` is a boolean

    schema = Draft202012Validator(schema_of("github-workflows"))
    assert [error.message for error in schema.iter_errors(workflow)] == []
