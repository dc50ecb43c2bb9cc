"""Some tests of clients' own suites, at a broker and through the proxy with and without quotas."""

import shutil
from pathlib import Path

import pytest

from scripts.scenarios.peers.main import main

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.mark.skipif(shutil.which("go") is None, reason="Go isn't installed")
def test_franz_gos_own_tests_pass_through_the_proxy_with_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tests = "^(TestPing|TestGroupSimple|TestClient_ProduceLargeMessages|TestIssue337)$"

    assert main(["suites", "franz-go", "--route", "direct", "--route", "quota", "--tests", tests]) == 0
    assert capsys.readouterr().out.count(": 4 of 4 passed, ") == 2
