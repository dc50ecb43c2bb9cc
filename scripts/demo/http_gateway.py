"""The command `gateway`: an HTTP service in front of Kafka's admin and produce calls that enforces Sluice's quotas.

./scripts/gateway --bootstrap-servers 127.0.0.1:9092
"""

import logging
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from typer.exceptions import Abort, TyperException

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.gateways.client.client import Gateway
from sluice.gateways.client.options import GatewayOptions, StalePolicy
from sluice.gateways.http.app import create_app
from sluice.gateways.http.backend import KafkaBackend
from sluice.gateways.http.server import HttpServer
from sluice.kafka_io.topics import ensure_topics
from sluice.state.errors import SluiceError

command = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@command.command(name="gateway")
def serve(
    bootstrap_servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Kafka's address; overrides kafka.bootstrap.servers.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings YAML; kafka and topics are used.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 takes a free one, which is printed.")
    ] = 0,
    name: Annotated[str, typer.Option(help="What events carry as gateway.")] = "http-gateway",
    policy: Annotated[
        StalePolicy, typer.Option(help="What to do while decisions are missing.")
    ] = StalePolicy.KEEP_SHARES,
) -> None:
    """Serve HTTP until Ctrl-C or SIGTERM. Prints the address first.

    The headers X-User and X-Client-Id name the client; docs/gateways.md has a curl line for each call.

    Exit codes: 0 after Ctrl-C or SIGTERM, 1 if Kafka can't be reached or the port is taken, 2 for bad usage.
    """
    settings = with_bootstrap_servers(load_settings(config), bootstrap_servers)
    ensure_topics(settings.topics, settings.kafka)
    backend = KafkaBackend(settings.kafka)
    topics = settings.topics
    options = GatewayOptions(
        name=name,
        requests_topic=topics.requests,
        decisions_topic=topics.decisions,
        policy=policy,
        limits_topic=topics.limits,
        waits_topic=topics.waits,
        max_charges_per_event=settings.enforce.max_charges_per_event,
        quota=settings.quota,
    )
    try:
        with Gateway(settings.kafka, options) as gateway:
            server = HttpServer(create_app(gateway, backend), port)
            print(server.address, flush=True)
            server.serve()
    finally:
        backend.close()


def main() -> int:
    """Run the command; an error is one line on standard error."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it logs every attempt during an outage
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        command(prog_name="gateway", standalone_mode=False)
    except (KeyboardInterrupt, Abort):  # typer raises the second for the first
        return 0
    except TyperException as error:
        return _fail(error.format_message(), error.exit_code)
    except InvalidSettingsError as error:
        return _fail(str(error), 2)
    except (SluiceError, OSError) as error:
        return _fail(str(error), 1)
    return 0


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):  # a second signal must not interrupt the shutdown
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> int:
    print(f"gateway: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
