"""`sluice broker-plugin`: lines that a broker reads as they were meant, or one line that says what is wrong."""

from pathlib import Path

import pytest

from sluice.cli.errors import UsageError
from sluice.configs.settings import Settings, load_settings
from sluice_toolbox.broker_plugin import property_lines, write_broker_plugin
from tests.commands import invoke


def settings_with(tmp_path: Path, kafka: str) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(f"kafka: {kafka}\n", encoding="utf-8")
    return load_settings(file)


@pytest.mark.parametrize("principal", ["sluice", "User:", ":sluice", "User:a;b"])
def test_a_principal_that_brokers_would_refuse_at_their_start_is_refused_at_once(
    tmp_path: Path, principal: str
) -> None:
    ended = invoke("broker-plugin", "--out", tmp_path / "out", "--principal", principal, code=2)

    assert "such as User:sluice" in ended.error
    assert not (tmp_path / "out").exists()


def test_lines_are_written_as_java_reads_properties(tmp_path: Path) -> None:
    """Java takes a backslash for the beginning of an escape, and a byte for a character of Latin-1."""
    settings = settings_with(tmp_path, r"""{bootstrap.servers: "b:1", ssl.truststore.location: " C:\\certs\\ü.pem"}""")

    lines = list(property_lines(settings, "User:Jürgen 🦊"))

    assert r"sluice.exempt.principals=User:J\u00fcrgen \ud83e\udd8a" in lines
    assert r"sluice.client.ssl.truststore.location=\ C:\\certs\\\u00fc.pem" in lines


LOGIN = """{client.id: quota-job, security.protocol: sasl_ssl, sasl.mechanism: PLAIN,
 sasl.jaas.config: 'x required a="1";'}"""
CERTIFICATE = "{client.id: quota-job, security.protocol: SSL, ssl.keystore.location: /c.pem, ssl.keystore.type: PEM}"


@pytest.mark.parametrize("kafka", ["{client.id: quota-job}", LOGIN])
def test_a_client_id_of_the_settings_exempts_nobody_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka: str
) -> None:
    """A client that calls itself so would have no quota."""
    jar = tmp_path / "built.jar"
    jar.touch()
    monkeypatch.setattr("sluice_toolbox.broker_plugin.plugin_jar", lambda: jar)

    said = write_broker_plugin(settings_with(tmp_path, kafka), tmp_path / "out", "User:ops")

    assert said[0].startswith("# kafka.client.id exempts nobody any more")
    assert [line for line in said if "exempt" in line and line[0] != "#"] == ["sluice.exempt.principals=User:ops"]


def test_a_client_id_exempts_beside_principals_where_that_is_asked_for(tmp_path: Path) -> None:
    lines = list(property_lines(settings_with(tmp_path, "{client.id: only-for-sluice}"), "User:ops", True))

    exempt = [line for line in lines if "exempt" in line]
    assert exempt == ["sluice.exempt.principals=User:ops", "sluice.exempt.client.id=only-for-sluice"]


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        (LOGIN, "for clients that don't log in"),
        (CERTIFICATE, "for clients that don't log in"),
        ("{client.id: short}", "a secret of at least 8 characters"),
        ("{}", "a secret of at least 8 characters"),
    ],
)
def test_a_client_id_exempts_only_where_nobody_logs_in_and_it_is_a_secret(
    tmp_path: Path, kafka: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        write_broker_plugin(settings_with(tmp_path, kafka), tmp_path / "out", "User:ops", by_client_id=True)

    assert not (tmp_path / "out").exists()
