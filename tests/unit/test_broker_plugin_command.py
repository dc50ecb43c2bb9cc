"""`sluice broker-plugin`: lines that a broker reads as they were meant, or one line that says what is wrong."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cli.broker_plugin import property_lines
from sluice.cli.main import app
from sluice.configs.settings import Settings, load_settings


def settings_with(tmp_path: Path, kafka: str) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(f"kafka: {kafka}\n", encoding="utf-8")
    return load_settings(file)


@pytest.mark.parametrize("principal", ["sluice", "User:", ":sluice", "User:a;b"])
def test_a_principal_that_brokers_would_refuse_at_their_start_is_refused_at_once(
    tmp_path: Path, principal: str
) -> None:
    outcome = CliRunner().invoke(app, ["broker-plugin", "--out", str(tmp_path / "out"), "--principal", principal])

    assert outcome.exit_code != 0
    assert "such as User:sluice" in " ".join(outcome.output.split())
    assert not (tmp_path / "out").exists()


def test_lines_are_written_as_java_reads_properties(tmp_path: Path) -> None:
    """Java takes a backslash for the beginning of an escape, and a byte for a character of Latin-1."""
    settings = settings_with(tmp_path, r"""{bootstrap.servers: "b:1", ssl.truststore.location: " C:\\certs\\ü.pem"}""")

    lines = list(property_lines(settings, "User:Jürgen 🦊"))

    assert r"sluice.exempt.principals=User:J\u00fcrgen \ud83e\udd8a" in lines
    assert r"sluice.client.ssl.truststore.location=\ C:\\certs\\\u00fc.pem" in lines
