"""Some tests of clients' own suites, at a broker and through the proxy with quotas."""

import re
import shutil

import pytest

from sluice_lab.scenarios.peers.main import main

pytestmark = [pytest.mark.kafka, pytest.mark.alone, pytest.mark.long]

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="Go isn't installed")
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm isn't installed")


@pytest.mark.parametrize(
    ("client", "tests"),
    [
        pytest.param("franz-go", "^(TestPing|TestGroupSimple|TestIssue337)$", marks=needs_go),
        pytest.param("sarama", "^(TestFuncClientMetadata|TestFuncTxnProduce|TestFuncOffsetManager)$", marks=needs_go),
        ("kafka-python", "test_heartbeat_thread|test_paused|test_transactional_producer_messages"),
        pytest.param("kafkajs", "gzip|group|transaction", marks=needs_npm),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_clients_own_tests_pass_through_the_proxy_with_quotas(
    client: str, tests: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["suites", client, "--route", "direct", "--route", "quota", "--tests", tests]) == 0
    direct, quota = re.findall(r": (\d+) of (\d+) passed, ", capsys.readouterr().out)
    assert direct == quota
    assert int(direct[0]) == int(direct[1]) >= 3
