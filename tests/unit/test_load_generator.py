"""The load generator: repeatable events that keep to the contract, except those that are bad on purpose."""

import json
from collections import Counter

import msgspec
import pytest
import typer

from scripts.testbed.load_generator import BAD_EVENTS, BAD_KINDS, LoadGenerator, api_mix, bad_event, main
from sluice.state.contract.records import MAX_TIMESTAMP_MS, Request
from sluice.state.decisions.checks import check_request
from sluice.state.errors import InvalidRequestError

NOW_MS = 1_760_000_000_000
EVENTS = range(20_000)


def parsed(event: bytes | None) -> Request:
    """The event as the contract has it. Raises InvalidRequestError or msgspec's errors for any other."""
    request = msgspec.json.decode(event or b"", type=Request)
    check_request(request)
    return request


def requests(generator: LoadGenerator) -> list[Request]:
    return [parsed(generator.event(sequence, NOW_MS)) for sequence in EVENTS]


def test_the_same_seed_makes_the_same_bytes() -> None:
    first, second = LoadGenerator(seed=7, bad_share=0.1), LoadGenerator(seed=7, bad_share=0.1)

    backwards = [first.event(sequence, NOW_MS) for sequence in reversed(range(500))]

    assert backwards[::-1] == [second.event(sequence, NOW_MS) for sequence in range(500)]
    assert [first.key(n) for n in range(500)] == [second.key(n) for n in range(500)]


def test_another_seed_makes_other_events() -> None:
    def entities(seed: int) -> list[bytes]:
        return [LoadGenerator(seed=seed).key(sequence) for sequence in range(100)]

    assert entities(1) != entities(2)


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


def test_the_mix_of_apis_holds() -> None:
    mix = {"Produce": 50.0, "Fetch": 30.0, "CreateTopics": 5.0, "Metadata": 15.0, "Heartbeat": 0.0}

    counts = Counter(request.api for request in requests(LoadGenerator(api_mix=mix)))

    assert {api: 100 * counts[api] / len(EVENTS) for api in mix} == pytest.approx(mix, abs=1.5)


def test_users_and_clients_are_as_skewed_as_asked() -> None:
    skew, users, clients = 1.1, 50, 5
    made = requests(LoadGenerator(users=users, clients=clients, zipf_skew=skew))

    for names, count in (([r.user for r in made], users), ([r.client_id for r in made], clients)):
        shares = [number / len(EVENTS) for _, number in Counter(names).most_common()]
        total = sum(rank**-skew for rank in range(1, count + 1))
        assert shares[:5] == pytest.approx([rank**-skew / total for rank in range(1, 6)], abs=0.015)


def test_without_skew_all_users_are_equal() -> None:
    counts = Counter(request.user for request in requests(LoadGenerator(users=10, zipf_skew=0)))

    assert len(counts) == 10
    assert all(0.09 < number / len(EVENTS) < 0.11 for number in counts.values())


def test_one_user_and_one_client_are_enough() -> None:
    generator = LoadGenerator(users=1, clients=1, topics=1)

    assert {generator.key(sequence) for sequence in range(100)} == {b"alice|reporting"}


def test_the_share_of_bad_events_holds_and_the_rest_are_good() -> None:
    generator = LoadGenerator(bad_share=0.1)
    bad = [sequence for sequence in EVENTS if generator.is_bad(sequence)]

    for sequence in set(EVENTS) - set(bad):
        parsed(generator.event(sequence, NOW_MS))

    assert len(bad) / len(EVENTS) == pytest.approx(0.1, abs=0.01)
    made = {generator.event(sequence, NOW_MS) for sequence in bad}
    assert made == {bad_event(kind, NOW_MS) for kind in BAD_KINDS}


def test_all_events_can_be_bad() -> None:
    generator = LoadGenerator(bad_share=1.0)

    assert {generator.event(n, NOW_MS) for n in range(1000)} == {bad_event(kind, NOW_MS) for kind in BAD_KINDS}


@pytest.mark.parametrize("kind", [kind for kind in BAD_EVENTS if kind != "far in the future"])
def test_every_bad_event_breaks_the_contract(kind: str) -> None:
    with pytest.raises((InvalidRequestError, msgspec.DecodeError, UnicodeDecodeError)):
        parsed(bad_event(kind, NOW_MS))


def test_the_event_far_in_the_future_is_bad_for_its_time_alone() -> None:
    event = bad_event("far in the future", NOW_MS)

    assert event is not None
    assert NOW_MS + 86_400_000 < json.loads(event)["timestamp_ms"] < MAX_TIMESTAMP_MS


def test_a_mix_is_read_from_the_command_line() -> None:
    assert api_mix("Produce=50, Fetch=2.5") == {"Produce": 50.0, "Fetch": 2.5}


@pytest.mark.parametrize("text", ["", "Produce", "Produce=x", "Produce=-1", "Produce=1,Produce=2", 'a"b=1', "Fetch=0"])
def test_a_mix_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        api_mix(text)


@pytest.mark.parametrize(
    "arguments",
    [["--rate", "-1"], ["--bad", "2"], ["--users", "0"], ["--users", "1.5"], ["--skew", "nan"], ["--mix", "Produce"]],
)
def test_bad_usage_ends_with_code_2_and_names_the_option(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"load: error: Invalid value for '{arguments[0]}': ")


def test_a_missing_settings_file_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "no-such-file.yaml"]) == 2
    expected = "load: error: no-such-file.yaml: No such file or directory; expected a readable YAML file\n"
    assert capsys.readouterr().err == expected


def test_users_in_turn_each_come_once_before_any_comes_again() -> None:
    load = LoadGenerator(seed=3, users=50, clients=5, in_turn=True)

    users = [load.key(sequence).split(b"|")[0] for sequence in range(100)]

    assert len(set(users[:50])) == 50
    assert users[50:] == users[:50]
