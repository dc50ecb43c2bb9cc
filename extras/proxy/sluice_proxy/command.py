"""The options of `sluice kafka-gateway`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.options import BootstrapServersOption, ConfigOption, job_settings


def kafka_gateway(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address for clients; port 0 is a free one.")
    ] = "127.0.0.1:0",
    name: Annotated[str | None, typer.Option("--name", help="Name of this gateway in events and metrics.")] = None,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Address of the metrics; port 0 is a free one.")
    ] = "127.0.0.1:0",
    expected_gateways: Annotated[
        int,
        typer.Option("--expected-gateways", help="Proxies that share until the job has heard of this one.", min=1),
    ] = 1,
    connections_per_s: Annotated[
        int | None,
        typer.Option(
            "--connections-per-s",
            help="Most new connections in each second.",
            show_default="500 a core",
            min=1,
            max=2**31 - 1,  # Java would take the default for a larger one
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", metavar="PEM", help="The proxy's certificate, for clients.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="PEM", help="Its private key (PKCS#8).")] = None,
    client_authority: Annotated[
        Path | None,
        typer.Option("--client-authority", metavar="PEM", help="Clients need a certificate of it: their user."),
    ] = None,
    principal_rules: Annotated[
        str,
        typer.Option(
            "--principal-mapping-rules", metavar="RULES", help="ssl.principal.mapping.rules as the brokers have them."
        ),
    ] = "DEFAULT",
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
) -> None:
    """Run a Kafka proxy that enforces quotas of clients, until Ctrl-C: for brokers that take no plugin.

    Prints where clients connect. Connects to the brokers with section kafka of the settings. Downloads jars at the
    first start.
    """
    settings = job_settings(config, bootstrap_servers)
    from sluice_proxy.gateway import parse_address, parse_listener, run_kafka_gateway, tls_of
    from sluice_proxy.processes import stop_on_signals

    properties = {
        "sluice.gateway.name": name or f"proxy-{os.getpid()}",
        "sluice.expected.gateways": expected_gateways,
        "sluice.ssl.principal.mapping.rules": principal_rules,
    }
    tls = tls_of(tls_certificate, tls_key, client_authority)
    addresses = parse_listener(listen), parse_address("--metrics", metrics)
    run_kafka_gateway(settings, *addresses, tls, properties, connections_per_s, stop_on_signals())
