"""The gate of speed: its verdict, and the choice of the commit to compare with."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice_lab.benchmarks.gate import Compared, Found, GateOptions, OtherLayoutError, Part, Side, baseline, compare

BEFORE = Side("before", Path("before"), Path(sys.executable))
NOW = Side("now", Path("now"), Path(sys.executable))


@pytest.mark.parametrize(
    ("is_cost", "before", "now", "is_worse"),
    [
        (True, [20.0, 30.0], [21.0, 40.0], False),  # of a cost the least counts
        (True, [20.0], [21.1], True),
        (False, [0.6, 0.1, 0.9], [0.57, 0.58, 0.2], False),  # of anything else the median
        (False, [0.6], [0.569], True),
    ],
)
def test_more_than_five_per_cent_are_worse(
    is_cost: bool, before: list[float], now: list[float], is_worse: bool
) -> None:
    assert Compared("it", "", is_cost, before, now).is_worse(5.0) is is_worse


@dataclass
class Scripted:
    """A program whose values are known."""

    values: dict[str, list[float]]
    order: list[str]

    def __call__(self, side: Side, _folder: Path, _quick: bool) -> list[Found]:
        self.order.append(side.name)
        return [Found("cost", "", True, [self.values[side.name].pop(0)])]


def compared(before: list[float], now: list[float]) -> tuple[Compared, list[str]]:
    program = Scripted({"before": before, "now": now}, [])
    (found,) = compare(Part("it", 2, program), BEFORE, NOW, GateOptions())
    return found, program.order


def test_both_sides_take_turns_and_each_is_first_in_one_of_two() -> None:
    _, order = compared([10.0, 10.0], [10.0, 10.0])
    assert order == ["before", "now", "now", "before"]


def test_a_side_that_seems_slower_has_two_more_turns() -> None:
    """A disturbance ends."""
    disturbed, order = compared([10.0, 10.0, 10.0], [12.0, 12.0, 10.1])
    assert not disturbed.is_worse(5.0)
    assert len(order) == 6

    slower, order = compared([10.0] * 4, [12.0] * 4)
    assert slower.is_worse(5.0)
    assert len(order) == 8


def test_a_quantity_that_one_side_has_not_is_left_out() -> None:
    program = Part("it", 1, lambda side, *_: [Found("both", "", True, [1.0]), Found(side.name, "", True, [1.0])])
    assert [each.name for each in compare(program, BEFORE, NOW, GateOptions())] == ["both"]


def test_a_commit_without_the_program_can_not_be_compared(tmp_path: Path) -> None:
    with pytest.raises(OtherLayoutError, match=r"^before has no sluice_lab\.benchmarks\.harness: there is nothing to"):
        BEFORE.run(tmp_path / "log", "sluice_lab.benchmarks.harness")


@pytest.fixture
def repository(here: Path) -> Path:
    """A repository with two commits on main."""
    git("init", "--quiet", "--initial-branch=main")
    commit()
    commit()
    return here


def git(*arguments: str) -> str:
    own = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.run([*own, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    git("commit", "--quiet", "--allow-empty", "--message=one more")
    return git("rev-parse", "--short", "HEAD")


@pytest.mark.usefixtures("repository")
def test_the_baseline_is_the_newest_tag_before_head() -> None:
    tagged = git("rev-parse", "--short", "HEAD")
    git("tag", "v1.0.0")
    parent = commit()

    assert baseline(None) == tagged
    assert baseline("HEAD") != baseline("HEAD~1") == tagged
    commit()
    assert baseline("HEAD~1") == parent


@pytest.mark.usefixtures("repository")
def test_without_a_tag_it_is_where_head_left_main_or_the_parent_of_head() -> None:
    parent, fork = git("rev-parse", "--short", "HEAD~1"), git("rev-parse", "--short", "HEAD")
    assert baseline(None) == parent

    git("checkout", "--quiet", "-b", "work")
    commit()
    commit()
    assert baseline(None) == fork
