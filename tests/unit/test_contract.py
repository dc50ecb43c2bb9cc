"""The contract module: schemas made from it, readers checked against it, and bounds that the job keeps."""

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from scripts.contracts import schemas
from scripts.fields import files
from sluice.sinks.tables.json_records import row_struct
from sluice.state.contract.projection import projects
from sluice.state.contract.records import Amounts, ChargeResult, Decision, Request, SourceRecord
from sluice.state.decisions.checks import check_amounts, check_gateway_fields, check_lengths
from sluice.state.errors import InvalidRequestError
from tests.commands import simulate
from tests.decided_sums import sums_of

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
REQUEST = json.loads(schemas()["request.schema.json"])
DECISION = json.loads(schemas()["decision.schema.json"])


def test_schemas_fields_and_metrics_in_docs_are_made_from_the_code() -> None:
    assert [file.name for file, text in files().items() if file.read_text() != text] == [], "python -m scripts.fields"


def test_a_decision_has_every_field_but_those_that_are_absent_without_content() -> None:
    absent = {"throttled_by", "amounts", "heartbeat", "elastic"}

    assert set(DECISION["required"]) == set(Decision.__struct_fields__) - absent
    charge = DECISION["$defs"]["ChargeResult"]
    assert set(charge["required"]) == set(ChargeResult.__struct_fields__) - {"tokens", "mode"}
    assert set(DECISION["$defs"]["Share"]["required"]) == set(DECISION["$defs"]["Share"]["properties"])
    assert REQUEST["required"] == ["api"]


def test_events_their_decisions_sums_and_answers_fit_the_schemas() -> None:
    """The schema of sums has the decision of decisions."""
    events = EXAMPLES / "kip-599-events.jsonl"
    files = ("--quotas", str(EXAMPLES / "kip-599-quotas.yaml"), "--config", str(EXAMPLES / "kip-599-settings.yaml"))

    decisions = [json.loads(line) for line in simulate(*files, "--events", str(events)).stdout.splitlines()]

    for line in events.read_text().splitlines():
        Draft202012Validator(REQUEST).validate(json.loads(line))
    assert decisions
    for decision in decisions:
        Draft202012Validator(DECISION).validate(decision)
    known = Registry().with_resource("decision.schema.json", Resource.from_contents(DECISION))
    sums = Draft202012Validator(json.loads(schemas()["sums.schema.json"]), registry=known)

    for record in sums_of(decisions):
        sums.validate(json.loads(record))
    sums.validate({"answer": decisions[0]})
    assert not sums.is_valid({"answer": decisions[0] | {"charges": 1}})
    assert not sums.is_valid({"sums": 1})


def test_amounts_are_fields_of_the_event() -> None:
    """A recorded event is decided again from them."""
    event = {field.name: (field.type, field.default) for field in msgspec.structs.fields(Request)}
    amounts = {field.name: (field.type, field.default) for field in msgspec.structs.fields(Amounts)}

    assert amounts.items() <= event.items()


def _bounded() -> list[tuple[str, str, int]]:
    """Each integer of an event with a bound, and the bound."""
    return [
        (name, bound, kind[bound])
        for name, schema in REQUEST["properties"].items()
        for kind in schema.get("anyOf", [schema])
        for bound in ("minimum", "maximum")
        if bound in kind
    ]


@pytest.mark.parametrize(("name", "bound", "value"), _bounded())
def test_the_job_keeps_the_bounds_of_the_schema(name: str, bound: str, value: int) -> None:
    api = "CreateTopics" if "mutations" in name else "Produce"
    check = check_gateway_fields if name in ("bytes", "mutations_charged", "requests") else check_amounts

    check(msgspec.convert({"api": api, name: value}, Request))
    with pytest.raises(InvalidRequestError, match=rf"^{name}"):
        check(msgspec.convert({"api": api, name: value + (1 if bound == "maximum" else -1)}, Request))


@pytest.mark.parametrize("name", [name for name, schema in REQUEST["properties"].items() if "maxLength" in str(schema)])
def test_the_job_keeps_the_longest_names_of_the_schema(name: str) -> None:
    check_lengths(msgspec.convert({"api": "Fetch", name: "x" * 32_767}, Request))
    with pytest.raises(InvalidRequestError, match=rf"^{name}"):
        check_lengths(msgspec.convert({"api": "Fetch", name: "x" * 32_768}, Request))


def _projection(record: type[msgspec.Struct], **fields: Any) -> type[msgspec.Struct]:
    return projects(record)(msgspec.defstruct("Part", list(fields.items())))


def test_a_projection_may_be_more_careful_than_its_record() -> None:
    limit = Annotated[float, msgspec.Meta(gt=0)] | None
    charge = _projection(ChargeResult, quota=str, limit=limit, mode=str | None)

    _projection(Decision, verdict=str, timestamp_ms=int | None, charges=list[charge])  # type: ignore[valid-type] # made here


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"quotas": str}, "no field of ChargeResult"),
        ({"quota": int}, "Part.quota is int; expected str"),
        ({"limit": int}, "Part.limit is int; expected float"),
        ({"entity": SourceRecord}, "expected CountedEntity"),
        ({"violated": list[bool]}, "expected bool"),
    ],
)
def test_a_projection_that_does_not_fit_its_record_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        _projection(ChargeResult, **fields)


def test_rows_have_the_fields_of_their_record_each_of_which_may_be_null() -> None:
    row = row_struct(Decision)

    assert row.__struct_fields__ == Decision.__struct_fields__
    assert msgspec.json.encode(row()) == b"{}"
    assert msgspec.json.decode(b'{"charges":[null,{"limit":null}],"amounts":{"requests":null}}', type=row)


def test_columns_are_as_wide_as_the_contract_says() -> None:
    """Delta and Arrow have them from these integers."""
    value = b'{"error_code":%d,"throttle_time_ms":%d,"amounts":{"requests":%d,"purgatory_ms":%d}}'
    row = row_struct(Decision)

    assert msgspec.json.decode(value % (2**31 - 1, 2**63 - 1, 2**31 - 1, 2**63 - 1), type=row)
    for wide in (value % (2**31, 0, 0, 0), value % (0, 2**63, 0, 0), value % (0, 0, 2**31, 0)):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wide, type=row)
