"""Work of the Python workers in a micro-batch, without Spark and Kafka: the CPU time of each step, and digests.

    python -m sluice_lab.benchmarks.harness [--charges 1,2,4] [--tenant-digits 2] [--events 10000] [--set NAME=VALUE]

Arrow batches of the bench's own events go to the stage that plans, its page batches to the one that decides, with the
pages, and partial decisions to the one that combines: through the classes and Arrow formats that workers use. Each
number of charges makes a line of JSON, `Work`. Digests are over all records, and over all stored pages, so that two
releases can be compared byte by byte.
"""

import hashlib
import io
import json
import pickle
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch
from zlib import crc32

import msgspec
import pyarrow as pa
import typer
from pyspark.serializers import read_int
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, StringType, StructType

from scripts.command import run_command
from sluice.configs.settings import Settings
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.page_keys import page_of_spark_key
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.batch_properties import BatchProperties
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.stages import PageOperator, combiner, planner
from sluice_demo.job import storage_in, write_settings
from sluice_lab.benchmarks.events import EVENTS_PER_S, Load, spread
from sluice_lab.benchmarks.scale import Charges, SettingsOfJob, loads, sections
from sluice_native.batched import decided_batches
from sluice_native.groups import Group
from sluice_native.library import declined

TASKS = 2
_ARROW_ROWS = 20_000  # as in the job's session
_FIRST_MS = 1_800_000_000_000
_QUOTA_VERSION = 1
_JOB_ID = "0123456789abcdef"
_EVENT = ("value", "partition", "offset", "timestamp_ms")
_ROW = ("partial", "topic", "key", "value")
_STATE = ("keyRowAsUnsafe", "object", "startOffset", "numRows", "isLastChunk")

_DECIDED = (
    StructType()
    .add("partial", BooleanType())
    .add("topic", StringType())
    .add("keys", ArrayType(BinaryType()))
    .add("values", ArrayType(BinaryType()))
)
_COLUMNS = (4, 1, 0, 0, 1)
"""Columns of the function as PySpark gives them: one of the key, and those of key and payload."""

Row = tuple[bool, str | None, bytes | None, bytes | None]
"""A row that leaves the stateful operator: partial, topic, key and value."""


class Work(msgspec.Struct):
    """Result for a number of charges: microseconds of CPU time a request, the least of all counted micro-batches.

    `rows_us` is for groups and states between Arrow and Python. `page_batch_bytes` and `record_bytes` are of a request.
    `sum_bytes` are those of the sums topic, which pages group: they are in no other figure, and in no digest.
    `declined` are the events that native code left to Python in all micro-batches, and the pages.
    """

    charges: int
    requests: int
    plan_us: float
    decide_us: float
    rows_us: float
    combine_us: float
    total_us: float
    page_batch_bytes: float
    record_bytes: float
    sum_bytes: float
    records_digest: str
    pages_digest: str
    declined: tuple[int, int]


@dataclass
class Workers:
    """The stages of a job with this load, as its workers have them, and the pages that Spark would store."""

    load: Load
    settings: Settings
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """CPU seconds by step."""

    def __post_init__(self) -> None:
        """Make the stages."""
        pipeline = PipelineSettings.of(self.settings)._replace(job_id=_JOB_ID)
        self._pages = pipeline.pages
        self._combined = not Quotas(self.load.quotas, _QUOTA_VERSION).charges_one_entity()
        checkpoint = Checkpoint(self.settings.enforce.checkpoint)
        QuotaSnapshots(checkpoint).save(_QUOTA_VERSION, list(self.load.quotas))
        self._plan = planner(self.settings, pipeline)
        self._combine = combiner(pipeline, is_native=self.settings.enforce.native)
        self._decider = PageOperator(self.settings, pipeline)
        self.pages: dict[int, bytes] = {}
        """Spark key -> the pickled state of the page."""
        self.page_batch_bytes = 0
        self._offsets = [0] * TASKS
        self._stream = ArrowStreamSerializer(write_start_stream=True)

    def micro_batch(self, first: int, users: Sequence[int]) -> list[Row]:
        """The records of one micro-batch, with an event of each of these users; `first` numbers them."""
        ended_ms = _event_ms(first + len(users))
        properties = BatchProperties(_QUOTA_VERSION, ended_ms, self._combined, self._pages, self._pages, first)
        with patch.object(BatchProperties, "of_task", return_value=properties):
            rows = self._decided(self._planned(first, users))
            return self._records(rows) if self._combined else rows

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began_s = time.process_time()
        yield
        self.seconds[step] += time.process_time() - began_s

    def _planned(self, first: int, users: Sequence[int]) -> dict[int, list[bytes]]:
        """Page batches by Spark key, in the order in which tasks send them."""
        found: dict[int, list[bytes]] = defaultdict(list)
        for task in range(TASKS):
            batches = self._events(task, first, users)
            with self._timed("plan"):
                planned = list(self._plan(iter(batches)))
            for batch in planned:
                for key, payload in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    found[key].append(payload)
                    self.page_batch_bytes += len(payload)
        return found

    def _events(self, task: int, first: int, users: Sequence[int]) -> list[Any]:
        """Arrow batches of the records in a task's partition."""
        stamped = [(self.load.event(number, user, ms)[1], ms) for number, user, ms in _stamped(first, users)]
        own = [event for event, user in zip(stamped, users, strict=True) if user % TASKS == task]
        rows = [(value, task, offset, ms) for offset, (value, ms) in enumerate(own, self._offsets[task])]
        self._offsets[task] += len(rows)
        return [_batch(rows[start : start + _ARROW_ROWS], _EVENT) for start in range(0, len(rows), _ARROW_ROWS)]

    def _decided(self, page_batches: dict[int, list[bytes]]) -> list[Row]:
        """Rows that leave the stateful operator; pages are stored."""
        rows: list[Row] = []
        for task in range(TASKS):
            keys = sorted(key for key in page_batches if page_of_spark_key(key, self._pages) % TASKS == task)
            if not keys:
                continue
            sent, received = self._groups(keys, page_batches), io.BytesIO()
            in_function_s = self.seconds["decide"]
            with self._timed("rows"):
                decided = decided_batches((self, _DECIDED, _COLUMNS), self._stream.load_stream(sent))
                self._stream.dump_stream(decided, received)
            self.seconds["rows"] -= self.seconds["decide"] - in_function_s
            received.seek(0)
            read_int(received)  # type: ignore[no-untyped-call] # PySpark's
            for batch in pa.ipc.open_stream(received):
                counts, made, states = (column.to_pylist() for column in batch.columns)
                for state in states[: counts[0]["stateCount"]]:
                    self.pages[int(state["keyRowAsUnsafe"])] = state["object"]
                for row in made[: counts[0]["dataCount"]]:
                    pairs = zip(row["keys"], row["values"], strict=True)
                    rows += [(row["partial"], row["topic"], key, value) for key, value in pairs]
        return rows

    def _groups(self, keys: Sequence[int], page_batches: dict[int, list[bytes]]) -> io.BytesIO:
        """Arrow stream of the groups of these keys, as Java sends it: as many states as groups, and then nulls."""
        rows: list[tuple[int, bytes]] = []
        states: list[dict[str, object]] = []
        for key in keys:
            state = (b"%d" % key, self.pages.get(key, b""), len(rows), len(page_batches[key]), True)
            states.append(dict(zip(_STATE, state, strict=True)))
            rows += [(key, payload) for payload in page_batches[key]]
        padded = [*states, *[None] * (len(rows) - len(keys))]
        batch = _batch([(*row, state) for row, state in zip(rows, padded, strict=True)], ("key", "payload", "state"))
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        stream.seek(0)
        return stream

    def decide_groups(self, groups: Iterable[Group]) -> tuple[Sequence[tuple[Any, ...]], Sequence[tuple[Any, ...]]]:
        """The rows and states of the job's operator; it is timed."""
        with self._timed("decide"):
            return self._decider.decide_groups(groups)

    def _records(self, rows: Sequence[Row]) -> list[Row]:
        """Records of finished rows and of partial decisions, which meet by key."""
        found: list[Row] = []
        for task in range(TASKS):
            own = [row for row in rows if crc32(row[2] or b"") % TASKS == task]
            batches = [_batch(own, _ROW)] if own else []
            with self._timed("combine"):
                combined = list(self._combine(iter(batches)))
            for made in combined:
                found += zip([False] * len(made), *(column.to_pylist() for column in made.columns), strict=True)
        return found


def work(load: Load, settings: Settings, events: int, users: int, batches: int) -> Work:
    """CPU time of `batches` micro-batches, once all users are known."""
    workers, digest, record_bytes, sum_bytes = Workers(load, settings), hashlib.sha256(), 0, 0
    of_batch: list[dict[str, float]] = []
    declined.clear()
    known = -(-users // events)
    in_turn = spread(events * (known + batches), users)
    for number in range(known + batches):
        workers.seconds.clear()
        workers.page_batch_bytes = 0
        first = number * events
        made = workers.micro_batch(first, in_turn[first : first + events])
        records = [record for record in made if record[1] != settings.topics.sums]
        sum_bytes = sum(len(record[3] or b"") for record in made if record[1] == settings.topics.sums)
        digest.update(repr(sorted(records, key=repr)).encode())
        record_bytes = sum(len(record[3] or b"") for record in records)
        of_batch.append(dict(workers.seconds))
    plan, decide, rows, combine = (
        round(min(spent.get(step, 0.0) for spent in of_batch[known:]) * 1e6 / events, 2)
        for step in ("plan", "decide", "rows", "combine")
    )
    stored = [(key, pickle.loads(workers.pages[key])) for key in sorted(workers.pages)]  # noqa: S301 - our own
    return Work(
        charges=load.charges,
        requests=events * batches,
        plan_us=plan,
        decide_us=decide,
        rows_us=rows,
        combine_us=combine,
        total_us=round(plan + decide + rows + combine, 2),
        page_batch_bytes=round(workers.page_batch_bytes / events, 1),
        record_bytes=round(record_bytes / events, 1),
        sum_bytes=round(sum_bytes / events, 1),
        records_digest=digest.hexdigest()[:16],
        pages_digest=hashlib.sha256(repr(stored).encode()).hexdigest()[:16],
        declined=(declined["events"], declined["pages"]),
    )


def _stamped(first: int, users: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Number, user and time of each event."""
    for number, user in enumerate(users, first):
        yield number, user, _event_ms(number)


def _event_ms(number: int) -> int:
    return _FIRST_MS + number * 1000 // EVENTS_PER_S


def _batch(rows: Iterable[Sequence[object]], names: Sequence[str]) -> Any:
    return pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*rows, strict=True)], names=names)


@dataclass(frozen=True)
class HarnessOptions:
    """Measure the CPU time of the Python workers without Spark and Kafka; a line of JSON for each number of charges."""

    charges: Charges = None
    events: Annotated[int, typer.Option(min=TASKS, help="Events of a micro-batch.")] = 10_000
    users: Annotated[int, typer.Option(min=1, help="Distinct users, known before the counted batches.")] = 20_000
    batches: Annotated[int, typer.Option(min=1, help="Micro-batches that count.")] = 3
    tenant_digits: Annotated[
        int, typer.Option(min=0, help="First digits of a user's number that name its tenant: 2 make 90; 0, no tenants.")
    ] = 0
    settings: SettingsOfJob = None


def run_harness(options: HarnessOptions) -> int:
    """Print the work of each load; charges on tenants are among its charges."""
    for own in loads(options.charges):
        load = own.in_tenants(options.tenant_digits) if options.tenant_digits else own
        with tempfile.TemporaryDirectory() as folder:
            layers = storage_in(Path(folder)), sections(options.settings)
            settings = write_settings(Path(folder) / "settings.yaml", *layers)
            found = work(load, settings, options.events, options.users, options.batches)
        print(json.dumps(msgspec.to_builtins(found)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_command("harness", HarnessOptions, run_harness))
