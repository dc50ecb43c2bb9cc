"""A broker whose cluster says it is where this machine can't reach it: every command names that address."""

from collections.abc import Iterator

import pytest

from sluice_demo.broker import Broker
from tests.commands import invoke

pytestmark = pytest.mark.kafka

UNKNOWN = "kafka-0.internal.invalid:9092"
AWAY = "127.0.0.1:1"

COMMANDS = (
    ("topics", "--bootstrap-servers"),
    ("doctor", "--bootstrap-servers"),
    ("kafka-gateway", "--bootstrap-servers"),
    ("top", "--once", "--bootstrap-servers"),
    ("quotas", "exposure", "--bootstrap-server"),
    ("quotas", "import", "--bootstrap-server"),
)


@pytest.fixture(scope="module", params=[UNKNOWN, AWAY])
def advertised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a broker, and the one that it says it has."""
    says = {"advertised.listeners": f"CLIENT://{request.param}"}
    with Broker(tmp_path_factory.mktemp("advertised"), says) as broker:
        yield broker.bootstrap_servers, request.param


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_advertised_address_is_named_with_the_broker(command: tuple[str, ...], advertised: tuple[str, str]) -> None:
    servers, says = advertised

    ended = invoke(*command, servers, code=1)

    line = next(line for line in (ended.error + ended.output).splitlines() if "says it is" in line)
    assert f"broker 1 says it is {says}, " in line
    assert "advertised.listeners" in line
    assert ("isn't known here" in line) == (says == UNKNOWN)
    assert "rights" not in line
