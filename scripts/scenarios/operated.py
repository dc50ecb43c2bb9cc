"""`./scripts/chaos --operator N`: what operators do to a real job, drawn at random, under load; then its books."""

import random
import shutil
import subprocess
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from kafka import KafkaAdminClient

from scripts.testbed.rig import Rig
from sluice.demo.counts import rows, stored
from sluice.demo.job import Json, RunError, wait_until, write_settings
from sluice.demo.load import loading
from sluice.demo.load_generator import LoadGenerator
from sluice.insight.sql import run_query
from sluice.kafka_io.client import connect
from sluice.kafka_io.topics import ensure_topics
from sluice.sinks.tables.quotas import QuotasTable
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind

_DRAIN_S = 300
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
        wait_until(lambda: sum(rows(getattr(delta, name)) for name in _ANSWERS) >= self.requests, _DRAIN_S)

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
        table, times = QuotasTable(self._rig.settings.delta.quotas), self._chance.randint(1, 9)
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
