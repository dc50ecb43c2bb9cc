"""The command `closed-loop`: measures how well gateways hold clients to a quota.

./scripts/closed-loop simulate --quota consumer_byte_rate --gateways 10 --latency-ms 1000
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

import typer

from scripts.command import run_app
from sluice_demo.work_folder import work_folder
from sluice_lab.scenarios.closed_loop import situation
from sluice_lab.scenarios.closed_loop.measures import Measures, measure
from sluice_lab.scenarios.closed_loop.simulation import ClosedLoop

GREEDY_DEMAND = 50.0
FoundT = TypeVar("FoundT")

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("simulate")(situation.Situation)
app.command("gateways")(situation.Gateways)
app.command("brokers")(situation.BrokersSituation)
app.command("names")(situation.NameFlood)
app.command("connections")(situation.ConnectionFlood)
app.command("holds")(situation.Holds)
app.command("elastic")(situation.ElasticSimulation)
app.command("neighbours")(situation.Neighbours)


@app.callback()
def closed_loop() -> None:
    """Print the amounts that clients get through several gateways, over their quota.

    Each client sends as fast as its demand and its waits allow. The figures are the mean, the most in a sliding minute
    and in 5 s, the longest silence in seconds, and the unused part of the quota.
    """


def run(asked: object) -> int:
    """Run what is asked for, and print its figures; the exit code."""
    match asked:  # simulations need neither Kafka nor Java, so the others are imported here
        case situation.Situation():
            situation.check_quota(asked.quota)
            wanted = {"simulated": asked, **({"one gateway": asked.alone()} if asked.compare else {})}
            return _print({name: measure(each, ClosedLoop(each).run()) for name, each in wanted.items()}, asked.as_json)
        case situation.Gateways():
            from sluice_lab.scenarios.closed_loop.gateways import run_gateways

            more = (asked.gateways, asked.seconds, GREEDY_DEMAND, asked.job_down)
            return _print(_in_folder(run_gateways, *more), asked.as_json)
        case situation.BrokersSituation():
            from sluice_lab.scenarios.closed_loop.brokers import run_brokers

            situation.check_quota(asked.quota)
            sides = {"brokers": asked, **({"one broker": asked.alone()} if asked.compare else {})}
            return _print({name: _in_folder(run_brokers, each) for name, each in sides.items()}, as_json=True)
        case situation.NameFlood():
            from sluice_lab.scenarios.closed_loop.names import run_name_flood

            print(json.dumps(asdict(_in_folder(run_name_flood, asked))))
        case situation.ConnectionFlood():
            from sluice_lab.scenarios.closed_loop.connections import run_connection_flood

            print(json.dumps(asdict(_in_folder(run_connection_flood, asked))))
        case situation.Holds():
            from sluice_lab.scenarios.closed_loop.holds import run_crowd, run_holds

            if asked.connections:
                crowds = _in_folder(run_crowd, asked)
                print(json.dumps({name: asdict(each) for name, each in crowds.items()}, indent=1))
                return int(not all(each.is_held for each in crowds.values()))
            held = _in_folder(run_holds, asked)
            print(json.dumps({name: asdict(each) for name, each in held.items()}, indent=1))
            return int(not all(each.undisturbed for each in held.values()))
        case situation.ElasticSimulation():
            from sluice_lab.scenarios.closed_loop.elastic import figures

            print(json.dumps(asdict(figures(asked.tenants, asked.minutes, asked.loads, asked.mean_demand))))
        case situation.Neighbours():
            from sluice_lab.scenarios.closed_loop.neighbours import run_neighbours

            return int(
                not all([_in_folder(run_neighbours, asked, each) for each in asked.quotas or situation.BrokersQuotas])
            )
    return 0


def _in_folder(measured: Callable[..., FoundT], *asked: Any) -> FoundT:
    """The figures of a run that keeps everything in a folder."""
    with work_folder("closed-loop", fresh=True) as folder:
        return measured(folder, *asked)


def _print(found: Mapping[str, Measures], as_json: bool) -> int:
    """One column for each; as JSON an object for each, or the only one itself."""
    rows = {
        name: {field: round(value, 4) for field, value in asdict(measures).items() if value is not None}
        for name, measures in found.items()
    }
    if as_json:
        print(json.dumps(rows if len(rows) > 1 else rows.popitem()[1]))
        return 0
    print(" " * 20 + "".join(f"{name:>14}" for name in rows))
    for field in fields(Measures):
        print(f"{field.name:<20}" + "".join(f"{row[field.name]:>14g}" for row in rows.values()))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return run_app("closed-loop", app, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
