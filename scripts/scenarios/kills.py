"""Kills of a cluster: their order, and the time without decisions after each."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Victim(StrEnum):
    """A part of the cluster that can be killed."""

    EXECUTOR = "executor"
    WORKER = "worker"
    MASTER = "master"
    DRIVER = "driver"
    BROKER = "broker"
    DATANODE = "datanode"


AIM_S = {Victim.EXECUTOR: 10.0, Victim.DRIVER: 30.0}
"""Seconds after which decisions are to go on, where there is an aim."""


@dataclass(frozen=True)
class Killed:
    """One kill: its victim, and the seconds until a request that was published after it was answered."""

    victim: Victim
    what: str
    seconds: float


def planned(named: Sequence[Victim], count: int, possible: Sequence[Victim], chance: Random) -> list[Victim]:
    """The named victims in their order, then others up to `count` in all: each kind once before any comes again.

    >>> planned([Victim.DRIVER], 3, [Victim.MASTER], Random(1))
    [<Victim.DRIVER: 'driver'>, <Victim.MASTER: 'master'>, <Victim.MASTER: 'master'>]
    """
    victims = list(named)
    while len(victims) < count:
        victims += chance.sample(list(possible), min(len(possible), count - len(victims)))
    return victims


def table(kills: Sequence[Killed]) -> str:
    """A line for each kill, under a head.

    >>> print(table([Killed(Victim.EXECUTOR, "executor with process 7", 4.25), Killed(Victim.BROKER, "broker 2", 12)]))
    kill  kind      what was killed                decisions went on after   aim
       1  executor  executor with process 7                          4.2 s  10 s
       2  broker    broker 2                                        12.0 s     -
    """
    return "\n".join([_HEAD, *(_line(number, killed) for number, killed in enumerate(kills, 1))])


_HEAD = "kill  kind      what was killed                decisions went on after   aim"


def _line(number: int, killed: Killed) -> str:
    aim_s = AIM_S.get(killed.victim)
    aim = "-" if aim_s is None else f"{aim_s:.0f} s"
    return f"{number:>4}  {killed.victim:<8}  {killed.what:<28} {killed.seconds:>23.1f} s {aim:>5}"
