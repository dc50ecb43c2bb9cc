"""The screen of `sluice top` and its keys, without a terminal."""

import json
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from sluice.process.clock import now_ms
from sluice.process.format import moment
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.troubles import Facts, Flow, JobSeen, Trouble
from sluice_insight.commands.top import (
    QUOTAS,
    SORTS,
    View,
    after_key,
    json_row,
    row_lines,
    rows_of,
    screen,
    snapshot_lines,
)
from sluice_insight.live import LiveModel
from sluice_insight.texts import counter_name
from sluice_insight.troubles_now import TroublesNow
from sluice_reading.job_probe import JobAnswer, JobProbe
from sluice_reading.output import json_text
from tests.builders import AT_MS, DEFAULTS, decision, heartbeat_of, unlimited_of
from tests.web import answering


def charged(
    user: str, rate: float, limit: float | None = 1000.0, wait_ms: int = 0, age_ms: int = 0, **charge: object
) -> bytes:
    charge |= {"limit": limit, "rate": rate}
    return json.dumps(decision(AT_MS - age_ms, user, wait_ms=wait_ms, charge=charge)).encode()


def model_of(*records: bytes) -> LiveModel:
    model = LiveModel()
    model.on_records(records, AT_MS)
    return model


def nothing_wrong() -> TroublesNow:
    return TroublesNow({}, DEFAULTS.topics, JobProbe(None))


def shown(model: LiveModel, width: int = 200, now: TroublesNow | None = None, **options: Any) -> str:
    """The screen on a terminal, with the escape sequences of colours."""
    console = Console(width=width, height=10, force_terminal=True, highlight=False, **{"color_system": None} | options)
    with console.capture() as captured:
        reader: Any = SimpleNamespace(model=model, since_ms=0, last_read_ms=0, now=now or nothing_wrong())
        console.print(screen(reader, View(), 10, width))
    return captured.get()


def test_what_is_wrong_is_above_the_rows_and_figures_of_then_are_dashes() -> None:
    """A rate of 0 would say that a client which waits is idle."""
    now = nothing_wrong()
    now.seen = Facts(job=JobSeen(is_locked=False), flow=Flow(now_ms(), now_ms() - 145_000, 1_595))

    lines = [line.split() for line in shown(model_of(charged("alice", 800.0)), now=now).splitlines()]

    assert lines[2][:5] == ["FAIL", "no", "job", "runs,", "1595"]
    assert lines[5][:7] == ["alice", "producer_byte_rate", "—", "1", "kB/s", "—", "—"]


def test_one_table_says_that_it_does_not_know_what_is_wrong() -> None:
    """No line above the rows is read as "all is well"."""
    now = nothing_wrong()
    reader: Any = SimpleNamespace(model=model_of(charged("alice", 800.0)), since_ms=now_ms(), decided=1, now=now)

    unknown, *_ = snapshot_lines(reader, View(), 200)
    now.is_known = True
    known, *_ = snapshot_lines(reader, View(), 200)

    assert unknown.startswith("not known: what else is wrong")
    assert known.startswith("1 decisions in ")


def test_a_row_says_until_when_its_client_is_held() -> None:
    now = nothing_wrong()
    hold = Override("hold", entity=CountedEntity(user="alice"), reason="eve: it floods", until_ms=now_ms() + 60_000)
    now.limits.overrides["operator"] = Overrides(1, now_ms(), 60_000, [hold])

    text = shown(model_of(charged("alice", 800.0)), now=now)

    (row,) = (line for line in text.splitlines() if line.startswith("alice"))
    assert f"held until {moment(hold.until_ms or 0)[-8:]} UTC (eve: it floods)" in row


def names(model: LiveModel, view: View, most: int = 10) -> list[str]:
    return [counter_name(row.key) for row in rows_of(model, view, AT_MS, most)]


def test_the_nearest_to_its_limit_is_first_and_who_waits_is_at_it() -> None:
    model = model_of(
        charged("quiet", 100.0), charged("busy", 900.0), charged("waits", 950.0, wait_ms=5000, age_ms=1000)
    )

    found = rows_of(model, View(), AT_MS, 10)

    assert [(counter_name(row.key), row.used, row.wait_ms, row.waited_ms) for row in found] == [
        ("waits", 1.0, 4000, 1000),
        ("busy", 0.9, 0, 0),
        ("quiet", 0.1, 0, 0),
    ]
    assert found[1].remaining == 100.0


def test_counters_without_a_limit_are_not_shown() -> None:
    assert names(model_of(charged("free", 1e9, limit=None), charged("bound", 1.0)), View()) == ["bound"]


@pytest.mark.parametrize(
    ("sort", "expected"), [("usage", ["b", "a"]), ("rate", ["a", "b"]), ("wait", ["a", "b"]), ("name", ["a", "b"])]
)
def test_orders(sort: str, expected: list[str]) -> None:
    model = model_of(charged("a", 200.0, limit=10_000.0), charged("b", 100.0, limit=200.0))

    assert names(model, View(sort=sort)) == expected


def test_only_the_first_rows_are_made() -> None:
    model = model_of(*(charged(f"user-{number}", float(number)) for number in range(100)))

    assert names(model, View(), most=2) == ["user-99", "user-98"]


def test_filters_by_quota_and_by_text_in_any_case() -> None:
    model = model_of(charged("Alice", 1.0), charged("bob", 1.0, quota="consumer_byte_rate"))

    assert names(model, View(text="ALI")) == ["Alice"]
    assert names(model, View(quota=QuotaKind.CONSUMER_BYTE_RATE)) == ["bob"]
    assert names(model, View(text="Alice", typed="bo")) == ["bob"]


def test_a_tenant_is_named_as_one_found_by_its_name_and_in_the_order_of_names() -> None:
    """A user may have the same name."""
    of_tenants = [charged("x", 500.0, entity={"tenant": name}, matched="tenant") for name in ("shop", "bank")]
    model = model_of(*of_tenants, charged("shop", 100.0), charged("a", 10.0))

    assert names(model, View(text="SHO")) == ["tenant shop", "shop"]
    assert names(model, View(sort="name")) == ["tenant bank", "tenant shop", "a", "shop"]
    assert json_row(rows_of(model, View(), AT_MS, 1)[0])["entity"] in ({"tenant": "bank"}, {"tenant": "shop"})


def test_keys() -> None:
    def pressed(*keys: str) -> View | None:
        view: View | None = View()
        for key in keys:
            assert view is not None
            view = after_key(view, key)
        return view

    assert pressed(*"sss") == View(sort=SORTS[3])
    assert pressed(*"ssss") == View()
    assert pressed(*"f" * len(QUOTAS)) == View()
    assert pressed(*"/alx", "\x7f", "i", "\n") == View(text="ali")
    assert pressed(*"/alice", "\x1b") == View()
    assert pressed(*"/a\ns", "\x1b") == View(sort="wait")
    assert pressed(*"/a\x00\x07") == View(typed="a")
    assert pressed("x") == View()
    assert pressed("q") is None


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b]0;title\x07", "a\nb", "\u202eeviL", "日本" * 40, "e\u0301" * 500, "x" * 30_000]
)
def test_hostile_names_neither_run_nor_break_the_table(name: str) -> None:
    model = model_of(charged(name, 500.0), charged("alice", 100.0))
    lines = list(row_lines(rows_of(model, View(), AT_MS, 10)))

    assert all(line.isprintable() for line in lines)
    assert len({cell_len(line[: line.index("producer_byte_rate")]) for line in lines[1:]}) == 1
    assert max(map(cell_len, shown(model, width=60).splitlines())) <= 60


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (80, "CLIENT QUOTA USED WAITED/MIN"),
        (100, "CLIENT QUOTA USED LIMIT MEAN RATE WAITED/MIN"),
        (120, "CLIENT QUOTA USED LIMIT MEAN RATE WAITED/MIN MIN/H"),
        (200, "CLIENT QUOTA USED LIMIT MEAN RATE LEFT LEVEL WAITED/MIN MIN/H LAST 3 MINUTES"),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_no_line_is_cut(width: int, columns: str) -> None:
    model = model_of(charged("alice", 900.0, wait_ms=5000), charged("payments-service-of-the-north", 900.0))
    model.on_record(charged("bob", 900.0, mode="shadow", matched="user+default client-id"), AT_MS)
    lines = shown(model, width).splitlines()

    assert " ".join(lines[3].split()) == columns
    assert max(map(cell_len, lines)) <= width
    assert "…" not in "".join(lines[:5])


def test_the_heaviest_clients_without_a_limit_are_named_below_as_far_as_there_is_room() -> None:
    unlimited = [unlimited_of(name) for name in ("noisy\x1b[2J", "other")]
    model = model_of(charged("alice", 900.0), json.dumps(heartbeat_of(unlimited=unlimited)).encode())
    of_noisy, of_other = (
        f"user 'ANONYMOUS' and client-id '{name}' 24 MB/s in, 0 B/s out" for name in (r"noisy\x1b[2J", "other")
    )

    last = [shown(model, width).rstrip().splitlines()[-1].rstrip() for width in (100, 160)]
    assert last == [f"without a limit: {of_noisy}", f"without a limit: {of_noisy}  {of_other}"]


def test_a_row_over_its_limit_has_a_colour_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean of a minute: the sampled rate passes the limit after each charge."""
    at_limit, model = model_of(charged("alice", 1200.0)), LiveModel()
    for ago_s in range(60, 0, -1):
        model.on_record(charged("alice", 1200.0, age_ms=ago_s * 1000, value=1200.0), AT_MS)

    monkeypatch.setattr("sluice_insight.commands.top.now_ms", lambda: AT_MS)
    assert "\x1b[33malice" in shown(at_limit, color_system="standard")
    assert "\x1b[31malice" in shown(model, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(model, color_system="standard")


def test_a_row_has_a_json_form_without_nan() -> None:
    [row] = rows_of(model_of(charged("alice", 500.0)), View(), AT_MS, 1)

    found = json.loads(json_text(json_row(row)))

    assert (found["entity"], found["usage"], found["points"][-1]) == ({"user": "alice"}, 0.5, 1.0)
    assert set(found) == {
        *("entity", "quota", "mode", "matched", "limit", "rate", "mean", "usage", "remaining", "wait_ms"),
        *("waited_ms", "minutes_throttled", "points"),
    }


@pytest.mark.parametrize(("off_s", "said"), [(3_600, ["1 h 0 min behind"]), (-3_600, ["1 h 0 min ahead of"]), (30, [])])
def test_a_clock_that_is_not_the_jobs_is_said_once_with_the_cure(off_s: int, said: list[str]) -> None:
    """All ages on the screen would be off by as much."""
    date = format_datetime(datetime.fromtimestamp(AT_MS // 1000 + off_s, UTC), usegmt=True)
    with answering(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nConnection: close\r\n\r\n{{}}".encode()) as port:
        now = TroublesNow({}, DEFAULTS.topics, JobProbe(f"http://127.0.0.1:{port}"))
        now.compare_clocks(lambda: AT_MS)

    assert [each.line for each in now.troubles(model_of(), AT_MS)] == [
        f"this machine's clock is {each} the job's: ages and times here are off by as much; set the clocks by NTP"
        for each in said
    ]


def test_a_job_that_names_a_time_beyond_all_dates_is_believed_in_nothing() -> None:
    said = b'{"troubles": [{"name": "clocks", "severity": "fail", "text": "x", "since_ms": 253402300800000}]}'
    with answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + said) as port:
        probe = JobProbe(f"http://127.0.0.1:{port}")
        probe.ask()
    assert (probe.answers, [each.line for each in probe.troubles]) == (False, [])


def test_a_clock_that_is_off_here_hides_none_that_the_job_names() -> None:
    now = TroublesNow({}, DEFAULTS.topics, JobProbe("http://127.0.0.1:1"))
    now.probe.said = JobAnswer([Trouble("clocks", "fail", "ahead of this machine's: gateway a by 90 s")])
    now.job_ahead_ms = 3_600_000
    (found,) = now.troubles(model_of(), AT_MS)
    assert re.match("fail this machine's clock is 1 h .*gateway a by 90 s", f"{found.severity} {found.line}")
