"""The doctor without extras, and with one whose checks hang or don't fit."""

from collections.abc import Callable
from threading import Event
from unittest.mock import Mock

import pytest
from kafka.errors import LeaderNotAvailableError, TopicAuthorizationFailedError

from sluice.cli import doctor
from sluice.cli.doctor import Ask, run_doctor, unread_text
from sluice.configs.settings import Settings
from tests.builders import DEFAULTS


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """The exit code and the lines of a doctor with one check of the start and these entry points."""

    def run(*loads: Mock) -> tuple[int, list[str]]:
        monkeypatch.setattr(doctor, "start_checks", lambda _: [("python", lambda: "3")])
        points = [Mock(load=load, dist=Mock(version="9")) for load in loads]
        for point in points:
            point.name = point.dist.name = "beside"
        monkeypatch.setattr(doctor, "entry_points", lambda *, group: points if group == "sluice.checks" else [])
        lines: list[str] = []
        code = run_doctor(DEFAULTS, lines.append)
        lines.remove("ok    parts of the job: none is of an extra")
        return code, lines

    return run


def test_without_extras_a_line_says_what_is_not_asked(told: Callable[..., tuple[int, list[str]]]) -> None:
    code, lines = told()

    assert code == 0
    assert lines[0] == "ok    python: 3"
    assert lines[1].startswith("warn  cluster: not asked for brokers, topics, gateways, checkpoints and tables; pip i")


def test_checks_of_an_extra_begin_at_once_and_one_that_hangs_fails_its_own_line_alone(
    told: Callable[..., tuple[int, list[str]]],
) -> None:
    other = Event()

    def second() -> str:
        other.set()
        return "begun"

    def check(_: Settings, ask: Ask) -> None:
        assert ask({"first": lambda: str(other.wait(60)), "second": second}, 60.0, "")
        assert not ask({"third": lambda: str(Event().wait())}, 0.1, "it hangs")

    assert told(Mock(return_value=check)) == (
        1,
        ["ok    python: 3", "ok    first: True", "ok    second: begun", "FAIL  third: no answer in 0 s; it hangs"],
    )


def test_an_extra_that_does_not_fit_is_a_failure_and_the_others_are_asked(
    told: Callable[..., tuple[int, list[str]]],
) -> None:
    code, lines = told(Mock(side_effect=ImportError("no name x")), Mock(return_value=lambda _, ask: ask({}, 1.0, "")))

    assert code == 1
    assert lines[1].startswith("FAIL  beside is of beside 9, which doesn't fit this sluice-kafka (no name x); install")


def test_a_partition_without_a_leader_is_no_question_of_rights() -> None:
    leaderless = LeaderNotAvailableError("partition 0 of topic quota-requests has no leader")

    assert unread_text(leaderless, "read it") == f"can't be read ({leaderless})"
    assert unread_text(TopicAuthorizationFailedError("x"), "read it").endswith("; check that the user may read it")
