"""Bars of the closed loop, tried in situations drawn at random."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import NamedTuple

from scripts.scenarios.closed_loop.measures import Measures, measure
from scripts.scenarios.closed_loop.simulation import ClosedLoop
from scripts.scenarios.closed_loop.situation import QUOTAS, Situation, Spread

MEAN = (0.97, 1.02)
MEAN_DIFFERENCE = 0.03
WORST_MINUTE = 1.05
SILENCE = 2.0
SMALL_S = 0.1

LIMIT = 1_000_000.0
_GATEWAYS = (1, 2, 4, 10, 20)
_LATENCIES_MS = (100, 300, 1_000, 2_000)
_DEMANDS = (2, 5, 20, 50, 100)
_SIZES_S = (0.02, 0.05, 0.1, 0.3, 1.0)


class Missed(NamedTuple):
    """A bar that a situation misses."""

    bar: str
    found: float
    expected: str


@dataclass(frozen=True)
class Judged:
    """A situation, its figures, those of one gateway alone, and the bars it misses."""

    situation: Situation
    found: Measures
    alone: Measures
    missed: list[Missed]


def check_bars(number: int, seed: int, seconds: int, as_json: bool) -> int:
    """Try situations on all cores. Prints those that miss a bar; returns 1 if there is one."""
    chosen = random.Random(seed)  # situations needn't be secret
    situations = [_drawn(chosen, seconds) for _ in range(number)]
    missed = 0
    with ProcessPoolExecutor() as processes:
        for judged in processes.map(judge, situations):
            missed += bool(judged.missed)
            if as_json:
                print(json.dumps(asdict(judged)))
            elif judged.missed:
                print(_line(judged))
    if not as_json:
        print(f"{number - missed} of {number} situations reach every bar")
    return 1 if missed else 0


def judge(situation: Situation) -> Judged:
    """Simulate a situation, and one gateway alone beside it."""
    found = measure(situation, ClosedLoop(situation).run())
    alone = measure(situation.alone(), ClosedLoop(situation.alone()).run())
    return Judged(situation, found, alone, list(_missed(situation, found, alone)))


def _missed(situation: Situation, found: Measures, alone: Measures) -> Iterator[Missed]:
    """The bars for requests of up to a second of the quota.

    The mean is 0.97 to 1.02 for requests of up to 0.1 s of the quota, and within 0.03 of one gateway for larger ones.
    The worst minute after the first is at most 1.05 times that of one gateway. For requests of up to a tenth of a
    second of a gateway's share the longest silence is at most twice as long.
    """
    size_s = situation.size / situation.limit
    if size_s <= SMALL_S:
        if not MEAN[0] <= found.mean_after <= MEAN[1]:
            yield Missed("mean", found.mean_after, f"{MEAN[0]} to {MEAN[1]}")
    elif abs(found.mean_after - alone.mean_after) > MEAN_DIFFERENCE:
        yield Missed("mean", found.mean_after, f"{alone.mean_after:.3f} ± {MEAN_DIFFERENCE}")
    if found.worst_later_minute > WORST_MINUTE * alone.worst_later_minute:
        yield Missed("worst minute", found.worst_later_minute, f"≤ {WORST_MINUTE * alone.worst_later_minute:.3f}")
    if size_s <= SMALL_S / situation.gateways and found.longest_silence_s > SILENCE * alone.longest_silence_s:
        yield Missed("longest silence", found.longest_silence_s, f"≤ {SILENCE * alone.longest_silence_s:.2f} s")


def _drawn(chosen: random.Random, seconds: int) -> Situation:
    return Situation(
        quota=chosen.choice(QUOTAS),
        limit=LIMIT,
        demand=LIMIT * chosen.choice(_DEMANDS),
        size=LIMIT * chosen.choice(_SIZES_S),
        gateways=chosen.choice(_GATEWAYS),
        latency_ms=chosen.choice(_LATENCIES_MS),
        spread=chosen.choice(list(Spread)),
        seed=chosen.randrange(1_000_000),
        seconds=seconds,
    )


def _line(judged: Judged) -> str:
    situation = judged.situation
    misses = "; ".join(f"{missed.bar} {missed.found:.3f} (expected {missed.expected})" for missed in judged.missed)
    return (
        f"{situation.quota} {situation.gateways} gateways, {situation.latency_ms} ms, demand"
        f" {situation.demand / situation.limit:g}, size {situation.size / situation.limit:g} s, {situation.spread},"
        f" seed {situation.seed}: {misses}"
    )
