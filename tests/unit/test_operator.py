"""The Python stages of the enforce query, as far as they need no Spark."""

import gc
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pandas as pd
import pyarrow as pa
import pytest

from sluice.configs.settings import load_settings
from sluice.state.arithmetic.counter import Charge
from sluice.state.contract.records import CountedEntity, Request
from sluice.state.decisions.decision import BatchFields, undecided
from sluice.state.errors import StateError
from sluice.state.quotas.entity import entity_text
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.store.pages import Page, page_of_entity
from sluice.streaming.checkpoint.page_keys import spark_key_of_page
from sluice.streaming.enforce import garbage_collection
from sluice.streaming.enforce.batch_properties import BatchProperties
from sluice.streaming.enforce.engine import PageToDecide, PythonEngine
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.enforce.stages import PageOperator, combiner
from sluice.streaming.enforce.tracked_entities import Tracked
from sluice.streaming.enforce.wire import ChargeRow, PackedRow, PageBatch, encode_page_batch, encode_shape
from tests.builders import changed

SETTINGS = PipelineSettings.of(load_settings(environment={}))


@pytest.fixture
def thawed() -> Iterator[None]:
    """No object is frozen, before and after; an earlier test may have frozen some."""
    garbage_collection.freeze_imports.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_a_worker_freezes_its_imports_once() -> None:
    """PySpark collects garbage after each task; with pandas in it that would take longer than a small task."""
    for _ in range(2):
        assert not list(combiner(SETTINGS, is_native=False)(iter(())))

    assert gc.isenabled()
    assert gc.get_freeze_count() > len(gc.get_objects())


def test_finished_records_pass_the_combiner_untouched() -> None:
    """Without the column that tells them from partial decisions."""
    columns = {"partial": [False], "topic": ["quota-decisions"], "key": [b"k"], "value": [b"{}"]}

    (batch,) = combiner(SETTINGS, is_native=False)(iter([pa.RecordBatch.from_pydict(columns)]))

    assert batch.to_pylist() == [{"topic": "quota-decisions", "key": b"k", "value": b"{}"}]


def test_partial_decisions_never_leave_the_operator_of_a_plan_that_does_not_combine_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's sink would be given them as records without a topic."""
    job = load_settings(environment={})
    job = changed(job, "enforce", checkpoint=str(tmp_path))
    page_batch = {"payload": [encode_page_batch(PageBatch([row], [])) for row in map(charge_row, (0, 1))]}
    state, key, one_page = Mock(exists=False), (spark_key_of_page(0, 1),), SETTINGS._replace(pages=1)

    monkeypatch.setattr(BatchProperties, "of_task", lambda: BatchProperties(1, 0, False, 1, 1, 0))
    with pytest.raises(RuntimeError, match="doesn't combine"):
        list(PageOperator(job, one_page)(key, [pd.DataFrame(page_batch)], state))
    state.update.assert_not_called()

    monkeypatch.setattr(BatchProperties, "of_task", lambda: BatchProperties(1, 0, True, 1, 1, 0))
    known = Mock()
    (rows,) = PageOperator(job, one_page, known)(key, [pd.DataFrame(page_batch)], state)
    assert list(rows["partial"]) == [True]
    known.add.assert_called_once_with(Tracked({key[0]: 2}))


@pytest.mark.parametrize("max_entities", [1_000_000, 8])
def test_many_pages_are_decided_as_each_is_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_entities: int
) -> None:
    """The rows in few, the states in the order of the groups; also where entities have to leave."""
    monkeypatch.setattr(BatchProperties, "of_task", lambda: BatchProperties(1, 0, False, 4, 4, 0))
    job = load_settings(environment={})
    job = changed(job, "enforce", checkpoint=str(tmp_path))
    settings = SETTINGS._replace(pages=4, max_entities=max_entities)
    groups, frames, pandas_state = [], {}, {}
    for number in range(4):
        keys = [key for key in (f"user-{count}|" for count in range(40)) if page_of_entity(key, 4) == number]
        rows = [single_row(offset, key) for offset, key in enumerate(keys)]
        payloads = [encode_page_batch(PageBatch(rows[:3], [])), encode_page_batch(PageBatch(rows[3:], []))]
        groups.append((spark_key_of_page(number, 4), None, payloads))
        frames[groups[-1][0]] = [pd.DataFrame({"payload": payloads})]

    decided, states = PageOperator(job, settings).decide_groups(groups)
    decided_rows = in_lists(decided)
    one_by_one = []
    for key, rows_of_page in frames.items():
        state = Mock(exists=False)
        (frame,) = PageOperator(job, settings)((key,), rows_of_page, state)
        one_by_one += [*zip(frame["topic"], frame["values"], strict=True)]
        pandas_state[key] = state.update.call_args.args[0]

    assert states == list(pandas_state.values())
    for topic in (settings.decisions_topic, settings.waits_topic):
        alone = [value for of, values in one_by_one if of == topic for value in values]
        assert sorted(value for row in decided_rows if row[1] == topic for value in row[3]) == sorted(alone)
    entities = [
        [entity for of, values in rows if of == settings.sums_topic for value in values for entity in told(value)]
        for rows in (one_by_one, [(row[1], row[3]) for row in decided_rows])
    ]
    assert sorted(entities[0]) == sorted(entities[1])
    again = [(key, state, rows) for (key, _, rows), state in zip(groups, states, strict=True)]
    assert in_lists(PageOperator(job, settings).decide_groups(again)[0]) != decided_rows


@pytest.mark.parametrize("is_native", [False, True])
def test_pages_that_are_split_are_those_that_were_always_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    """Its requests are decided alike, those of new entities too; a page without its origin is refused."""
    job = load_settings(environment={})
    job = changed(job, "enforce", checkpoint=str(tmp_path), native=is_native)
    keys = [f"user-{count}|" for count in range(60)]

    def decided(keys: list[str], states: Mapping[int, Any], pages: int, before: int, first: int) -> Any:
        properties = BatchProperties(1, 0, False, pages, before, 0)
        monkeypatch.setattr(BatchProperties, "of_task", lambda: properties)
        groups: list[tuple[int, Any, list[bytes]]] = []
        for number in range(pages):
            rows = [single_row(offset, key) for offset, key in enumerate(keys) if page_of_entity(key, pages) == number]
            payloads = [encode_page_batch(PageBatch(rows, []))]
            groups.append((spark_key_of_page(number, first), states.get(number), payloads))
        done, new = PageOperator(job, SETTINGS._replace(pages=first)).decide_groups(groups)
        values = sorted(value for row in in_lists(done) if row[1] != SETTINGS.sums_topic for value in row[3])
        return values, dict(enumerate(new)), groups

    _, few, _ = decided(keys[:40], {}, 2, 2, 2)
    _, many, _ = decided(keys[:40], {}, 8, 8, 8)
    values, split, groups = decided(keys, few, 8, 2, 2)

    assert (values, split) == decided(keys, many, 8, 8, 8)[:2]
    monkeypatch.setattr(BatchProperties, "of_task", lambda: BatchProperties(1, 0, False, 8, 2, 0))
    with pytest.raises(RuntimeError, match="without the page that has its entities"):
        PageOperator(job, SETTINGS._replace(pages=2)).decide_groups(groups[1:])


def in_lists(rows: list[PackedRow]) -> list[Any]:
    """The rows, with the keys and values in lists."""
    return [row.with_lists() for row in rows]


def told(record: bytes) -> list[str]:
    """The sums of a record, each as JSON."""
    return [json.dumps(entity) for entity in json.loads(record)["sums"]]


def single_row(offset: int, key: str) -> ChargeRow:
    """A request of 5 bytes under a limit of 1 byte/s, decided by its one counter."""
    charge = Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 1.0, False, [5.0])
    user = key.removesuffix("|")
    decision = msgspec.json.encode(undecided(Request("Produce", user=user), f"q-0-{offset}", [], BatchFields(1, 0)))
    entity, shape = entity_text(CountedEntity(user=user)), encode_shape([charge])
    return ChargeRow(0, offset, 1_700_000_000_000, key, entity, shape, charge.amounts, key.encode(), decision)


def charge_row(index: int) -> ChargeRow:
    entity = entity_text(CountedEntity(user=f"user-{index}"))
    return ChargeRow(0, 0, 0, f"user-{index}", entity, encode_shape([]), [], None, b"", index=index, rows=2)


def test_damaged_state_names_its_page() -> None:
    """For the operator, who finds it in `/readyz`."""
    payload = Page(7, 32).to_bytes(0, load_settings(environment={}).quota)

    with pytest.raises(StateError, match=r"^page 7: "):
        PythonEngine().decide(
            [PageToDecide(3, payload, []), PageToDecide(7, payload[:-1], [])], SETTINGS._replace(pages=32)
        )
