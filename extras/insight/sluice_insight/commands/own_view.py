"""The command `sluice own-view`: each application team sees its own clients, by its Kafka login."""

from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import BootstrapServersOption, ConfigOption, job_settings
from sluice.kafka_io.properties import has_layer
from sluice.process.addresses import is_loopback


def own_view(
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8090,
    address: Annotated[
        str, typer.Option(help="Address to listen on; all but loopback need --behind-tls.")
    ] = "127.0.0.1",
    behind_tls: Annotated[
        bool,
        typer.Option("--behind-tls", help="A proxy with TLS is in front of it: passwords pass in clear text here."),
    ] = False,
    oauth_claim: Annotated[str, typer.Option(help="Claim of OAuth tokens that brokers take for the user.")] = "sub",
) -> None:
    """Show application teams why their own clients are slow, on a web page, until Ctrl-C or SIGTERM.

    A team logs in with its Kafka user and password, or with an OAuth token, and Kafka is asked whether it accepts them;
    or by a client with its certificate or any other login, of which brokers tell the name. The page has the clients of
    this user alone. Reads the Delta tables and the topic of telemetry, changes nothing.
    """
    settings = job_settings(config, bootstrap_servers)
    if not has_layer(settings.kafka, "SASL") and not has_layer(settings.kafka, "SSL"):
        raise UsageError(
            "kafka.security.protocol has no SASL and no SSL, so brokers there ask for no login; expected SASL_SSL"
        )
    if not behind_tls and not is_loopback(address):
        raise UsageError(
            f"passwords would pass in clear text to {address}; give --behind-tls if a proxy with TLS is in front"
        )
    from sluice.kafka_io.topic_follower import Reading, TopicFollower
    from sluice.process.clock import now_ms
    from sluice.process.http_server import HttpServer
    from sluice_insight.console.own import KafkaLogins, OwnView, Sessions, own_app
    from sluice_insight.console.server import LOOKBACK_MS, MAX_CONNECTIONS
    from sluice_insight.console.slow import SlowPage
    from sluice_insight.slow.sources import TELEMETRY_TOPIC, Recorded

    page = SlowPage(Recorded.of(settings.delta))
    view = OwnView(KafkaLogins(settings.kafka, oauth_claim), page, Sessions(), is_secure=behind_tls)
    server = HttpServer(
        own_app(view, any_host=behind_tls),
        address,
        port,
        max_connections=MAX_CONNECTIONS,
        cure="--port 0 takes a free one",
    )
    reading = Reading(TELEMETRY_TOPIC, page.heard.take, now_ms() - LOOKBACK_MS)
    with TopicFollower(settings.kafka, reading):
        typer.echo(f"Own clients: {server.url}")
        server.serve()
