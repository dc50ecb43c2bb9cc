"""The load generator: repeatable events that keep to the contract, except those that are bad on purpose."""

import json

import msgspec
import pytest

from scripts.command import run_command
from sluice.state.contract.records import MAX_TIMESTAMP_MS, Request
from sluice.state.decisions.checks import check_amounts, check_gateway_fields, check_lengths
from sluice.state.errors import InvalidRequestError
from sluice_demo.load_generator import BAD_EVENTS, BAD_KINDS, LoadGenerator, bad_event
from sluice_lab.testbed.load import LoadOptions, main

NOW_MS = 1_760_000_000_000
EVENTS = range(20_000)


def parsed(event: bytes | None) -> Request:
    """The event as the contract has it. Raises InvalidRequestError or msgspec's errors for any other."""
    request = msgspec.json.decode(event or b"", type=Request)
    for check in (check_amounts, check_gateway_fields, check_lengths):
        check(request)
    return request


def requests(generator: LoadGenerator) -> list[Request]:
    return [parsed(generator.event(sequence, NOW_MS)) for sequence in EVENTS]


def test_the_same_seed_makes_the_same_bytes() -> None:
    first, second = LoadGenerator(seed=7, bad_share=0.1), LoadGenerator(seed=7, bad_share=0.1)

    backwards = [first.event(sequence, NOW_MS) for sequence in reversed(range(500))]

    assert backwards[::-1] == [second.event(sequence, NOW_MS) for sequence in range(500)]
    assert [first.key(n) for n in range(500)] == [second.key(n) for n in range(500)]


def test_events_stay_the_same_from_release_to_release() -> None:
    event = LoadGenerator(seed=1).event(3, NOW_MS)

    assert event == (
        b'{"request_id":"1-3","timestamp_ms":1760000000000,"user":"user-11","client_id":"client-3","api":"Fetch",'
        b'"api_version":13,"request_time_ns":14407570,"network_time_ns":718272,"gateway":"gateway-3",'
        b'"topic_partitions":[{"topic":"topic-6","partition":3,"bytes":265900}]}'
    )


def test_good_events_keep_to_the_contract() -> None:
    mix = {"Produce": 1.0, "Fetch": 1.0, "CreateTopics": 1.0, "DeleteTopics": 1.0, "Metadata": 1.0}

    for request in requests(LoadGenerator(api_mix=mix)):
        assert request.timestamp_ms == NOW_MS
        assert bool(request.topic_partitions) == (request.api in ("Produce", "Fetch"))
        assert bool(request.mutations) == (request.api in ("CreateTopics", "DeleteTopics"))


def test_the_key_is_the_entity_of_the_event() -> None:
    generator = LoadGenerator()

    for sequence in range(1000):
        request = parsed(generator.event(sequence, NOW_MS))
        assert generator.key(sequence) == f"{request.user}|{request.client_id}".encode()


def test_the_share_of_bad_events_holds_and_the_rest_are_good() -> None:
    generator = LoadGenerator(bad_share=0.1)
    bad = [sequence for sequence in EVENTS if generator.is_bad(sequence)]

    for sequence in set(EVENTS) - set(bad):
        parsed(generator.event(sequence, NOW_MS))

    assert len(bad) / len(EVENTS) == pytest.approx(0.1, abs=0.01)
    made = {generator.event(sequence, NOW_MS) for sequence in bad}
    assert made == {bad_event(kind, NOW_MS) for kind in BAD_KINDS}


@pytest.mark.parametrize("kind", [kind for kind in BAD_EVENTS if kind != "far in the future"])
def test_every_bad_event_breaks_the_contract(kind: str) -> None:
    with pytest.raises((InvalidRequestError, msgspec.DecodeError, UnicodeDecodeError)):
        parsed(bad_event(kind, NOW_MS))


def test_the_event_far_in_the_future_is_bad_for_its_time_alone() -> None:
    event = bad_event("far in the future", NOW_MS)

    assert event is not None
    assert NOW_MS + 86_400_000 < json.loads(event)["timestamp_ms"] < MAX_TIMESTAMP_MS


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "-1"],
        ["--bad", "2"],
        ["--users", "0"],
        ["--users", "1.5"],
        ["--skew", "nan"],
        ["--mix", "Produce"],
        ["--mix", "Produce=0"],
    ],
)
def test_bad_usage_ends_with_code_2_and_names_the_option(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"load: error: Invalid value for '{arguments[0]}': ")


def test_a_mix_is_each_api_with_its_weight() -> None:
    def run(options: LoadOptions) -> int:
        return 0 if options.api_mix == {"Produce": 50.0, "Fetch": 12.5} else 1

    assert run_command("load", LoadOptions, run, ["--mix", "Produce=50, Fetch=12.5"]) == 0
