"""`sluice broker-plugin`: the jar that makes Kafka brokers gateways, and the lines for their configuration."""

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import BootstrapServersOption, ConfigOption, job_settings
from sluice.configs.settings import SECRET_NAME, Settings
from sluice.jvm.errors import JarError
from sluice.jvm.plugin import plugin_jar, plugin_properties
from sluice.kafka_io.properties import has_layer, java_properties
from sluice_reading.texts import property_line

PROPERTIES_NAME = "sluice.properties"
"""The file with the lines for `server.properties`."""

_CLIENT_ID = "client.id"
_BOOTSTRAP_SERVERS = "bootstrap.servers"
_LEAST_SECRET = 8
_NOT_EXEMPT = "# kafka.client.id exempts nobody any more; principals do, or --exempt-client-id where no client logs in"
_PRINCIPAL = re.compile(r"\s*[^:;\s][^:;]*:[^;]*[^;\s]\s*")


def broker_plugin(
    out: Annotated[Path, typer.Option("--out", help="Folder for the jar and the lines for server.properties.")],
    principal: Annotated[
        str, typer.Option("--principal", help="Principals exempt from quotas: the job, brokers and gateways.")
    ] = "User:sluice",
    exempt_client_id: Annotated[
        bool,
        typer.Option("--exempt-client-id", help="Where nobody logs in: exempt clients by kafka.client.id, a secret."),
    ] = False,
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
) -> None:
    """Write the jar that makes Kafka brokers gateways; prints the lines for their server.properties."""
    settings = job_settings(config, bootstrap_servers)
    if not are_principals(principal):
        raise typer.BadParameter(
            f"--principal is {principal!r}; expected principals such as User:sluice or User:a;User:b"
        )
    for line in write_broker_plugin(settings, out, principal, exempt_client_id):
        typer.echo(line)


def write_broker_plugin(settings: Settings, folder: Path, principal: str, by_client_id: bool = False) -> list[str]:
    """Put the jar and the lines for `server.properties` into a folder; returns instructions.

    Raises UsageError if clients can't be exempt `by_client_id`, JarError if the folder can't be written to, and as
    `plugin_jar` does.
    """
    if by_client_id:
        _check_secret(settings.kafka)
    built = plugin_jar()
    lines = list(property_lines(settings, principal, by_client_id))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        jar = Path(shutil.copy(built, folder))
        (folder / PROPERTIES_NAME).write_text("\n".join(lines) + "\n")
    except OSError as error:
        raise JarError(f"{folder} can't be written to ({error.strerror}); give another folder with --out") from error
    return [
        *([_NOT_EXEMPT] if _CLIENT_ID in settings.kafka and not by_client_id else []),
        f"# {jar}: put it into the folder libs of Kafka, on every broker and controller",
        f"# {folder / PROPERTIES_NAME}: add these lines to server.properties of each, and restart one after the other",
        *lines,
    ]


def property_lines(settings: Settings, principal: str, by_client_id: bool = False) -> Iterator[str]:
    """The lines for `server.properties`. Secrets aren't among them, but for a client-id that exempts.

    Clients of Sluice itself are exempt by their principal; those that don't log in, `by_client_id`.
    """
    for key, value in plugin_properties(settings.kafka, settings.topics).items():
        yield property_line(key, value)
    yield property_line("sluice.exempt.principals", principal)
    if by_client_id:
        yield property_line("sluice.exempt.client.id", settings.kafka[_CLIENT_ID])
    for key, value in java_properties(settings.kafka).items():
        if key not in (_BOOTSTRAP_SERVERS, _CLIENT_ID):
            name = f"sluice.client.{key}"
            yield f"# {name}=(as in the settings)" if SECRET_NAME.search(key) else property_line(name, value)


def _check_secret(kafka: Mapping[str, str]) -> None:
    """Raise UsageError unless only Sluice's own clients, which don't log in, have the client-id."""
    if has_layer(kafka, "SASL") or (has_layer(kafka, "SSL") and "ssl.keystore.location" in kafka):
        raise UsageError(
            "--exempt-client-id is for clients that don't log in; section kafka logs in: remove the option"
        )
    if len(kafka.get(_CLIENT_ID, "")) < _LEAST_SECRET:
        raise UsageError(
            f"--exempt-client-id exempts by kafka.client.id; expected a secret of at least {_LEAST_SECRET} characters"
            " there, because who knows it has no quota"
        )


def are_principals(text: str) -> bool:
    """True if brokers read this as principals, separated by semicolons.

    >>> are_principals("User:sluice"), are_principals("User:a;User:CN=b,O=c"), are_principals("sluice")
    (True, True, False)
    """
    return all(_PRINCIPAL.fullmatch(principal) for principal in text.split(";"))
