"""`sluice demo` without its processes: its answers, its words while it waits, and its end."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import yaml
from rich.console import Console

from sluice.configs.quotas import load_quotas_file
from sluice.configs.settings import load_settings
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.limits import VERSION_KEY, LimitsView, limit_key, limit_value, version_end
from sluice.state.quotas.resolution import Quotas
from sluice_demo.answers import Answers
from sluice_demo.brokers import ClientUse, Neighbour, Screen, client_lines, phase_lines, quotas_of
from sluice_demo.in_force import InForce
from sluice_demo.load import Sent, publish
from sluice_demo.load_generator import LoadGenerator
from sluice_demo.run import line_of_counts, lines_of_clients, summary
from sluice_insight.live import LiveModel
from sluice_insight.row_marks import RowMarks
from sluice_reading.texts import strict_text
from tests.builders import decision
from tests.commands import invoke

NOW_MS = 1_760_000_000_000
PRODUCER = "librdkafka-producer"
NO_MARKS = RowMarks({}, None, [], NOW_MS)


class Stored(NamedTuple):
    """The place of a request."""

    partition: int
    offset: int


@pytest.fixture
def answers() -> Answers:
    """Those to three requests that are known."""
    answers = Answers(load_settings(environment={}))
    for offset in range(3):
        answers.sent(Stored(0, offset))
    return answers


def decided(answers: Answers, offset: int) -> None:
    decision = {"decision_id": f"requests-0-{offset}", "timestamp_ms": NOW_MS, "verdict": "ALLOW", "charges": []}
    answers.decision(None, json.dumps(decision).encode())


def lettered(answers: Answers, offset: int, partition: int = 0) -> None:
    letter = {"source": {"topic": "requests", "partition": partition, "offset": offset}}
    answers.dead_letter(None, json.dumps(letter).encode())


def test_only_answers_to_own_requests_are_counted_each_once(answers: Answers) -> None:
    """By the place of the request: another run with the same seed sends the same request ids."""
    for offset in (0, 1, 1, 7):
        decided(answers, offset)
    for offset, partition in ((2, 0), (2, 0), (2, 1)):
        lettered(answers, offset, partition)

    assert (answers.decisions, answers.dead_letters, answers.answered) == (2, 1, 3)
    assert answers.verdicts == {"ALLOW": 2}
    assert answers.others == 2
    assert answers.duplicates == 2


def test_an_answer_may_come_before_the_acknowledgement(answers: Answers) -> None:
    decided(answers, 7)
    assert answers.answered == 0

    answers.sent(Stored(0, 7))

    assert (answers.answered, answers.others) == (1, 0)


@pytest.mark.parametrize(
    "forged",
    [{"verdict": ["ALLOW"]}, {"verdict": None}, {"timestamp_ms": "soon"}, {"timestamp_ms": None}],
    ids=str,
)
def test_a_forged_record_ends_no_count(answers: Answers, forged: dict[str, Any]) -> None:
    """It may name a request whose acknowledgement comes later, in the thread that publishes."""
    decision = {"decision_id": "requests-0-7", "timestamp_ms": NOW_MS, "verdict": "ALLOW"} | forged
    with pytest.raises(ValueError, match=next(iter(forged))):  # the reader counts it, and passes it over
        answers.decision(None, json.dumps(decision).encode())

    answers.sent(Stored(0, 7))
    decided(answers, 7)

    assert answers.verdicts == {"ALLOW": 1}


@pytest.mark.parametrize("forged", [b"[]", b'{"source": {"partition": [], "offset": 0}}', b'{"source": 1}', None])
def test_a_forged_dead_letter_ends_no_count(answers: Answers, forged: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        answers.dead_letter(None, forged)
    lettered(answers, 0)

    assert answers.dead_letters == 1


def test_the_place_of_each_stored_request_is_told() -> None:
    producer, stored = Mock(), Mock()

    publish(producer, "requests", LoadGenerator(), Event(), count=3, sent=Sent(stored=stored))

    callbacks = [call.args[0] for call in producer.send.return_value.add_callback.call_args_list]
    assert callbacks == [stored] * 3


def test_requests_that_warm_the_job_up_are_counted_with_those_of_the_load() -> None:
    warming, load = Sent(events=3, bad=1, failed=1, failure="no broker", seconds=1.0), Sent(events=5, seconds=2.0)

    assert warming.and_then(load) == Sent(events=8, bad=1, failed=1, failure="no broker", seconds=3.0)


def test_the_median_is_of_answers_to_the_load_alone(answers: Answers) -> None:
    decided(answers, 0)
    assert answers.median_delay_ms() is not None

    answers.forget_delays()

    assert answers.median_delay_ms() is None
    assert answers.answered == 1


def test_the_client_that_waits_comes_first_and_the_others_are_said_to_ignore_their_waits() -> None:
    """The first lines of the first run are read as a verdict on the product."""
    model = LiveModel()
    limit = {"limit": 1_000_000.0, "rate": 1_010_000.0, "entity": {"user": "greedy"}}
    model.on_record(json.dumps(decision(NOW_MS, user="greedy", charge=limit)).encode(), NOW_MS)
    model.on_record(json.dumps(decision(NOW_MS, wait_ms=60_000, charge={"rate": 3000.0})).encode(), NOW_MS)

    greedy, alice = lines_of_clients(model, NOW_MS, None, NO_MARKS)

    assert greedy == (
        f"  {'greedy':<28} gets 1.01 MB/s of 1 MB/s now from two gateways; it asks for 20 MB/s and waits as told"
    )
    assert alice.startswith(
        "  alice                        sends 3 kB/s of 1 kB/s now producer_byte_rate; told to wait "
    )
    assert alice.endswith(", ignores it")


def test_the_mean_of_a_minute_is_shown_as_soon_as_it_is_known() -> None:
    """The sampled rate is above the limit after each charge, which the first minute is read for."""
    model = LiveModel()
    for ago_s in range(60, 0, -1):
        limit = {"limit": 1e6, "rate": 1.19e6, "value": 1e6, "entity": {"user": "greedy"}}
        model.on_record(json.dumps(decision(NOW_MS - ago_s * 1000, user="greedy", charge=limit)).encode(), NOW_MS)

    (greedy,) = lines_of_clients(model, NOW_MS, None, NO_MARKS)

    assert "gets 1 MB/s of 1 MB/s in a minute's mean from two gateways" in greedy


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_narrow_terminal_has_fewer_columns_and_no_line_is_cut(width: int) -> None:
    model = LiveModel()
    for user in ("alice", "payments-service-of-the-north"):
        model.on_record(json.dumps(decision(NOW_MS, user=user, wait_ms=60_000)).encode(), NOW_MS)

    *_, head, first, second, _ = lines_of_clients(model, NOW_MS, width, NO_MARKS)

    assert max(map(len, (head, first, second))) <= width
    assert "WAITED/MIN" in head


def test_requests_are_decisions_dead_letters_and_those_that_wait(answers: Answers) -> None:
    """The job's own lag is that of its last micro-batch: 0 while requests wait."""
    decided(answers, 0)
    lettered(answers, 1)

    assert line_of_counts(answers, 3, 200.0, {"batch_ms": 1212, "lag": 0}) == (
        "3 requests (200/s) -> 1 decisions (1 ALLOW), 1 dead letters, 1 wait; batch 1212 ms"
    )


def limits_with(tmp_path: Path, *overrides: Override) -> LimitsView:
    """The limits topic of the elastic demo, as read, with these overrides."""
    file = tmp_path / "quotas.yaml"
    file.write_text(yaml.safe_dump(quotas_of(elastic=True)))
    limits, entries = LimitsView(), load_quotas_file(file)
    for entry in entries:
        limits.take(limit_key(entry), limit_value(entry, 1))
    limits.take(VERSION_KEY, version_end(1, len(entries)))
    limits.overrides["elastic"] = Overrides(1, NOW_MS, 60_000, list(overrides))
    return limits


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([], "2 MB/s of 1 MB/s; shares: "),
        (
            [Override("tighten", 0.1, gateway="b-1"), Override("tighten", 0.7, gateway="b-2")],
            "2 MB/s of 1 MB/s (about 550 kB/s in force, tightened); shares: ",
        ),
        (
            [Override("hold", reason="eve", until_ms=NOW_MS + 1, entity=CountedEntity(client_id=PRODUCER))],
            "2 MB/s of 1 MB/s (held until 08:53:20 UTC (eve)); shares: ",
        ),
    ],
)
def test_a_client_of_the_elastic_demo_stands_beside_the_limit_in_force(
    tmp_path: Path, overrides: list[Override], line: str
) -> None:
    """In a minute's mean beside the quota tightening is invisible."""
    samples = [(NOW_MS - ago_s * 1000, 5e5 if ago_s > 10 else 2e6) for ago_s in range(100, 0, -1)]
    use = ClientUse(PRODUCER, QuotaKind.PRODUCER_BYTE_RATE, 1e6, samples, [], 4e5)
    in_force = InForce(limits_with(tmp_path, *overrides))
    screen = Screen({}, in_force.marks(["b-1", "b-2"], NOW_MS), 10_000)

    (shown,) = client_lines([use], screen, NOW_MS)

    assert shown.startswith(f"librdkafka-producer    {line}")
    assert len(in_force.lines(NOW_MS)) == len(overrides)


def test_the_first_mean_is_said_to_have_the_burst() -> None:
    use = ClientUse("app", QuotaKind.PRODUCER_BYTE_RATE, 1e6, [(NOW_MS - 5_000, 5e6)], [])

    (shown,) = client_lines([use], Screen({}, NO_MARKS, 60_000), NOW_MS)

    assert shown.startswith("app                    1 MB/s (with its burst) of 1 MB/s; shares: ")


def test_a_summary_by_phase_has_what_was_promised_and_none_of_the_changes_between() -> None:
    """Beside the neighbour from second 60 to 100, and from 180 to the end."""
    beside = [(60_000, 100_000), (180_000, 200_000)]

    def is_beside(ms: int) -> bool:
        return any(begin <= ms < end for begin, end in beside)

    samples = [(s * 1000, 0.5e6 if is_beside(s * 1000 - 5_000) else 0.95e6) for s in range(200)]
    use = ClientUse("app", QuotaKind.PRODUCER_BYTE_RATE, 1e6, samples, [], 4e5)
    noise = ClientUse("noisy-neighbour", QuotaKind.PRODUCER_BYTE_RATE, 2e7, [(80_000, 3e7), (190_000, 1e7)], ["away"])

    assert list(phase_lines([use, noise], beside))[1:] == [
        "  app                    away 950 kB/s (limit 1 MB/s), beside 500 kB/s (reservation 400 kB/s); 0 errors",
        "  noisy-neighbour        beside 1 MB/s; 1 errors; away",
    ]
    short = replace(use, samples=samples[:5])
    assert list(phase_lines([short], []))[1:] == [f"  {'app':<22} too short; 0 errors"]


def test_elastic_quotas_of_the_demo_are_in_force_and_leave_out_no_client(tmp_path: Path) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text(yaml.safe_dump(quotas_of(elastic=True)))
    quotas = Quotas(load_quotas_file(file))
    assert strict_text(quotas, gives_way=True) is None


def test_the_neighbour_of_the_demo_comes_after_a_minute_and_goes_and_comes_again() -> None:
    def come() -> Mock:
        client = Mock(alive=True)
        client.stop = Mock(side_effect=lambda: setattr(client, "alive", False))
        return client

    neighbour, there = Neighbour(come), []
    for at_s in (7.0, 66.9, 67.0, 106.9, 107.0, 186.9, 187.0):
        neighbour.keep(at_s)
        there.append(sum(client.alive for client in neighbour.clients))
    assert there == [0, 0, 1, 1, 0, 0, 1]
    neighbour.leave()
    assert not any(client.alive for client in neighbour.clients)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--brokers", "3", "--rate", "50"], "--brokers starts brokers and clients of its own; expected no other"),
        (["--proxies", "2", "--mix", "Fetch=1"], "--proxies starts brokers"),
        (["--brokers", "1", "--config", "x.yaml"], "than --seconds, --fresh, --no-console, --brokers and --proxies"),
        (["--elastic"], "--elastic needs brokers with the plugin, which measure their load; give --brokers 3"),
        (["--proxies", "2", "--elastic"], "--elastic needs brokers with the plugin"),
        (["--seconds", "0"], "--seconds is 0; expected more than 0, or none for a run until Ctrl-C"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_before_anything_starts(arguments: list[str], problem: str) -> None:
    ended = invoke("demo", *arguments, code=2)

    assert problem in ended.error_line


@pytest.mark.parametrize("package", ["yaml", "confluent_kafka"])
def test_a_missing_package_is_named_with_its_cure(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("sluice_demo.") and name != "sluice_demo.command"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)

    error = invoke("demo", "--seconds", "1", code=2).error_line

    assert error == (
        f"sluice: error: the Python package {package} is missing; pip install 'sluice-kafka[demo]', or ./scripts/setup"
        " in a checkout"
    )


def ended(tmp_path: Path, answers: Answers, sent: Sent) -> tuple[int, str]:
    """Exit code and summary of a run."""
    settings, output, none = load_settings(environment={}), StringIO(), str(tmp_path)
    delta = replace(settings.delta, decisions=none, dead_letters=none, quota_metrics=none, unreadable=none)
    console = Console(file=output, width=120)
    return summary(console, replace(settings, delta=delta), answers, sent), output.getvalue()


@pytest.mark.parametrize(
    ("decisions", "letters", "code", "counts", "end"),
    [
        # An answer to another request does not stand in for it.
        ((0, 5), (1,), 1, "3 requests = 1 decisions + 1 dead letters\n", "1 requests were not answered in 60 s\n"),
        # Answers to others change neither counts nor exit code.
        ((0, 1, 2, 5), (), 0, "3 requests = 3 decisions + 0 dead letters\n", ""),
    ],
)
def test_a_request_without_an_answer_is_said_and_fails_the_run(
    answers: Answers, tmp_path: Path, decisions: Sequence[int], letters: Sequence[int], code: int, counts: str, end: str
) -> None:
    for offset in decisions:
        decided(answers, offset)
    for offset in letters:
        lettered(answers, offset)

    found, output = ended(tmp_path, answers, Sent(events=3))

    assert found == code
    assert counts in output
    assert output.endswith(end)
    assert "besides, 1 decisions on events of the gateways, such as greedy's requests, and of others" in output


def test_requests_that_could_not_be_published_are_reported(tmp_path: Path) -> None:
    none = Answers(load_settings(environment={}))

    code, summary = ended(tmp_path, none, Sent(events=1, failed=1, failure="[no] broker"))

    assert code == 1
    assert "1 requests could not be published: [no] broker" in summary
    assert "not answered" not in summary
