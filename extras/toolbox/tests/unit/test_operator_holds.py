"""Holds of operators in the job: how long each lasts, over restarts, lost records and tables that can't be read."""

from pathlib import Path

import pytest

from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import MAX_EXACT, MAX_TIMESTAMP_MS, CountedEntity
from sluice.state.quotas.entity import Tags
from sluice_reading.holds_table import HoldsTable
from sluice_reading.operator_holds import MAX_LASTING_MS
from sluice_toolbox.holds_watch import HoldsWatch
from sluice_toolbox.operator_holds import MAX_HOLDS, NONE_TAKEN, REMEMBERED_MS, OperatorHolds
from tests.builders import hold_of

NOW_MS = 1_760_011_200_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
APP, ETL = Tags(client_id="app"), Tags("etl")


def ends_in_ms(decider: OperatorHolds, now_ms: int) -> dict[str, int]:
    """The time left to each hold, by client-id or user."""
    held = decider.decide(now_ms).overrides
    return {
        str(each.entity and (each.entity.client_id or each.entity.user)): (each.until_ms or 0) - now_ms for each in held
    }


def record(decider: OperatorHolds, now_ms: int) -> Overrides:
    decided = decider.decide(now_ms)
    return Overrides(7, now_ms, decider.fresh_ms, [*decided.overrides], command=decided.command)


def test_a_hold_lasts_on_over_restarts_as_it_was_taken_and_one_that_has_ended_does_not_begin_anew() -> None:
    holds = [hold_of(APP, NOW_MS, 10 * MINUTE_MS, 5), hold_of(ETL, NOW_MS, MINUTE_MS, 6)]
    decider, found = OperatorHolds(lambda: holds), []
    decider.remember(Overrides(1, NOW_MS, 1, command=NONE_TAKEN))
    for minutes in range(0, 12, 2):
        now_ms = NOW_MS + minutes * MINUTE_MS
        found.append(ends_in_ms(decider, now_ms))
        before, decider = record(decider, now_ms), OperatorHolds(lambda: holds)
        decider.remember(before)
    assert found[0] == {"app": 10 * MINUTE_MS, "etl": MINUTE_MS}
    assert found[1:] == [{"app": minutes * MINUTE_MS} for minutes in (8, 6, 4, 2)] + [{}]


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_a_command_that_came_while_no_job_ran_is_taken_at_its_start_whatever_the_operators_clock_says(
    ahead_ms: int,
) -> None:
    holds = [hold_of(APP, NOW_MS + ahead_ms, MINUTE_MS, 5)]
    decider = OperatorHolds(lambda: holds)
    decider.remember(Overrides(1, NOW_MS - HOUR_MS, 1, command=NONE_TAKEN))
    assert ends_in_ms(decider, NOW_MS) == {"app": MINUTE_MS}
    holds.append(hold_of(APP, NOW_MS, 0, 6))
    assert ends_in_ms(decider, NOW_MS) == {}


def test_without_a_record_of_what_was_taken_a_hold_ends_by_the_operators_clock() -> None:
    """The limits topic is lost, or another cluster's: a hold of last month must not begin anew."""
    holds = [
        hold_of(APP, NOW_MS - 2 * MINUTE_MS, 10 * MINUTE_MS, 5),
        hold_of(ETL, NOW_MS - 720 * HOUR_MS, 10 * MINUTE_MS, 4),
        hold_of(Tags("ahead"), NOW_MS + HOUR_MS, 10 * MINUTE_MS, 3),
    ]
    assert ends_in_ms(OperatorHolds(lambda: holds), NOW_MS) == {"app": 8 * MINUTE_MS, "ahead": 10 * MINUTE_MS}


def test_until_the_commands_could_be_read_all_holds_that_were_published_go_on() -> None:
    holds = [hold_of(APP, NOW_MS, 10 * MINUTE_MS, 5)]
    first, table = OperatorHolds(lambda: holds), holds[:0]
    before = record(first, NOW_MS)
    decider = OperatorHolds(lambda: table or None)
    decider.remember(before)
    assert decider.decide(NOW_MS + MINUTE_MS) == first.decide(NOW_MS + MINUTE_MS)
    assert ends_in_ms(decider, NOW_MS + 11 * MINUTE_MS) == {}
    table += holds
    assert ends_in_ms(decider, NOW_MS + MINUTE_MS) == {"app": 9 * MINUTE_MS}


@pytest.mark.parametrize("runs", [True, False])
def test_a_table_from_a_backup_is_obeyed_whatever_was_taken_before_and_holds_nobody_anew(runs: bool) -> None:
    """For what is left by the operator's clock, whether the job runs meanwhile or not."""
    backup = [hold_of(APP, NOW_MS, 10 * MINUTE_MS, 5), hold_of(ETL, NOW_MS - HOUR_MS, HOUR_MS, 4)]
    holds = [*backup, hold_of(APP, NOW_MS, 0, 6), hold_of(ETL, NOW_MS, 0, 7)]
    decider = OperatorHolds(lambda: holds)
    decider.remember(Overrides(1, NOW_MS, 1, command=3))
    assert ends_in_ms(decider, NOW_MS) == {}
    before, holds = record(decider, NOW_MS), backup
    if not runs:
        decider = OperatorHolds(lambda: holds)
        decider.remember(before)
    assert ends_in_ms(decider, NOW_MS + MINUTE_MS) == {"app": 9 * MINUTE_MS}
    holds = [*backup, hold_of(APP, NOW_MS - HOUR_MS, 10 * MINUTE_MS, 6)]
    assert ends_in_ms(decider, NOW_MS + MINUTE_MS) == {"app": 10 * MINUTE_MS}


def test_a_hold_goes_on_until_its_end_although_the_table_was_lost_and_made_again() -> None:
    """By a `hold` of somebody else. A command for the client counts as always."""
    holds = [hold_of(APP, NOW_MS, 10 * MINUTE_MS, 5)]
    decider = OperatorHolds(lambda: holds)
    decider.remember(Overrides(1, NOW_MS, 1, command=NONE_TAKEN))
    assert ends_in_ms(decider, NOW_MS) == {"app": 10 * MINUTE_MS}
    holds = [hold_of(ETL, NOW_MS, 20 * MINUTE_MS, 6)]
    assert ends_in_ms(decider, NOW_MS) == {"app": 10 * MINUTE_MS, "etl": 20 * MINUTE_MS}
    assert ends_in_ms(decider, NOW_MS + 5 * MINUTE_MS) == {"app": 5 * MINUTE_MS, "etl": 15 * MINUTE_MS}
    assert ends_in_ms(decider, NOW_MS + 10 * MINUTE_MS) == {"etl": 10 * MINUTE_MS}
    holds += [hold_of(APP, NOW_MS, 5 * MINUTE_MS, 7), hold_of(APP, NOW_MS, 0, 8)]
    assert ends_in_ms(decider, NOW_MS + 10 * MINUTE_MS) == {"etl": 10 * MINUTE_MS}


def test_the_job_forgets_commands_that_ended_a_month_ago(tmp_path: Path) -> None:
    """The table keeps them; the job knows the last one's number."""
    table = HoldsTable(str(tmp_path / "quotas"))
    for number in range(20):
        table.append(hold_of(Tags(client_id=f"app-{number}"), NOW_MS + number * HOUR_MS, HOUR_MS))
    watch = HoldsWatch(table, lambda: None, lambda _: None, clock_ms=lambda: NOW_MS + REMEMBERED_MS + 19 * HOUR_MS)
    decider = OperatorHolds(lambda: watch.holds)

    watch.poll()

    assert [hold.client.client_id for hold in watch.holds or ()] == ["app-19"]
    assert decider.decide(NOW_MS + REMEMBERED_MS).command == NOW_MS + 19 * HOUR_MS
    assert len(table.commands()) == 20


def test_of_too_many_holds_the_last_count_and_the_log_has_why() -> None:
    """Two operators may hold the last one at once, and one whose clock is ahead takes those in force for ended."""
    holds = [hold_of(Tags(f"u{number}"), NOW_MS, MINUTE_MS, number + 2) for number in range(MAX_HOLDS + 1)]
    decider = OperatorHolds(lambda: holds)
    decider.remember(Overrides(1, NOW_MS, 1, command=NONE_TAKEN))
    assert list(ends_in_ms(decider, NOW_MS)) == [f"u{number}" for number in range(1, MAX_HOLDS + 1)]
    assert (
        decider.trouble == "of 101 clients that are held only the last 100 are stopped; release some, or lower quotas"
    )
    ends_in_ms(decider, NOW_MS + MINUTE_MS)
    assert decider.trouble is None


def test_a_clock_of_the_job_that_is_set_back_makes_no_hold_longer() -> None:
    decider = OperatorHolds(lambda: [hold_of(APP, NOW_MS, 10 * MINUTE_MS, 5)])
    decider.remember(Overrides(1, NOW_MS, 1, command=NONE_TAKEN))
    assert ends_in_ms(decider, NOW_MS) == {"app": 10 * MINUTE_MS}
    assert ends_in_ms(decider, NOW_MS + MINUTE_MS) == {"app": 9 * MINUTE_MS}
    assert ends_in_ms(decider, NOW_MS + MINUTE_MS - HOUR_MS) == {"app": 9 * MINUTE_MS}
    assert ends_in_ms(decider, NOW_MS + 6 * MINUTE_MS - HOUR_MS) == {"app": 4 * MINUTE_MS}


FOREVER = Override("hold", entity=CountedEntity(client_id="app"), until_ms=MAX_TIMESTAMP_MS, consumers=True)


def test_a_record_that_somebody_forged_while_no_job_ran_neither_ends_a_hold_nor_makes_one_longer() -> None:
    holds = [hold_of(APP, NOW_MS, 0, 5), hold_of(ETL, NOW_MS, 10 * MINUTE_MS, 6)]
    decider = OperatorHolds(lambda: holds)
    decider.remember(Overrides(1, NOW_MS, 1, [FOREVER], command=MAX_EXACT))
    assert ends_in_ms(decider, NOW_MS) == {"etl": 10 * MINUTE_MS}
    holds[0] = hold_of(APP, NOW_MS, MINUTE_MS, 5)
    decider = OperatorHolds(lambda: holds)
    decider.remember(Overrides(1, NOW_MS, 1, [FOREVER], command=6))
    assert ends_in_ms(decider, NOW_MS) == {"app": MINUTE_MS}


def test_without_a_table_a_forged_record_holds_nobody_for_longer_than_a_command_could() -> None:
    """Without a row there is no release; the job would say it again until its end."""
    decider = OperatorHolds(lambda: None)
    endless = Override("hold", entity=CountedEntity("etl"), consumers=True)
    decider.remember(Overrides(1, NOW_MS, 1, [FOREVER, endless, Override("tighten", 0.5, gateway="b-1")], command=6))
    assert ends_in_ms(decider, NOW_MS) == {"app": MAX_LASTING_MS, "etl": MAX_LASTING_MS}
    assert ends_in_ms(decider, NOW_MS + MAX_LASTING_MS) == {}
