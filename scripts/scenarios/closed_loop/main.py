"""The command `closed-loop`: measures how well gateways hold clients to a quota.

./scripts/closed-loop simulate --quota consumer_byte_rate --gateways 10 --latency-ms 1000
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated

import typer

from scripts.command import run_app
from scripts.scenarios.closed_loop.measures import Measures, measure
from scripts.scenarios.closed_loop.simulation import ClosedLoop
from scripts.scenarios.closed_loop.situation import (
    BrokersQuotas,
    BrokersSituation,
    ConnectionFlood,
    ElasticSimulation,
    Holds,
    JobDown,
    NameFlood,
    Neighbours,
    Seconds,
    Situation,
    check_quota,
)
from sluice.demo.work_folder import work_folder

GREEDY_DEMAND = 50.0

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback()
def closed_loop() -> None:
    """Print the amounts that clients get through several gateways, over their quota.

    Each client sends as fast as its demand and its waits allow. The figures are the mean, the most in a sliding minute
    and in 5 s, the longest silence in seconds, and the unused part of the quota.
    """


@app.command("simulate")
@dataclass(frozen=True)
class Simulate(Situation):
    """Simulate clients, gateways and the job.

    The gateways and the job are simulated with the code that they run. Every client has a connection to each gateway.
    Demand, size and limit are in the unit of the quota: bytes/s and bytes, or percent and percent-seconds, so that
    10 ms of a thread are 1.
    """

    compare: Annotated[
        bool, typer.Option("--compare", help="Print the same clients on one gateway with no latency beside it.")
    ] = False
    as_json: AsJson = False

    def run(self) -> int:
        """Simulate, and print the figures."""
        check_quota(self.quota)
        found = {"simulated": measure(self, ClosedLoop(self).run())}
        if self.compare:
            found["one gateway"] = measure(self.alone(), ClosedLoop(self.alone()).run())
        return _print(found, self.as_json)


@app.command("gateways")
@dataclass(frozen=True)
class Gateways:
    """Run a broker, the job and gateway processes.

    A greedy client of each kind of quota asks for 50 times its quota.
    """

    gateways: Annotated[int, typer.Option(min=1, max=100, help="Number of gateway processes.")] = 4
    seconds: Seconds = 900
    job_down: JobDown = None
    as_json: AsJson = False

    def run(self) -> int:
        """Run them, and print the figures."""
        from scripts.scenarios.closed_loop.gateways import run_gateways  # simulations need neither Kafka nor Java

        with work_folder("closed-loop", fresh=True) as folder:
            found = run_gateways(folder, self.gateways, self.seconds, GREEDY_DEMAND, self.job_down)
        return _print(found, self.as_json)


@app.command("brokers")
@dataclass(frozen=True)
class Brokers(BrokersSituation):
    """Run Kafka brokers with the plugin, or proxies in front of brokers, and the job.

    A client of librdkafka sends at full speed, with proxies one at each of them. It prints JSON.
    """

    compare: Annotated[bool, typer.Option("--compare", help="Also run one broker with Kafka's own quota.")] = False

    def run(self) -> int:
        """Run them, and print the figures."""
        from scripts.scenarios.closed_loop.brokers import run_brokers

        check_quota(self.quota)
        found: dict[str, Measures] = {}
        for name, each in {"brokers": self, **({"one broker": self.alone()} if self.compare else {})}.items():
            with work_folder("closed-loop", fresh=True) as folder:
                found[name] = run_brokers(folder, each)
        return _print(found, as_json=True)


@app.command("names")
@dataclass(frozen=True)
class Names(NameFlood):
    """Flood brokers with client-ids that nobody has named; no login and no right is needed.

    It prints JSON: live objects in the heaps of all brokers in MiB, and a victim's latency, before and afterwards.
    """

    def run(self) -> int:
        """Run it, and print the figures."""
        from scripts.scenarios.closed_loop.names import run_name_flood

        with work_folder("closed-loop", fresh=True) as folder:
            print(json.dumps(asdict(run_name_flood(folder, self))))
        return 0


@app.command("connections")
@dataclass(frozen=True)
class Connections(ConnectionFlood):
    """Flood a proxy with connections of one client, and connect as another one beside it.

    It prints JSON: seconds from the connect to the first answer, alone and during the flood.
    """

    def run(self) -> int:
        """Run it, and print the figures."""
        from scripts.scenarios.closed_loop.connections import run_connection_flood

        with work_folder("closed-loop", fresh=True) as folder:
            print(json.dumps(asdict(run_connection_flood(folder, self))))
        return 0


@app.command("holds")
@dataclass(frozen=True)
class LargeRequests(Holds):
    """Run producers of librdkafka and of Kafka's Java library, whose requests are 1, 5 and 10 s of their quota.

    They are idempotent, with five requests in flight, and all else as the library has it. It prints JSON: for each the
    rate over the quota, the longest time to an acknowledgement, requests that were sent again, connections that were
    closed, errors, and records that arrived twice or not at all. Exit code 1 if there are any of those.
    """

    def run(self) -> int:
        """Run them, and print the figures."""
        from scripts.scenarios.closed_loop.holds import run_holds

        with work_folder("closed-loop", fresh=True) as folder:
            found = run_holds(folder, self)
        print(json.dumps({name: asdict(held) for name, held in found.items()}, indent=1))
        return int(not all(held.undisturbed for held in found.values()))


@app.command("elastic")
@dataclass(frozen=True)
class Elastic(ElasticSimulation):
    """Simulate elastic quotas under the rule that the job runs: overload, lending, random loads and a week.

    It prints JSON.
    """

    def run(self) -> int:
        """Simulate, and print the figures."""
        from scripts.scenarios.closed_loop.elastic import figures

        print(json.dumps(asdict(figures(self.tenants, self.minutes, self.loads, self.mean_demand))))
        return 0


@app.command("neighbours")
@dataclass(frozen=True)
class NoisyNeighbours(Neighbours):
    """Measure five victims beside noisy neighbours, over alone: with Sluice, Kafka's own quotas, and none.

    A line for each kind of noise comes once it is measured. Exit code 1 if with Sluice p99 is more than 1.5 times that
    of alone, or throughput below 0.99.
    """

    as_json: AsJson = False

    def run(self) -> int:
        """Run them, and print the figures."""
        from scripts.scenarios.closed_loop.neighbours import line, run_neighbours

        passes = True
        for quotas in self.quotas or list(BrokersQuotas):
            with work_folder("closed-loop", fresh=True) as folder:
                for noise, found in run_neighbours(folder, self, quotas):
                    row = {"quotas": quotas.value, "noise": noise.value, **asdict(found)}
                    print(json.dumps(row) if self.as_json else line(quotas, noise, found), flush=True)
                    passes &= found.passes or quotas is not BrokersQuotas.SLUICE
        return int(not passes)


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
    return run_app("closed-loop", app, arguments, lambda parsed: parsed if isinstance(parsed, int) else parsed.run())


if __name__ == "__main__":
    sys.exit(main())
