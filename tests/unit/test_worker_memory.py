"""Memory of a worker for what it reads: the same for any number of records."""

import tracemalloc

import pyarrow as pa

from sluice.streaming.enforce.repetition import BatchAnswers, answered_places
from tests.worker_memory import traced


def test_a_repeated_micro_batch_reads_any_number_of_decisions_in_the_same_memory() -> None:
    """Those since it began: half of them are on its own events again, as after a restored backup."""
    answers = BatchAnswers(frozenset({"decisions"}), "requests", frozenset({"A"}), None, {0: 0}, {0: 500})
    values = [b'{"decision_id":"requests-0-%d","verdict":"ALLOW","source_topic_id":"A"}' % n for n in range(1_000)]
    written, peaks = pa.RecordBatch.from_pydict({"value": values}), []
    for batches in (5, 50):
        with traced():
            [found] = answered_places(answers)(iter([written] * batches))
            peaks.append(tracemalloc.get_traced_memory()[1])
        assert found.num_rows == 500
    assert peaks[1] <= 1.1 * peaks[0]
