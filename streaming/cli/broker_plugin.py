"""`sluice broker-plugin`: the jar that makes Kafka brokers gateways, and the lines for their configuration."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from configs.settings import SECRET_NAME, Settings
from streaming.errors import JarError
from streaming.java.plugin import plugin_jar, plugin_properties

PROPERTIES_NAME = "sluice.properties"
"""The file with the lines for `server.properties`."""

_CLIENT_ID = "client.id"
_BOOTSTRAP_SERVERS = "bootstrap.servers"


def write_broker_plugin(settings: Settings, folder: Path, principal: str) -> list[str]:
    """Put the jar and the lines for `server.properties` into a folder; returns what to do with them.

    Raises JarError if the folder can't be written to, and as `plugin_jar` does.
    """
    built = plugin_jar()
    lines = list(property_lines(settings, principal))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        jar = Path(shutil.copy(built, folder))
        (folder / PROPERTIES_NAME).write_text("\n".join(lines) + "\n")
    except OSError as error:
        raise JarError(f"{folder} can't be written to ({error.strerror}); give another folder with --out") from error
    return [
        f"# {jar}: put it into the folder libs of Kafka, on every broker and controller",
        f"# {folder / PROPERTIES_NAME}: add these lines to server.properties of each, and restart one after the other",
        *lines,
    ]


def property_lines(settings: Settings, principal: str) -> Iterator[str]:
    """The lines for `server.properties`. Secrets aren't among them.

    Clients of Sluice itself are exempt by their principal, or, where the settings give them a client-id, by that.
    """
    for key, value in plugin_properties(settings.kafka, settings.topics).items():
        yield f"{key}={value}"
    if _CLIENT_ID in settings.kafka:
        yield f"sluice.exempt.client.id={settings.kafka[_CLIENT_ID]}"
    else:
        yield f"sluice.exempt.principals={principal}"
    for key, value in settings.kafka.items():
        if key not in (_BOOTSTRAP_SERVERS, _CLIENT_ID):
            yield (
                f"# sluice.client.{key}=(as in the settings)"
                if SECRET_NAME.search(key)
                else f"sluice.client.{key}={value}"
            )
