"""The options of `sluice demo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.demo.load_generator import BadShare, BootstrapServers, Clients, Rate, TrafficOptions, Users


@dataclass(frozen=True)
class DemoOptions(TrafficOptions):
    """Generated requests, their rate and time, the broker that they are sent to, and the web page beside them."""

    bootstrap_servers: BootstrapServers = None
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings YAML to use instead of the embedded profile.")
    ] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the data of earlier runs.")] = False
    rate: Rate = 200.0
    users: Users = 20
    clients: Clients = 5
    bad_share: BadShare = 0.01
    brokers: Annotated[
        int | None, typer.Option(min=1, max=9, metavar="N", help="Brokers with the plugin, and clients at full speed.")
    ] = None
    proxies: Annotated[
        int | None,
        typer.Option(min=1, max=9, metavar="N", help="Kafka proxies before plain brokers, and clients at full speed."),
    ] = None
    console: Annotated[
        bool, typer.Option("--console/--no-console", help="A web page of the clients, from the first decision on.")
    ] = True
