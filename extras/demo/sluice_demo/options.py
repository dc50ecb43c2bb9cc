"""The options of `sluice demo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sluice_demo.load_generator import BadShare, BootstrapServers, Clients, Rate, TrafficOptions, Users


@dataclass(frozen=True)
class DemoOptions(TrafficOptions):
    """Run broker, job and a small load on this machine, and show what the job decides, until Ctrl-C.

    Ctrl-C ends all processes within 3 s. --seconds counts from the whole load on, and prints a summary. With
    --bootstrap-servers or --config no broker is started: they name yours. With --brokers the run has that many with the
    plugin instead, and real clients at full speed, which the plugin throttles; with --proxies the brokers, one by
    default, have none, and the clients go through so many proxies. With --elastic the brokers tighten while a
    neighbour is noisy. No options but --seconds, --fresh and --no-console go with any of these. Downloads jars at the
    first start.
    """

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
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="With --brokers: limits give way, and a neighbour is noisy now and then."),
    ] = False
    console: Annotated[
        bool, typer.Option("--console/--no-console", help="A web page of the clients, from the first decision on.")
    ] = True

    @property
    def has_brokers(self) -> bool:
        """True for a run with brokers or proxies as gateways."""
        return self.brokers is not None or self.proxies is not None
