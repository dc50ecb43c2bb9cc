"""`./scripts/chaos`: kill -9 of the job at random moments under load, or what operators do; then the reconciliation."""

import random
import sys
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from scripts.command import run_command
from scripts.scenarios.operated import Operator
from scripts.testbed.reconciliation import reconcile
from scripts.testbed.rig import Rig, run_scenario
from sluice.demo.broker import Broker
from sluice.demo.counts import drain
from sluice.demo.load import Sent, loading
from sluice.demo.load_generator import LoadGenerator, Rate

_DRAIN_S = 900
_SECTIONS = {
    "topics": {"partitions": 1},  # with one partition `simulate` knows the order, and so every decision
    "enforce": {"max_offsets_per_trigger": 5000},
    "audit": {"trigger_s": 2},
    "restart": {"backoff_ms": 200, "max_backoff_ms": 2000},
}


@dataclass(frozen=True)
class ChaosOptions:
    """Kill the job repeatedly under load, then reconcile requests, decisions and tables.

    Some of the kills hit only the job's Python workers or the broker. With --operator it is operated in place of that:
    backups restored, a topic made again, quotas altered and moved, pages changed. The exit code is 0 if all is
    balanced, else 1.
    """

    kills: Annotated[int, typer.Option(min=0, help="Number of kills.")] = 50
    seed: Annotated[int, typer.Option(help="The same seed kills the same processes at the same moments.")] = 1
    rate: Rate = 300.0
    pause: Annotated[float, typer.Option(min=0, max=1e6, help="Longest time in seconds before a kill.")] = 6.0
    workers: Annotated[float, typer.Option(min=0, max=1, help="Share of kills of the Python workers.")] = 0.1
    broker: Annotated[float, typer.Option(min=0, max=1, help="Share of kills of the broker.")] = 0.1
    operator: Annotated[int, typer.Option(min=0, help="Number of things that an operator does, in place of kills.")] = 0


def run_chaos(options: ChaosOptions) -> int:
    """Kill, let the job catch up, and print the reconciliation; 0 if everything balances, 1 if not."""
    if options.operator:
        return run_scenario("chaos", _SECTIONS, lambda rig, _: _is_balanced_after_an_operator(rig, options))
    return run_scenario("chaos", _SECTIONS, lambda rig, broker: _is_balanced_after_kills(rig, broker, options))


def _is_balanced_after_an_operator(rig: Rig, options: ChaosOptions) -> bool:
    operator = Operator(rig, random.Random(options.seed))  # repeatable on purpose
    rig.start()
    for number in range(1, options.operator + 1):
        done = operator.act(options.rate, options.pause)
        print(f"{number}: {done}, after {operator.requests} requests", flush=True)
    books = operator.books()
    print(f"{options.operator} things that operators do, seed {options.seed}: {books}")
    return books.balanced


def _is_balanced_after_kills(rig: Rig, broker: Broker, options: ChaosOptions) -> bool:
    sent, chance = Sent(), random.Random(options.seed)  # repeatable on purpose
    load = LoadGenerator(seed=options.seed, clients=20, bad_share=0.01)
    with loading(rig.settings, load, options.rate, sent):
        rig.start()
        for number in range(1, options.kills + 1):
            victim = _kill(rig, broker, options, chance)
            print(f"kill {number}: {victim} after {sent.events} requests", flush=True)
    drain(rig.settings, _DRAIN_S)
    found = reconcile(rig.settings)
    print(f"{options.kills} kills, seed {options.seed}: {found}")
    return found.balanced


def _kill(rig: Rig, broker: Broker, options: ChaosOptions, chance: random.Random) -> str:
    """Kill something at a random moment, and start it again; returns the name of it."""
    draw = chance.random()
    time.sleep(chance.uniform(0.0, options.pause))  # the random moment
    if draw < options.workers:
        rig.kill_workers()
        return "Python workers"
    killed: Rig | Broker = broker if draw < options.workers + options.broker else rig
    killed.kill()
    killed.start()
    return "broker" if killed is broker else "job"


if __name__ == "__main__":
    sys.exit(run_command("chaos", ChaosOptions, run_chaos))
