"""What `./scripts/run` counts and shows."""

import json
from io import StringIO
from typing import Any

from rich.console import Console

from scripts.demo.view import line, overview
from scripts.testbed.live_counts import Answers

NOW_MS = 1_760_000_000_000


def charge(quota: str, rate: float | None, limit: float | None, throttle_ms: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "quota": quota,
        "entity": {"user": "alice"},
        "rate": rate,
        "limit": limit,
        "throttle_ms": throttle_ms,
    } | more


def decision(
    offset: int, *charges: dict[str, Any], user: str = "alice", client: str = "app", at_ms: int = NOW_MS
) -> bytes:
    throttle_ms = max((one["throttle_ms"] for one in charges if "mode" not in one), default=0)
    return json.dumps(
        {
            "decision_id": f"my-requests-0-{offset}",
            "timestamp_ms": at_ms,
            "user": user,
            "client_id": client,
            "api": "Produce",
            "verdict": "THROTTLE" if throttle_ms else "ALLOW",
            "throttle_time_ms": throttle_ms,
            "decided_by": charges[0]["quota"] if throttle_ms else None,
            "charges": charges,
        }
    ).encode()


def dead_letter(offset: int, partition: int = 0) -> bytes:
    return json.dumps({"source": {"topic": "my-requests", "partition": partition, "offset": offset}}).encode()


def test_only_answers_to_own_requests_are_counted() -> None:
    """By where the request is stored: another run with the same seed sends the same request ids."""
    answers = Answers()
    for offset in (0, 2, 4):
        answers.sent(0, offset)

    for offset in range(4):
        answers.decision(decision(offset), NOW_MS)
    answers.dead_letter(dead_letter(4), NOW_MS)
    answers.dead_letter(dead_letter(4, partition=1), NOW_MS)

    assert (answers.decisions, answers.dead_letters, answers.answered) == (2, 1, 3)
    assert answers.others == 3
    assert answers.duplicates == 0


def test_an_answer_may_come_before_the_acknowledgement() -> None:
    answers = Answers()
    answers.decision(decision(7), NOW_MS + 50)
    assert answers.answered == 0

    answers.sent(0, 7)

    assert (answers.answered, answers.others) == (1, 0)
    assert answers.median_delay_ms() == 50


def test_a_second_answer_is_a_duplicate_of_either_kind() -> None:
    answers = Answers()
    answers.sent(0, 1)
    answers.sent(0, 2)
    for _ in range(2):
        answers.decision(decision(1), NOW_MS)
        answers.dead_letter(dead_letter(2), NOW_MS)

    assert (answers.decisions, answers.dead_letters, answers.duplicates) == (1, 1, 2)


def test_answers_to_others_are_kept_in_bounded_memory() -> None:
    answers = Answers(remembered=10)
    for offset in range(100):
        answers.decision(decision(offset), NOW_MS)

    assert answers.others == 100


def test_the_busiest_clients_have_usage_limit_and_the_wait_that_is_left() -> None:
    """Waits that overlap are not added: the client waits until the last of them ends."""
    answers = Answers()
    bytes_quota, time_quota = "producer_byte_rate", "request_percentage"
    for offset, one in enumerate(
        [
            decision(0, charge(bytes_quota, 900.0, 1000.0)),
            decision(1, charge(bytes_quota, 3000.0, 1000.0, 20_000), charge(time_quota, 10.0, 200.0)),
            decision(2, charge(bytes_quota, 4000.0, 1000.0, 30_000)),
            decision(3, charge(bytes_quota, 10.0, 1000.0), charge(time_quota, 150.0, 200.0), user="bob"),
            decision(4, charge(bytes_quota, 9e9, 1000.0, 60_000, mode="shadow"), user="bob"),
            decision(5, charge(bytes_quota, 1.0, None), user="carol"),
        ]
    ):
        answers.sent(0, offset)
        answers.decision(one, NOW_MS)

    alice, bob, carol = answers.busiest(3, NOW_MS + 5000)

    assert (alice.client, alice.quota, alice.usage, alice.limit, alice.wait_ms) == (
        "alice | app", bytes_quota, 4000.0, 1000.0, 25_000,
    )  # fmt: skip
    assert (bob.quota, bob.usage, bob.limit, bob.wait_ms) == (time_quota, 150.0, 200.0, 0)
    assert (carol.quota, carol.limit, carol.wait_ms) == (None, None, 0)


def test_busiest_is_who_sent_most_lately() -> None:
    answers = Answers()
    for offset in range(30):
        answers.sent(0, offset)
        early = offset < 20
        user = "early" if early else "late"
        answers.decision(decision(offset, user=user), NOW_MS if early else NOW_MS + 60_000)

    assert [client.client for client in answers.busiest(5, NOW_MS + 60_000)] == ["late | app"]


def shown(answers: Answers, published: int = 1, width: int = 80) -> str:
    console = Console(width=width, record=True, file=StringIO())
    status = {"enforce": {"batch_ms": 12_345_678, "lag": 123_456_789}}
    console.print(overview(answers, status, published, 12_345_678.9, NOW_MS))
    return console.export_text()


def test_numbers_of_ten_digits_stay_in_one_piece_on_80_columns() -> None:
    answers = Answers()
    answers.verdicts.update({"ALLOW": 1_234_567_894, "THROTTLE": 1_234_567_890, "REJECT": 1_234_567_892})
    answers.dead_letters = 1_234_567_893
    answers.sent(0, 0)
    waits = charge("controller_mutation_rate", 9.9e14, 9.9e14, 123_456_789)
    answers.decision(decision(0, waits, user="a user with a long name", client="and a long client-id"), NOW_MS)

    text = shown(answers, published=9_876_543_210)

    assert all(len(row) <= 80 for row in text.splitlines())
    for number in ("9876543210", "1234567894", "1234567891", "1234567892", "1234567893", "12345679", "123456789"):
        assert number in text
    assert "controller_mutation_rate" in text
    assert "123456.8 s" in text


def test_names_from_events_are_shown_as_text() -> None:
    answers = Answers()
    answers.sent(0, 0)
    answers.decision(decision(0, user="[red]x[/red]\x1b[3m\n", client=""), NOW_MS)

    text = shown(answers)

    assert "[red]x[/red]" in text
    assert "\x1b" not in text


def test_until_the_first_micro_batch_the_line_says_what_is_waited_for() -> None:
    answers = Answers()

    assert "waiting for the first micro-batch" in line(answers, {}, 100, 20.0)
    answers.sent(0, 0)
    answers.decision(decision(0), NOW_MS)
    assert "waiting" not in line(answers, {"enforce": {"batch_ms": 7, "lag": 0}}, 100, 20.0)
