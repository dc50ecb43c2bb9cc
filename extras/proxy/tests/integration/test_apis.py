"""The table of Kafka's APIs in docs/proxy.md says what the proxy's code does with each one."""

from collections.abc import Iterator
from typing import Any

from sluice.jvm.jars import REPOSITORY
from sluice_demo.jars import BROKER_JARS
from sluice_proxy.jars import proxy_class_path
from sluice_toolbox.machine import Jvm

PAGE = REPOSITORY / "docs" / "proxy.md"

Versions = tuple[int, int]
"""The oldest version and the latest."""


def told() -> Iterator[tuple[str, str]]:
    """Each API of the table with the first words of its last cell, which say how a proxy treats it."""
    section = PAGE.read_text().partition("### APIs of Kafka")[2].partition("\n### ")[0]
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| APIs "):
            apis, *_, treatment = line.strip("| ").split(" | ")
            for api in apis.split(", "):
                yield api, treatment.partition(";")[0]


def java_class(jvm: Jvm, name: str) -> Any:
    return jvm.packages.java.lang.Class.forName(name)


def apis_of(jvm: Jvm) -> dict[int, tuple[str, Versions]]:
    """The names and versions of the APIs in the Kafka of this class path, by their number, as names change."""
    keys = java_class(jvm, "org.apache.kafka.common.protocol.ApiKeys")
    name, number = keys.getField("name"), keys.getField("id")
    return {
        number.get(api): (name.get(api), (api.oldestVersion(), api.latestVersion())) for api in keys.getEnumConstants()
    }


def treatments(jvm: Jvm) -> dict[str, str]:
    """The treatment of each API that is in one of the proxy's own sets."""
    keys = java_class(jvm, "org.apache.kafka.common.protocol.ApiKeys")
    name = keys.getField("name")
    found = {"Metadata": "mutations"}  # of some requests: extras/proxy/tests/integration/test_kafka_gateway.py
    for field, treatment in (("CHARGED_APIS", "charged"), ("MUTATION_APIS", "mutations"), ("FREE_APIS", "free")):
        apis = java_class(jvm, "sluice.proxy.QuotaFilter").getDeclaredField(field)
        apis.setAccessible(True)
        found |= {name.get(api): treatment for api in apis.get(None)}
    return found


def have_common(one: Versions, other: Versions) -> bool:
    return max(one[0], other[0]) <= min(one[1], other[1])


def test_the_table_has_each_api_of_kafka_and_what_the_proxy_does_with_it() -> None:
    with Jvm(BROKER_JARS.paths()) as jvm:
        at_broker = apis_of(jvm)
    with Jvm(proxy_class_path()) as jvm:
        at_proxy, treated = apis_of(jvm), treatments(jvm)

    offered = {
        name
        for number, (name, versions) in at_broker.items()
        if number in at_proxy and have_common(at_proxy[number][1], versions)
    }
    apis = [api for api, _ in told()]
    assert len(apis) == len({*apis}), "an API in two rows"
    table = dict(told())
    others = table.pop("all others")
    names = {name for name, _ in at_broker.values()}
    assert {name: others for name in names} | table == {
        name: treated.get(name, "passes") if name in offered else "not offered" for name in names
    }
