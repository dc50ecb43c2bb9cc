"""The command `closed-loop`: how well gateways hold clients to a quota.

./scripts/closed-loop --quota consumer_byte_rate --gateways 10 --latency-ms 1000
"""

import json
import math
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from scripts.closed_loop.bars import check_bars
from scripts.closed_loop.measures import Measures, measure
from scripts.closed_loop.real import run_real
from scripts.closed_loop.simulation import ClosedLoop
from scripts.closed_loop.situation import SIMULATED, Counters, Situation, Spread, Waits
from scripts.command import run_command
from scripts.testbed.work_folder import work_folder
from sluice.state.quotas.kinds import Family, QuotaKind

QUOTAS = {
    kind.value: kind
    for kind in (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)
}
DEFAULT_LIMITS = {Family.BYTES: 1_000_000.0, Family.REQUEST_TIME: 10.0}
DEFAULT_DEMAND = 20.0
DEFAULT_SIZE = 0.1
REAL_DEMAND = 50.0


@dataclass(frozen=True)
class ClosedLoopOptions:
    """Simulate clients, gateways and the job, and print what the clients got, over their quota.

    Every client has a connection to each gateway and sends on each as fast as its part of the demand and its waits
    allow. Demand, size and limit are in the unit of the quota: bytes/s and bytes, or percent and percent-seconds, so
    that 10 ms of a thread are 1.
    """

    quota: Annotated[str, typer.Option(help=f"Quota kind: {', '.join(QUOTAS)}.")] = "producer_byte_rate"
    limit: Annotated[
        float | None, typer.Option(min=0.001, help="Limit of the quota.  [default: 1000000 bytes/s or 10 percent]")
    ] = None
    gateways: Annotated[int, typer.Option(min=1, max=1000, help="Number of gateways.")] = 4
    latency_ms: Annotated[int, typer.Option(min=0, help="From a request to the arrival of its decision.")] = 300
    demand: Annotated[
        float | None, typer.Option(min=0.0, help="What all clients want together.  [default: 20 times the limit]")
    ] = None
    size: Annotated[
        float | None, typer.Option(min=0.0, help="Size of one request.  [default: a tenth of a second of the limit]")
    ] = None
    spread: Annotated[
        Spread,
        typer.Option(
            help="Traffic over gateways: even, skew (70 % on the first), or one alone; with --brokers also move (to"
            " another broker half way) and hop (every 5 s)."
        ),
    ] = Spread.EVEN
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 1
    counters: Annotated[Counters, typer.Option(help="One counter for all clients, or one for each: shared, own.")] = (
        Counters.SHARED
    )
    on_ms: Annotated[int, typer.Option(min=0, help="Clients send for so long, then pause for --off-ms.")] = 0
    off_ms: Annotated[int, typer.Option(min=0, help="Length of the pauses; 0 is none.")] = 0
    seconds: Annotated[int, typer.Option(min=20, help="Length of the simulation.")] = 900
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 1
    join: Annotated[float | None, typer.Option(min=0, metavar="S", help="One more gateway starts at this second.")] = (
        None
    )
    leave: Annotated[float | None, typer.Option(min=0, metavar="S", help="A gateway crashes at this second.")] = None
    job_down: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="Nothing is decided between these seconds.")
    ] = None
    limit_change: Annotated[str | None, typer.Option(metavar="S:Q", help="At second S the limit becomes Q.")] = None
    clock_skew_ms: Annotated[int, typer.Option(min=0, help="The gateways' clocks differ by up to so much.")] = 0
    waits: Annotated[
        Waits,
        typer.Option(help="What holds clients back: the gateways' charges in-line, decided waits alone, or both."),
    ] = Waits.IN_LINE
    compare: Annotated[
        bool, typer.Option("--compare", help="Print the same clients on one gateway with no latency beside it.")
    ] = False
    bars: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Try N situations drawn with --seed, each against one gateway alone."),
    ] = None
    real: Annotated[
        bool,
        typer.Option(
            "--real",
            help="A broker, the job and gateway processes instead of a simulation; a greedy client of each kind."
            " Of the other options --gateways, --seconds, --job-down and --json count.",
        ),
    ] = False
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="So many Kafka brokers with the plugin, the job, and librdkafka clients at full speed; prints JSON."
            " Of the other options --quota, --limit, --spread (skew is 80 %), --clients (of one user, whose quota"
            " it is), --seconds, --compare (with one broker and Kafka's own quota) and those below count.",
        ),
    ] = None
    own_quotas: Annotated[
        bool, typer.Option("--own-quotas", help="With --brokers: Kafka's own quotas instead of plugin and job.")
    ] = False
    kill_job_at: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="With --brokers: the job is killed, and back 60 s later.")
    ] = None
    kill_broker_at: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="With --brokers: one is killed, and back 60 s later.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False


def run_closed_loop(options: ClosedLoopOptions) -> int:
    """Simulate and print; exit code 1 if --bars finds one that is missed."""
    if options.bars is not None:
        return check_bars(options.bars, options.seed, options.seconds, options.as_json)
    if options.real:
        job_down = None if options.job_down is None else _pair("--job-down", options.job_down, "-")
        with work_folder("closed-loop", fresh=True) as folder:
            found = run_real(folder, options.gateways, options.seconds, REAL_DEMAND, job_down)
        return _print(found, options.as_json)
    if options.brokers is not None:
        return _run_brokers(options, options.brokers)
    situation = situation_of(options)
    found = {"simulated": measure(situation, ClosedLoop(situation).run())}
    if options.compare:
        found["one gateway"] = measure(situation.alone(), ClosedLoop(situation.alone()).run())
    return _print(found, options.as_json)


def _run_brokers(options: ClosedLoopOptions, brokers: int) -> int:
    from scripts.closed_loop.brokers import BrokersSituation, run_brokers  # simulations need neither Kafka nor Java

    asked = situation_of(options)
    if options.spread not in SIMULATED and brokers == 1:
        raise typer.BadParameter(f"--spread is {options.spread}; expected --brokers 2 or more with it")
    situation = BrokersSituation(
        asked.quota,
        asked.limit,
        brokers,
        asked.seconds,
        asked.spread,
        options.own_quotas,
        options.kill_job_at,
        options.kill_broker_at,
        clients=asked.clients,
    )
    with work_folder("closed-loop", fresh=True) as folder:
        found: dict[str, Measures] = {"brokers": run_brokers(folder, situation)}
    if options.compare:
        with work_folder("closed-loop", fresh=True) as folder:
            found["one broker"] = run_brokers(folder, situation.alone())
    return _print(found, as_json=True)


def situation_of(options: ClosedLoopOptions) -> Situation:
    """The situation of a command line. Raises typer.BadParameter for what can't be."""
    if options.quota not in QUOTAS:
        raise typer.BadParameter(f"--quota is {options.quota!r}; expected one of {', '.join(QUOTAS)}")
    quota = QUOTAS[options.quota]
    limit = DEFAULT_LIMITS[quota.family] if options.limit is None else options.limit
    demand = limit * DEFAULT_DEMAND if options.demand is None else options.demand
    size = limit * DEFAULT_SIZE if options.size is None else options.size
    for name, value in (("--limit", limit), ("--demand", demand), ("--size", size)):
        if not (0 < value < math.inf):
            raise typer.BadParameter(f"{name} is {value}; expected a number above 0")
    if options.spread not in SIMULATED and options.brokers is None:
        raise typer.BadParameter(
            f"--spread is {options.spread}; expected one of {', '.join(SIMULATED)} without --brokers"
        )
    if size < 1 and quota.family is Family.BYTES:
        raise typer.BadParameter(f"--size is {size}; expected at least one byte")
    if options.off_ms and not options.on_ms:
        raise typer.BadParameter("--off-ms is given without --on-ms; expected both")
    if options.leave is not None and options.gateways == 1 and options.join is None:
        raise typer.BadParameter("--leave is given with one gateway; expected --gateways 2 or more")
    job_down = None if options.job_down is None else _pair("--job-down", options.job_down, "-")
    limit_change = None if options.limit_change is None else _pair("--limit-change", options.limit_change, ":")
    _check_begins("--join", options.join, options.seconds)
    _check_begins("--leave", options.leave, options.seconds)
    _check_begins("--job-down", job_down and job_down[0], options.seconds)
    _check_begins("--limit-change", limit_change and limit_change[0], options.seconds)
    return Situation(
        quota,
        limit,
        demand,
        size,
        options.gateways,
        options.latency_ms,
        options.spread,
        options.clients,
        options.counters,
        options.on_ms,
        options.off_ms,
        options.seconds,
        options.seed,
        options.join,
        options.leave,
        job_down,
        limit_change,
        options.clock_skew_ms,
        options.waits,
    )


def _check_begins(option: str, second: float | None, seconds: int) -> None:
    """Raises typer.BadParameter for a change that the simulation never comes to."""
    if second is not None and second >= seconds:
        raise typer.BadParameter(f"{option} begins at second {second:g}; expected --seconds above {second:g}")


def _pair(option: str, text: str, separator: str) -> tuple[float, float]:
    first, found, second = text.partition(separator)
    try:
        pair = float(first), float(second)
    except ValueError:
        pair = (math.nan, math.nan)
    is_ordered = separator != "-" or pair[0] < pair[1]
    if not found or not all(0 <= value < math.inf for value in pair) or not is_ordered or pair[1] == 0:
        meaning = "FROM-TO in seconds, such as 300-360" if separator == "-" else "S:Q, such as 300:500000"
        raise typer.BadParameter(f"{option} is {text!r}; expected {meaning}")
    return pair


def _rounded(measures: Measures) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(measures).items() if value is not None}


def _print(found: dict[str, Measures], as_json: bool) -> int:
    """One column for each; as JSON an object for each, or the only one itself."""
    if as_json:
        figures = {name: _rounded(measures) for name, measures in found.items()}
        print(json.dumps(figures if len(figures) > 1 else figures.popitem()[1]))
        return 0
    rows = [_rounded(measures) for measures in found.values()]
    print(" " * 20 + "".join(f"{name:>14}" for name in found))
    for name in rows[0]:
        print(f"{name:<20}" + "".join(f"{row[name]:>14g}" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(run_command("closed-loop", ClosedLoopOptions, run_closed_loop))
