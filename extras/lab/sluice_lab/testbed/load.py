"""The command that publishes generated request events at a given rate.

./scripts/load --bootstrap-servers 127.0.0.1:9092 --rate 1000 --seconds 10
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.command import EXIT_FAILED, run_command
from sluice.configs.settings import load_settings, with_bootstrap_servers
from sluice.kafka_io.topics import ensure_topics
from sluice_demo.load import load
from sluice_demo.load_generator import BootstrapServers, TrafficOptions
from sluice_proxy.processes import stop_on_signals


@dataclass(frozen=True)
class LoadOptions(TrafficOptions):
    """Publish generated request events at a steady rate until Ctrl-C."""

    bootstrap_servers: BootstrapServers = None
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings YAML; its sections kafka and topics are used.")
    ] = None
    count: Annotated[int, typer.Option(min=0, show_default="no limit", help="Stop after this many events.")] = (
        sys.maxsize
    )


def run_load(options: LoadOptions) -> int:
    """Publish the load; 0 if every event was published, 1 if some or all could not be."""
    settings = with_bootstrap_servers(load_settings(options.config), options.bootstrap_servers)
    ensure_topics(settings.topics, settings.kafka)
    limits = {"count": options.count, "seconds": options.seconds}
    sent = load(settings, options, stop_on_signals(), options.rate, **limits)
    print(sent.summary())
    return EXIT_FAILED if sent.failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `load`."""
    return run_command("load", LoadOptions, run_load, arguments)


if __name__ == "__main__":
    sys.exit(main())
