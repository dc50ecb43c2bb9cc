"""`./scripts/chaos`: kill -9 of the job at random moments under load, or what operators do; then the reconciliation."""

import random
import shutil
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from kafka import KafkaAdminClient

from scripts.command import run_command
from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.broker import Broker
from sluice_demo.counts import drain, rows, stored
from sluice_demo.job import Json, RunError, wait_until, write_settings
from sluice_demo.load import Sent, loading
from sluice_demo.load_generator import LoadGenerator, Rate
from sluice_lab.testbed.reconciliation import reconcile
from sluice_lab.testbed.rig import Rig, run_scenario
from sluice_reading.query import run_query
from sluice_reading.quotas_admin import QuotasAdmin

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


_ROWS_S = 300
_TOPIC_S = 60
_CHECKPOINTS = ("enforce", "audit")
_ANSWERS = ("decisions", "dead_letters")

_ROWS = """
SELECT count(*), count(DISTINCT concat_ws(' ', source_topic_id, source_partition, source_offset)) FROM
(SELECT source_topic_id, source_partition, source_offset FROM decisions
 UNION ALL SELECT source_topic_id, source_partition, source_offset FROM dead_letters)
"""
_CHARGES = "SELECT coalesce(sum(cardinality(charges)), 0) FROM decisions"
_METERED = "SELECT coalesce(sum(count), 0) FROM quota_metrics"
_FOREIGN = "SELECT count(*) FROM unreadable WHERE reason <> 'answers an event that has another answer already'"


class Books(NamedTuple):
    """Requests that all requests topics have had, and rows about them; second answers are no foreign records."""

    requests: int
    rows: int
    answered: int
    charges: int
    metered: int
    foreign: int

    @property
    def balanced(self) -> bool:
        """True if each request has one row, each charge is counted once, and no answer is lost."""
        return self.requests == self.rows == self.answered and self.charges == self.metered and not self.foreign

    def __str__(self) -> str:
        """All counts in one line."""
        verdict = "balanced" if self.balanced else "NOT BALANCED"
        return (
            f"{self.requests} requests, {self.rows} rows about {self.answered} of them, {self.metered} of"
            f" {self.charges} charges, {self.foreign} foreign records: {verdict}"
        )


class Operator:
    """Does something to a job, drawn by `chance`. A restored backup is one of the topics that there are."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self._rig = rig
        self._chance = chance
        self._numbers = count(1)
        self._backups: list[tuple[Path, Any]] = []
        self._requests_before = 0

    @property
    def requests(self) -> int:
        """Requests that this and former requests topics have had."""
        return self._requests_before + stored(self._rig.settings, self._rig.settings.topics.requests)

    def act(self, rate_per_s: float, pause_s: float) -> str:
        """Do something under load; returns what it was."""
        actions = [
            self.kill, self.back_up, self.alter_quotas, self.move_quotas, self.move_balances, self.make_topic_again,
            *[self.restore] * (2 if self._backups else 0),
        ]  # fmt: skip
        action, number = self._chance.choice(actions), next(self._numbers)
        load = LoadGenerator(seed=number, clients=20, bad_share=0.01)
        with loading(self._rig.settings, load, rate_per_s):
            time.sleep(self._chance.uniform(1.0, pause_s))
            if action != self.make_topic_again:
                return action()
        return action()  # a load would make the topic again by itself, or fail

    def drain(self) -> None:
        """Wait until each request has a row. Raises RunError."""
        delta = self._rig.settings.delta
        wait_until(lambda: sum(rows(getattr(delta, name)) for name in _ANSWERS) >= self.requests, _ROWS_S)

    def kill(self) -> str:
        """kill -9 of the job, and a start."""
        self._rig.kill()
        self._rig.start()
        return "kill -9"

    def back_up(self) -> str:
        """Copy both checkpoints while the job is stopped."""
        self._rig.stop()
        folder = self._rig.folder / f"backup-{next(self._numbers)}"
        for name in _CHECKPOINTS:
            shutil.copytree(getattr(self._rig.settings, name).checkpoint, folder / name)
        self._backups.append((folder, self._rig.settings.state.pages))
        self._rig.start()
        return f"backup {folder.name}"

    def restore(self) -> str:
        """Put one or both checkpoints of a backup in place."""
        (folder, pages), parts = self._chance.choice(self._backups), self._chance.choice([(0,), (1,), (0, 1)])
        names = [_CHECKPOINTS[part] for part in parts]
        self._rig.stop()
        for name in names:
            place = getattr(self._rig.settings, name).checkpoint
            shutil.rmtree(place)
            shutil.copytree(folder / name, place)
        if "enforce" in names:
            self._change(state={"pages": pages})
        self._rig.start()
        return f"restore of {folder.name}, {' and '.join(names)}"

    def alter_quotas(self) -> str:
        """One to nine versions, one after the other."""
        table, times = QuotasAdmin(self._rig.settings.delta.quotas), self._chance.randint(1, 9)
        for _ in range(times):
            limit = self._chance.randint(1, 1000) / 10
            table.alter(partial(_with_limit_of_alice, limit), "operator", datetime.now(UTC))
        return f"quotas altered {times} times"

    def move_quotas(self) -> str:
        """A new quotas table elsewhere, from the seed."""
        self._rig.stop()
        self._change(delta={"quotas": self._new_place("quotas")})
        self._rig.start()
        return "quotas table made anew"

    def move_balances(self) -> str:
        """Export and import into a new checkpoint with other pages, by the commands."""
        file = self._rig.folder / f"balances-{next(self._numbers)}"
        self._rig.stop()
        self._state("export", file)
        pages = self._chance.choice([16, 64, 256])
        self._change(enforce={"checkpoint": self._new_place("enforce")}, state={"pages": pages})
        self._state("import", file)
        self._backups.clear()
        self._rig.start()
        return f"balances exported, and imported into {pages} pages"

    def make_topic_again(self) -> str:
        """The requests topic deleted and created, once all requests have their rows, and a new checkpoint."""
        settings = self._rig.settings
        self.drain()
        self._requests_before = self.requests
        self._rig.stop()
        with closing(connect(KafkaAdminClient, settings.kafka)) as admin:
            admin.delete_topics([settings.topics.requests])
            wait_until(lambda: settings.topics.requests not in admin.list_topics(), _TOPIC_S)
        ensure_topics(settings.topics, settings.kafka)
        self._change(enforce={"checkpoint": self._new_place("enforce")})
        self._backups.clear()
        self._rig.start()
        return "requests topic made again"

    def books(self) -> Books:
        """The counts, once the job has caught up or a while is over."""
        with suppress(RunError):
            self.drain()
        time.sleep(2 * self._rig.settings.audit.trigger_s)  # what is one too many would come now
        delta = self._rig.settings.delta
        tables = {name: getattr(delta, name) for name in (*_ANSWERS, "quota_metrics", "unreadable")}
        numbers = [
            number
            for sql in (_ROWS, _CHARGES, _METERED, _FOREIGN)
            for row in run_query(sql, tables, {})
            for number in row
        ]
        return Books(self.requests, *map(int, numbers))

    def _change(self, **sections: Json) -> None:
        file = self._rig.settings_file
        self._rig.settings = write_settings(file, yaml.safe_load(file.read_text()), sections)

    def _new_place(self, name: str) -> str:
        return str(self._rig.folder / f"{name}-{next(self._numbers)}")

    def _state(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "sluice.cli.main", "state", *map(str, arguments)]
        subprocess.run([*command, "--config", self._rig.settings_file], check=True)


def _with_limit_of_alice(mutations_per_s: float, quotas: list[QuotaEntry]) -> list[QuotaEntry]:
    own = QuotaEntry(QuotaEntity(user="alice"), QuotaKind.CONTROLLER_MUTATION_RATE, mutations_per_s)
    return [*(entry for entry in quotas if entry.entity != own.entity), own]


if __name__ == "__main__":
    sys.exit(run_command("chaos", ChaosOptions, run_chaos))
