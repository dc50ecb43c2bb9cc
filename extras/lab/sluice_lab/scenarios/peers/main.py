"""The command `test-peers`: tests that others wrote, run against Sluice.

./scripts/test-peers kafka --side plugin ControllerMutationQuotaTest
"""

import sys
from collections.abc import Sequence

import typer

from scripts.command import interrupt_on_signals, run_app
from sluice_lab.scenarios.peers.clients import ClientMatrix
from sluice_lab.scenarios.peers.kafka_tests import KafkaTests
from sluice_lab.scenarios.peers.suites import Suites

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def test_peers() -> None:
    """Run tests that others wrote against Sluice, each with and without it, and print one table."""


app.command("kafka")(KafkaTests)
app.command("clients")(ClientMatrix)
app.command("suites")(Suites)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    interrupt_on_signals()
    given = sys.argv[1:] if arguments is None else arguments
    return run_app(
        "test-peers", app, given or ["--help"], lambda parsed: parsed if isinstance(parsed, int) else parsed.run()
    )


if __name__ == "__main__":
    sys.exit(main())
