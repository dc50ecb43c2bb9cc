"""The one model of what is wrong now: facts in, troubles out, and an unknown fact makes none."""

from typing import Any

import pytest

from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import RELEASE, CountedEntity, Heartbeat, Load, LogDirectory
from sluice.state.shares.load import BrokerLimits, Capacities, Capacity, DiskFloor
from sluice.state.troubles import (
    KNOWN,
    BrokersSeen,
    DeadLettersSeen,
    Facts,
    Flow,
    JobSeen,
    TopicsSeen,
    Trouble,
    Unwritten,
    in_order,
    troubles_of,
)

NOW_MS = 100_000_000
GONE, ALIVE, MUTE = JobSeen(is_locked=False), JobSeen(is_locked=True, answers=True), JobSeen(True, answers=False)
WAITING = Flow(NOW_MS, NOW_MS - 145_000, 1_595)
LATE = Flow(NOW_MS, NOW_MS - 9_000, 7)
DONE = Flow(NOW_MS - 60_000, NOW_MS - 60_000, 0)
HOLD = Override("hold", entity=CountedEntity(client_id="batch"), reason="eve: it floods", until_ms=NOW_MS + 5_000)
FULL = BrokerLimits(Capacities(default=Capacity(100.0)), DiskFloor(free_bytes=1_000))


def beats(**each: Any) -> dict[str, Heartbeat]:
    return {"broker 1": Heartbeat(5, 0, **{"release": RELEASE} | each)}


def said(*overrides: Override, decider: str = "operator") -> dict[str, Overrides]:
    return {decider: Overrides(7, NOW_MS, 60_000, list(overrides))}


CASES: list[tuple[str, dict[str, Any], list[str], str]] = [
    ("killed", {"job": GONE, "flow": WAITING}, ["job_away"], "no job runs, 1595 requests wait since 03:44:15 UTC: "),
    ("killed just now", {"job": GONE, "flow": LATE}, ["job_away"], "no job runs, 7 requests wait"),
    ("of another machine, at a request", {"job": JobSeen(False, False), "flow": Flow(NOW_MS, NOW_MS - 900, 7)}, [], ""),
    ("of shared storage", {"job": JobSeen(None, answers=False), "flow": WAITING}, ["job_away"], "no job runs"),
    ("of shared storage, busy on another machine", {"job": JobSeen(None, answers=False), "flow": LATE}, [], ""),
    ("stopped, nobody waits", {"job": GONE, "flow": DONE}, [], ""),
    ("never started", {"job": GONE, "flow": Flow(NOW_MS, None, 3)}, ["job_away"], "and the topic has no decision"),
    ("stopped, no broker", {"job": GONE}, [], ""),
    ("hangs", {"job": MUTE, "flow": WAITING}, ["job_away"], "the job doesn't answer at its health port"),
    ("its port is taken", {"job": MUTE, "flow": LATE}, [], ""),
    ("stands still", {"job": ALIVE, "flow": WAITING}, ["decisions_stale"], "no decision, 1595 requests wait since"),
    ("starts", {"job": JobSeen(True, True, 41_000), "flow": WAITING}, ["starting"], "starts, 1595 requests wait since"),
    ("starts for too long", {"job": JobSeen(True, True, 120_000), "flow": WAITING}, ["decisions_stale"], ""),
    ("starts, nobody waits", {"job": JobSeen(True, True, 41_000), "flow": DONE}, [], ""),
    ("nobody knows the job", {"flow": WAITING}, ["decisions_stale"], ""),
    ("a long micro-batch", {"job": ALIVE, "flow": LATE}, [], ""),
    (
        "full disk",
        {"job": ALIVE, "flow": WAITING, "queries": {"enforce": "is backing off: no room", "audit": None}},
        ["enforce_down"],
        "query enforce is backing off: no room: nothing is decided",
    ),
    ("no tables", {"queries": {"enforce": None, "audit": "is backing off: x"}}, ["audit_down"], "requests are decided"),
    ("tables behind", {"unwritten": Unwritten(9, NOW_MS - 90_000)}, ["audit_behind"], "committed since 03:45:10 UTC: "),
    ("tables behind, no job", {"unwritten": Unwritten(9)}, ["audit_behind"], "9 decisions and dead letters should be"),
    ("tables behind, audit down", {"queries": {"audit": "is down"}, "unwritten": Unwritten(9)}, ["audit_down"], ""),
    ("tables up to date", {"unwritten": Unwritten(0, NOW_MS - 90_000)}, [], ""),
    ("two jobs", {"foreign": ["a1"]}, ["foreign_decisions"], "(a1)"),
    ("server away", {"brokers": BrokersSeen(["b:2"])}, ["broker_away"], "b:2 of bootstrap.servers doesn't answer: par"),
    ("away", {"brokers": BrokersSeen(away={3: "t"})}, ["broker_away"], "broker 3 has replicas of t and is away"),
    ("no leader", {"brokers": BrokersSeen(leaderless=["t-1"])}, ["no_leader"], "no broker leads t-1"),
    ("topic gone", {"topics": TopicsSeen(["t"])}, ["topic_unfit"], "not there: topic t (`sluice topics` makes"),
    ("topic altered", {"topics": TopicsSeen(unfit={"topic t: x": False})}, ["topic_unfit"], "topic t: x"),
    ("all well", {"brokers": BrokersSeen(), "plugins": {1: "there"}, "beats": beats()}, [], ""),
    ("no plugin at all", {"plugins": {1: "missing", 2: "missing"}, "beats": {}}, [], ""),
    ("one without", {"plugins": {1: "there", 2: "missing"}}, ["plugin_missing"], "broker 2 of 2 is without"),
    ("one deaf", {"plugins": {1: "deaf"}}, ["plugin_deaf"], "broker 1 of 1 is without the plugin's reporter"),
    (
        "deaf while it runs",
        {"beats": beats(metrics_seen=False)},
        ["plugin_deaf"],
        "broker 1 of 1 with the plugin doesn't hand",
    ),
    ("not heard yet", {"plugins": {2: "there"}, "beats": {}, "heard_s": 0}, [], ""),
    ("silent", {"plugins": {2: "there"}, "beats": {}, "heard_s": 60}, ["gateway_silent"], "no heartbeat in 60 s"),
    ("heartbeats unknown", {"plugins": {2: "there"}}, [], ""),
    (
        "one old",
        {"beats": beats(release="0.1.9")},
        ["plugin_old"],
        "broker 1 of 1 with the plugin has 0.1.9 of it, the job is 0.2.0",
    ),
    (
        "one older",
        {"beats": beats(release=None)},
        ["plugin_old"],
        "broker 1 of 1 with the plugin has a release before 0.2.0 of it",
    ),
    ("one newer", {"beats": beats(release="0.10.0rc1")}, [], ""),
    (
        "half dead",
        {"beats": beats(threads_down=1)},
        ["threads_down"],
        "broker 1 of 1 with the plugin: threads that don't work",
    ),
    (
        "disk",
        {"beats": beats(load=Load(1, log_dirs=[LogDirectory("/data", 5, 9_000)])), "capacities": FULL},
        ["disk_low"],
        "producers are stopped",
    ),
    ("full", {"beats": beats(load=Load(1, 120.0)), "capacities": FULL}, ["broker_full"], "1 of 1 brokers are at their"),
    ("capacities unknown", {"beats": beats(load=Load(1, 120.0))}, [], ""),
    (
        "tightened",
        {"overrides": said(Override("tighten", 0.5, gateway="b-1-0a1b2c3d", reason="bytes in"), decider="elastic")},
        ["tightened"],
        "get 0.50 to 0.50 of their shares there, or their reservations (broker 1: bytes",
    ),
    ("hold", {"overrides": said(HOLD)}, ["hold"], "producers of client-id batch until 03:46:45 UTC by operator (eve: "),
    ("release", {"overrides": said(HOLD)}, ["hold"], "; `sluice quotas release` ends"),
    ("nothing overridden", {"overrides": said()}, [], ""),
    (
        "garbage",
        {"dead_letters": DeadLettersSeen(17, "bad")},
        ["dead_letters"],
        '17 dead letters in the last hour, most "bad": ',
    ),
    ("no garbage", {"dead_letters": DeadLettersSeen(0)}, [], ""),
    ("own login", {"own_login": ("sluice is limited", "exempt it")}, ["own_login"], "come late; exempt it"),
    ("own login free", {"own_login": ("", "")}, [], ""),
    ("input", {"inputs": {"quotas": "no table", "holds": None}}, ["input_unreadable"], "read last of quotas: no table"),
    ("table", {"tables": {"decisions": "/d can't be read", "x": None}}, ["table_unreadable"], "/d can't be read"),
    ("mirror", {"mirror": "no rights"}, ["mirror_down"], "(no rights): the last ones stay in force"),
    ("native", {"native": "no library"}, ["native_missing"], "no library"),
    ("clock", {"ahead_ms": {"a": 3_000}}, ["clocks"], "clocks ahead of this machine's: gateway a by 3 s"),
    ("clocks right", {"ahead_ms": {"a": 900, "b": -1_900}}, [], ""),
]


@pytest.mark.parametrize(("facts", "names", "words"), [each[1:] for each in CASES], ids=[each[0] for each in CASES])
def test_facts_make_their_troubles(facts: dict[str, Any], names: list[str], words: str) -> None:
    found = troubles_of(Facts(**facts), NOW_MS)

    assert [each.name for each in found] == names
    assert all(each.severity in KNOWN[each.name] and each.meanwhile and each.next for each in found)
    assert words in "".join(each.line for each in found)


@pytest.mark.parametrize(
    "job", [GONE, MUTE, ALIVE, JobSeen(True, True, 41_000)], ids=["gone", "mute", "alive", "starts"]
)
@pytest.mark.parametrize("later_ms", [0, 2_900])
def test_all_who_look_say_the_same_time_since_which_a_trouble_is(job: JobSeen, later_ms: int) -> None:
    """By the time of the newest answer, if they have just begun, and if they saw it come, up to a poll later."""
    seen = [WAITING, WAITING._replace(still_ms=143_200, is_measured=True), WAITING._replace(still_ms=9_000)]
    troubles = [troubles_of(Facts(job=job, flow=flow, looked_ms=NOW_MS), NOW_MS + later_ms) for flow in seen]

    assert [each.since_ms for (each,) in troubles] == [NOW_MS - (job.step_ms or 145_000)] * 3


def test_every_known_kind_has_a_case() -> None:
    assert {name for _, _, names, _ in CASES for name in names} == set(KNOWN)


def test_nothing_known_is_no_trouble() -> None:
    assert troubles_of(Facts(), NOW_MS) == []


def test_a_clock_that_is_a_minute_off_is_a_failure() -> None:
    """Some seconds are a warning: the severity of a kind may depend on its figures."""
    severities = [troubles_of(Facts(ahead_ms={"a": ms}), NOW_MS)[0].severity for ms in (3_000, -60_000)]

    assert severities == ["warn", "fail"]
    assert KNOWN["clocks"] == ("warn", "fail")


def test_failures_come_first_and_of_each_name_the_first_counts() -> None:
    """A viewer's own facts come before those that the job has reported."""
    hold = Trouble("hold", "warn", "own")
    found = in_order([hold, Trouble("no_leader", "fail", "x"), Trouble("hold", "warn", "told")])

    assert [(each.name, each.text) for each in found] == [("no_leader", "x"), ("hold", "own")]


@pytest.mark.parametrize("viewer", ["`sluice top`", "`sluice doctor` says", "`sluice doctor` and"])
def test_no_line_sends_its_reader_to_a_viewer_that_shows_this_very_line(viewer: str) -> None:
    assert not [
        each.line for _, facts, *_ in CASES for each in troubles_of(Facts(**facts), NOW_MS) if viewer in each.line
    ]
