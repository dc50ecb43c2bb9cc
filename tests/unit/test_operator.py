"""The Python stages of the enforce query, as far as they need no Spark."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pyarrow as pa
import pytest

from configs.settings import load_settings
from state.errors import StateError
from state.quotas.entity import Tags
from state.store.shard import Shard
from streaming.checkpoint.shard_keys import spark_key_of_shard
from streaming.enforce import garbage_collection
from streaming.enforce.batch_properties import BatchProperties
from streaming.enforce.pipeline_settings import PipelineSettings
from streaming.enforce.stages import combiner, shard_decider, stored_shard
from streaming.enforce.wire import ChargeRow, Parcel, encode_parcel

SETTINGS = PipelineSettings.of(load_settings(environment={}))


@pytest.fixture
def thawed() -> Iterator[None]:
    """No object is frozen, before and after; an earlier test may have frozen some."""
    garbage_collection._freeze_imports.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_a_worker_freezes_its_imports_once() -> None:
    """PySpark collects garbage after each task; with pandas in it that would take longer than a small task."""
    for _ in range(2):
        assert not list(combiner(SETTINGS)(iter(())))

    assert gc.isenabled()
    assert gc.get_freeze_count() > len(gc.get_objects())


def test_finished_records_pass_the_combiner_untouched() -> None:
    """Without the column that tells them from parts."""
    columns = {"partial": [False], "topic": ["quota-decisions"], "key": [b"k"], "value": [b"{}"]}

    (batch,) = combiner(SETTINGS)(iter([pa.RecordBatch.from_pydict(columns)]))

    assert batch.to_pylist() == [{"topic": "quota-decisions", "key": b"k", "value": b"{}"}]


def test_parts_never_leave_the_operator_of_a_plan_that_does_not_combine_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's sink would be given them as records without a topic."""
    job = load_settings(environment={})
    job = replace(job, enforce=replace(job.enforce, checkpoint=str(tmp_path)))
    parcel = {"payload": [encode_parcel(Parcel([row], [])) for row in (charge_row(part) for part in (0, 1))]}
    state = Mock(exists=False)

    monkeypatch.setattr(BatchProperties, "of_task", lambda: BatchProperties(1, 0, combined=False))
    with pytest.raises(RuntimeError, match="doesn't combine"):
        list(shard_decider(job, SETTINGS)((0,), [pd.DataFrame(parcel)], state))
    state.update.assert_not_called()

    monkeypatch.setattr(BatchProperties, "of_task", lambda: BatchProperties(1, 0, combined=True))
    known = Mock()
    (rows,) = shard_decider(job, SETTINGS, known)((0,), [pd.DataFrame(parcel)], state)
    assert list(rows["partial"]) == [True]
    known.add.assert_called_once_with({0: 2})


def charge_row(part: int) -> ChargeRow:
    return ChargeRow(0, 0, 0, f"user-{part}", Tags(user=f"user-{part}"), [], part, 2, None)


def test_damaged_state_names_its_shard() -> None:
    """For the operator, who finds it in `/readyz`."""
    payload = Shard().to_bytes(32, 0, load_settings(environment={}).quota)

    with pytest.raises(StateError, match=r"^shard 7: "):
        stored_shard(spark_key_of_shard(7), payload[:-1], 32)
