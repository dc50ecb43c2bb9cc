"""Records of the answer topics: each is one row, or has one fault, whatever it holds and whatever is beside it."""

import json
from collections.abc import Sequence

import pyarrow as pa
import pytest

from sluice.sinks.tables.dead_letters import letter_rows
from sluice.sinks.tables.decisions import decision_content, decision_rows
from sluice.sinks.tables.faults import Faults, RequestsTopic, where
from sluice.state.contract.records import Amounts, Decision, Heartbeat
from tests.audit_records import (
    BOUNDS,
    GOOD,
    HOSTILE_DECISIONS,
    HOSTILE_LETTERS,
    INLINE,
    LAST,
    READ_AT_MS,
    REQUESTS,
    T0,
    decision,
    letter,
    member,
    scrambled,
    text,
)
from tests.audit_tables import records
from tests.builders import Json

Judged = list[Json | str]
"""The row of each record, or the field that is wrong."""


def judged_decisions(values: Sequence[bytes | None], requests: RequestsTopic = REQUESTS) -> Judged:
    batch, faults = records([("decisions", value) for value in values]), Faults(len(values))
    made, _ = decision_rows(batch, faults, requests, BOUNDS, READ_AT_MS)
    return outcomes(made, faults)


def judged_letters(values: Sequence[bytes | None], at_ms: int = T0, requests: RequestsTopic = REQUESTS) -> Judged:
    batch = records([("letters", value) for value in values])
    batch, faults = batch.append_column("timestamp_ms", [[at_ms] * len(values)]), Faults(len(values))
    made, _ = letter_rows(batch, faults, requests, BOUNDS, READ_AT_MS)
    return outcomes(made, faults)


def outcomes(made: pa.Table, faults: Faults) -> Judged:
    good = faults.good
    found, wrong = iter(where(good, made).to_pylist()), iter(faults.columns()[0].to_pylist())
    return [next(found) if is_good else next(wrong) for is_good in good]


def test_good_and_strange_decisions_are_rows_and_hostile_ones_have_their_fault() -> None:
    """All in one batch, and each alone, so that no record changes what another is."""
    good, hostile = list(GOOD.values()), [value for value, _ in HOSTILE_DECISIONS.values()]
    values = [record for pair in zip(hostile, good, strict=False) for record in pair] + hostile[len(good) :]

    together = judged_decisions(values)

    found = dict(zip(values, together, strict=True))
    assert {name: found[value] for name, value in GOOD.items() if isinstance(found[value], str)} == {}
    assert {name: found[value] for name, (value, _) in HOSTILE_DECISIONS.items()} == {
        name: field for name, (_, field) in HOSTILE_DECISIONS.items()
    }
    small = [(value, outcome) for value, outcome in zip(values, together, strict=True) if len(value or b"") < 100_000]
    assert [judged_decisions([value])[0] for value, _ in small] == [outcome for _, outcome in small]


def test_a_row_has_what_its_decision_says() -> None:
    """Fields, numbers at their limits, letters of any script, and the source, also where a topic's name has dashes."""
    for name, value in GOOD.items():
        (row,) = judged_decisions([value])
        assert isinstance(row, dict)
        said = json.loads(value)
        for field in ("decision_id", "request_id", "timestamp_ms", "verdict", "throttle_time_ms", "decided_at_ms"):
            assert row[field] == said[field], name
        topic, partition, offset = row["decision_id"].rsplit("-", 2)
        assert (topic, int(partition), int(offset)) == tuple(
            row[f"source_{part}"] for part in ("topic", "partition", "offset")
        )
    full, strange, half, again, other = (
        judged_decisions([GOOD[name]])[0]
        for name in ("full", "an object for text", "half a letter", "the same field twice", "other letters")
    )
    assert isinstance(full, dict)
    assert {name: full[name] for name in INLINE} == INLINE
    assert (full["job_id"], full["charges"][0]["tokens"], str(full["date"])) == ("mine", -1.5, "2023-11-14")
    assert [row["user"] for row in (strange, half, again) if isinstance(row, dict)] == ['{"a":1}', "?\0", "a|b"]
    assert isinstance(other, dict)
    assert other["charges"][0]["entity"]["user"] == "Ünï\u2028 \U0001f600\t"


def test_a_scrambled_decision_is_the_row_that_its_json_says_or_has_a_fault() -> None:
    """Bytes changed, left out or doubled: what is no JSON is no row, and what is JSON is taken for nothing else."""
    values = list(map(scrambled, range(1500)))
    taken = 0

    for value, found in zip(values, judged_decisions(values), strict=True):
        try:
            said = json.loads(value)
        except ValueError:
            assert found == "value", value
            continue
        if isinstance(found, dict):
            taken += 1
            for field in ("decision_id", "timestamp_ms", "decided_at_ms", "verdict"):
                assert found[field] == said[field], value
            for field in ("user", "api", "throttle_time_ms", "decided_by", "quota_version", "instance"):
                assert found[field] == said.get(field), value
            assert len(found["charges"] or ()) == len(said.get("charges") or ()), value
    assert taken > 200


def test_two_halves_do_not_make_a_whole() -> None:
    """Records are read together, but each by itself."""
    whole = GOOD["plain"]

    found = judged_decisions([whole[:40], whole[40:], whole, b"", whole + whole, b"", whole])

    assert [isinstance(one, dict) for one in found] == [False, False, True, False, False, False, True]


def test_a_time_beyond_its_bounds_is_a_fault() -> None:
    """By a millisecond; both times of a decision have the same bounds."""
    first_ms, last_ms = READ_AT_MS - BOUNDS.past_ms, READ_AT_MS + BOUNDS.future_ms
    times = (first_ms - 1, first_ms, last_ms - 5, last_ms - 4)  # a decision is made 5 ms later

    found = judged_decisions([text(decision(1, at_ms)) for at_ms in times])

    assert [one if isinstance(one, str) else "row" for one in found] == ["timestamp_ms", "row", "row", "decided_at_ms"]


def test_no_records_are_no_rows() -> None:
    assert judged_decisions([]) == judged_letters([]) == []


def test_two_decisions_say_the_same_if_their_fields_do() -> None:
    """In another order, with spaces and unknown fields; and so does the row of the table."""
    said = decision(7, throttle_ms=300) | INLINE
    values = [
        text(said),
        json.dumps(dict(reversed(said.items())), indent=2).encode(),
        member(said, "new", b"[1]"),
        text(said | {"job_id": None}),
        text(said | {"job_id": "another"}),
    ]
    batch = records([("decisions", value) for value in values])

    made, contents = decision_rows(batch, Faults(len(values)), REQUESTS, BOUNDS, READ_AT_MS)

    assert contents[0] == contents[1] == contents[2] == contents[3] != contents[4]
    assert [decision_content(row) for row in made.to_pylist()] == contents


def test_the_table_has_every_field_that_a_decision_can_have() -> None:
    """A field that the columns don't know would be left out without a word."""
    (row,) = judged_decisions([GOOD["full"]])

    assert isinstance(row, dict)
    assert set(Decision.__struct_fields__) <= set(row)
    assert set(row["amounts"]) == set(Amounts.__struct_fields__)
    left_out = {"threads_down", "metrics_seen", "load", "unlimited", "not_exempt", "command", "release"}
    assert set(row["heartbeat"]) == set(Heartbeat.__struct_fields__) - left_out


def test_hostile_dead_letters_have_their_fault_and_the_others_are_rows() -> None:
    values = [*(value for value, _ in HOSTILE_LETTERS.values()), text(letter(3, value_bytes=1)), text(letter(4, None))]

    *hostile, row, empty = judged_letters(values)

    assert dict(zip(HOSTILE_LETTERS, hostile, strict=True)) == {
        name: field for name, (_, field) in HOSTILE_LETTERS.items()
    }
    assert isinstance(row, dict)
    assert isinstance(empty, dict)
    assert (row["source_topic"], row["source_partition"], row["source_offset"]) == ("my-requests", 3, 3)
    assert (row["field"], row["problem"], row["expected"]) == ("user", "is of type int", "str")
    assert (row["value"], row["value_bytes"], empty["value"]) == (b"A", 1, None)
    assert (row["recorded_at"].timestamp() * 1000, str(row["date"])) == (T0, "2023-11-14")


def test_a_dead_letter_whose_record_has_no_time_is_unreadable() -> None:
    """The writer of a record sets its time; each day is a folder of the table."""
    assert judged_letters([text(letter(1))], at_ms=-1) == ["timestamp"]


@pytest.mark.parametrize("source", ["my-requests-3-10", "my-requests-3-11", "my-requests-4-1", "other-3-1"])
def test_an_answer_to_an_event_that_is_not_there_is_unreadable(source: str) -> None:
    """Answers of an offset that the topic hasn't reached, of a partition that it hasn't, and of another topic."""
    requests = RequestsTopic("my-requests", ends=[10] * 4)
    topic, partition, offset = source.rsplit("-", 2)
    refused = letter(1, source={"topic": topic, "partition": int(partition), "offset": int(offset)})

    assert judged_decisions([text(decision(1) | {"decision_id": source})], requests) == ["decision_id"]
    assert judged_letters([text(refused)], requests=requests) == ["source"]
    assert judged_decisions([text(decision(9))], requests) != ["decision_id"]


def test_without_a_requests_topic_no_event_is_there() -> None:
    nothing = RequestsTopic("my-requests", ends=[])

    assert judged_decisions([text(decision(0))], nothing) == ["decision_id"]
    assert judged_letters([text(letter(0))], requests=nothing) == ["source"]


def test_the_last_event_of_a_topic_is_there() -> None:
    (row,) = judged_decisions([text(decision(LAST))])

    assert isinstance(row, dict)
    assert row["source_offset"] == LAST
