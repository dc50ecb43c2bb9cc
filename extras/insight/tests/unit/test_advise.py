"""`sluice advise`: limits for traffic whose rate is known by calculation."""

import re
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import yaml

from recorded import DECISIONS, START_MS, event, simulated, write_decisions
from sluice.configs.quotas import load_quotas_file
from sluice.configs.settings import load_settings
from sluice.state.contract.records import Mutation, Request
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import CLIENT_KINDS, Membership, QuotaKind, QuotaSettings, Window
from sluice_insight.waits import WaitEnds
from sluice_insight.whatif.advice import DAY_MS, HOUR_MS, Advisor, Confidence, Seen, pooled, proposals
from sluice_insight.whatif.recording import batch_of
from sluice_insight.whatif.replay import Recorded, Side
from sluice_insight.whatif.whose import Whose
from sluice_reading.quotas_admin import QuotasAdmin
from tests.builders import quota
from tests.commands import invoke, with_values

pytestmark = pytest.mark.usefixtures("small_clients")

ALICE = QuotaEntity(user="alice")
PRODUCER = QuotaKind.PRODUCER_BYTE_RATE


def rows_of(requests: Iterable[Recorded]) -> pa.RecordBatch:
    """Rows of the table that these requests could have been read from."""
    rows = [
        {
            "timestamp_ms": each.timestamp_ms,
            "verdict": "REJECT" if each.refused else "ALLOW",
            "throttle_time_ms": each.wait_ms,
            "instance": each.lane,
            **{name: getattr(each.request, name) for name in ("user", "client_id", "api")},
            "amounts": {name: value for name, value in msgspec.to_builtins(each.request).items() if value != []},
        }
        for each in requests
    ]
    return pa.RecordBatch.from_pylist(rows, schema=DECISIONS)


def seen_by(
    requests: list[Recorded], whose: Whose = Whose.USER, members: Sequence[QuotaEntry] = ()
) -> dict[tuple[QuotaEntity, QuotaKind], Seen]:
    settings = QuotaSettings(controller_window=Window(samples=10, window_ms=1000))
    advisor = Advisor(whose, CLIENT_KINDS, settings, members)
    for first in range(0, len(requests), 700):
        advisor.read_batch(batch_of(rows_of(requests[first : first + 700]), WaitEnds()))
    return advisor.seen()


def recorded(at_ms: int, wait_ms: int = 0, **request: Any) -> Recorded:
    said = {"api": "Produce", "user": "alice", "client_id": "app"} | request
    return Recorded(START_MS + at_ms, Request(**said), wait_ms)


def limits(seen: dict[tuple[QuotaEntity, QuotaKind], Seen], headroom: float = 1.3) -> dict[str, float]:
    return {each.entry.kind.value: each.entry.value for each in proposals(seen.items(), 99.9, headroom)}


def test_steady_bytes() -> None:
    """1 000 bytes every 100 ms: at most 101 requests in the 10 s of a rate, so 10 100/s; times 1.3, in three digits."""
    seen = seen_by([recorded(at_ms, bytes=1000) for at_ms in range(0, 120_000, 100)])

    assert limits(seen) == {"producer_byte_rate": 13_200}
    assert seen[ALICE, PRODUCER].percentile(100) == 10_100


def test_each_quota_kind_in_its_own_unit() -> None:
    """10 ms of a thread every 100 ms are 10 %, and with the one that begins 10.1 %; 2 partitions a second are 2/s."""
    busy = [recorded(at_ms, api="Metadata", request_time_ns=10_000_000) for at_ms in range(0, 60_000, 100)]
    creating = [
        recorded(60_000 + at_ms, api="CreateTopics", mutations=[Mutation("t", 2)]) for at_ms in range(0, 60_000, 1000)
    ]

    assert limits(seen_by([*busy, *creating]), headroom=1.0) == {
        "request_percentage": 10.1,
        "controller_mutation_rate": pytest.approx(2.2, abs=0.03),  # 20 of 9 s, and 2 that begin the tenth
    }


def test_a_rare_burst_beyond_the_percentile_is_left_out() -> None:
    """One of 2 000 requests is a hundred times as large."""
    requests = [recorded(number * 1000, bytes=100_000 if number == 1000 else 1000) for number in range(2000)]
    seen = seen_by(requests)[ALICE, PRODUCER]

    assert seen.percentile(50) == 1100  # 11 requests in 10 s
    assert seen.percentile(99) == 1100
    assert seen.percentile(100) == 11_000


def test_counters_are_those_of_whom_the_limit_is_set_on() -> None:
    """A user's client-ids count together, or each alone."""
    requests = [recorded(at_ms, bytes=1000, client_id=f"app-{at_ms // 100 % 2}") for at_ms in range(0, 60_000, 100)]

    assert {entity.to_mapping()["user"] for entity, _ in seen_by(requests)} == {"alice"}
    assert len(seen_by(requests, Whose.BOTH)) == len(seen_by(requests, Whose.CLIENT_ID)) == 2
    together = seen_by(requests)[ALICE, PRODUCER].percentile(100)
    alone = seen_by(requests, Whose.BOTH)[QuotaEntity("alice", "app-0"), PRODUCER].percentile(100)
    assert (together, alone) == (10_100, 5100)


def test_members_of_a_tenant_count_together_and_others_not_at_all() -> None:
    """Two of them send 1 000 bytes every 100 ms in turn."""
    names = ("shop-1", "shop-2")
    requests = [recorded(at_ms, bytes=1000, user=names[at_ms // 100 % 2]) for at_ms in range(0, 60_000, 100)]
    requests += [recorded(60_000, bytes=10**9, user="eve")]

    seen = seen_by(requests, Whose.TENANT, [QuotaEntry(QuotaEntity("shop-*", tenant="shop"), Membership.MEMBER, 1.0)])

    assert {(entity, kind): of.percentile(100) for (entity, kind), of in seen.items()} == {
        (QuotaEntity(tenant="shop"), PRODUCER): 10_100
    }


def test_the_default_covers_the_requests_of_all() -> None:
    """One client has ten large requests among 1 000: 99 % is the others' rate."""
    requests = [recorded(number * 60_000, bytes=1000, user=f"user-{number}") for number in range(990)]
    requests += [recorded(number * 60_000, bytes=9000, user="large") for number in range(990, 1000)]
    everybody = pooled(seen_by(requests).items(), Whose.USER)

    [(entity, _)] = everybody
    [pool] = everybody.values()
    assert entity == QuotaEntity(user=DEFAULT)
    assert (pool.percentile(99), pool.percentile(100), pool.clients) == (100, 900, 991)


@pytest.mark.parametrize(
    ("days", "hours", "throttled", "expected"),
    [
        (1, 3, 0, Confidence.LOW),
        (2, 24, 0, Confidence.MEDIUM),
        (7, 24, 0, Confidence.HIGH),
        (7, 24, 1, Confidence.LOW),
    ],
)
def test_confidence_is_in_days_and_hours_and_lost_by_a_wait(
    days: int, hours: int, throttled: int, expected: Confidence
) -> None:
    active = {(day * DAY_MS + hour * HOUR_MS) // HOUR_MS for day in range(days) for hour in range(hours // days + 1)}

    assert Seen({1.0: 1}, active, Side(throttled=throttled)).confidence is expected


# --- the command -------------------------------------------------------------------------------------------------

HOSTILE = "eve\n- entity: {user: root}\x1b[2J"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Alice sends 10 000 bytes/s for a minute, and a hostile name a little; bob was throttled meanwhile."""
    events = [event(at_ms, bytes=1000) for at_ms in range(0, 60_000, 100)]
    held = [{"quota": "producer_byte_rate", "entity": {"user": "bob"}, "ms": 30_000}]
    events += [event(60_000, HOSTILE, bytes=5000), event(61_000, "<default>", bytes=5000)]
    events.append(event(62_000, "bob", bytes=5000, throttled_by=held))
    write_decisions(tmp_path / "decisions", simulated(events, []))
    QuotasAdmin(str(tmp_path / "quotas")).create([QuotaEntry(ALICE, PRODUCER, 1.0)], "test", datetime.now(UTC))
    (tmp_path / "settings.yaml").write_text(
        f"delta: {{decisions: {tmp_path / 'decisions'}, quotas: {tmp_path / 'quotas'}}}\n"
    )
    times = ["--from", "2027-01-15T08:00Z", "--to", "2027-01-15T08:02Z", "--processes", "1"]
    return ["advise", "--config", str(tmp_path / "settings.yaml"), *times]


def test_it_prints_a_quota_file_that_quotas_apply_takes(command: list[str], tmp_path: Path) -> None:
    printed = invoke(*command).output
    (tmp_path / "proposed.yaml").write_text(printed)

    found = {entry.entity.user: entry.value for entry in load_quotas_file(tmp_path / "proposed.yaml")}
    apply = ["quotas", "apply", str(tmp_path / "proposed.yaml"), "--table", str(tmp_path / "quotas"), "--yes"]
    applied = invoke(*apply)

    assert found == {"alice": 13_200, HOSTILE: 650, "bob": 650}
    assert "Quotas are now at version 1." in applied.output


def test_comments_say_how_sure_it_is_and_cannot_be_left(command: list[str]) -> None:
    """A name ends no comment, and reaches no terminal raw."""
    printed = invoke(*command).output
    lines = printed.splitlines()
    evidence = {line.partition(":")[0]: line for line in lines if line.startswith("# user-principal")}

    assert "\x1b" not in printed
    assert "600 requests within 2 min on 1 day; confidence low" in evidence["# user-principal 'alice'"]
    assert "1 of them waited, 0.5 minutes: demand was cut" in evidence["# user-principal 'bob'"]


def test_it_says_what_the_limits_would_have_throttled(command: list[str]) -> None:
    """None here: they are above every rate. The limit in force on alice, 1 byte/s, is the one that is replaced."""
    lines = invoke(*command).output.splitlines()
    [total] = [re.split(" {2,}", line) for line in lines if line.startswith("# all 4 clients")]

    assert total[1:5] == ["603", "1", "1", "0"]
    assert total[7] == "0.0"


def test_defaults_a_quota_and_a_file(command: list[str], tmp_path: Path) -> None:
    out = tmp_path / "proposed.yaml"
    arguments = ["--defaults", "--quota", "producer_byte_rate", "--by", "user/client-id", "--out", str(out)]

    printed = invoke(*command, *arguments).output

    [entry] = load_quotas_file(out)
    assert entry.entity == QuotaEntity(DEFAULT, DEFAULT)
    assert "of 3 clients" in printed


@pytest.mark.parametrize(
    ("arguments", "named"), [([], {"client_id": "app"}), (["--by", "user/client-id"], None)], ids=["default", "both"]
)
def test_limits_are_on_what_the_quotas_in_force_are_set_on(
    command: list[str], tmp_path: Path, arguments: list[str], named: dict[str, str] | None
) -> None:
    """Where nobody logs in, quotas are on client-ids, and no request has a user."""
    settings = load_settings(tmp_path / "settings.yaml")
    by_client_id = [quota(PRODUCER, 1000.0, client_id=name) for name in ("app", "b")]
    QuotasAdmin(settings.delta.quotas).alter(lambda _: by_client_id, "ops", datetime(2026, 11, 2, tzinfo=UTC))
    shutil.rmtree(settings.delta.decisions)
    events = [event(second * 1000, user="", bytes=2000) for second in range(60)]
    write_decisions(settings.delta.decisions, simulated(events, by_client_id))

    printed = invoke(*command, *arguments).output

    if named is None:
        assert "# No user/client-id used anything that these quotas limit; the requests have 1 client-id:" in printed
        assert "--by client-id proposes limits for those." in printed
    else:
        assert [entry["entity"] for entry in yaml.safe_load(printed)] == [named]


def recorded_without_logins(tmp_path: Path, entries: Sequence[QuotaEntry], *events: bytes) -> None:
    """Quotas in force, and requests of the client `app`, which doesn't log in, and others."""
    settings = load_settings(tmp_path / "settings.yaml")
    QuotasAdmin(settings.delta.quotas).alter(lambda _: [*entries], "ops", datetime(2026, 11, 2, tzinfo=UTC))
    shutil.rmtree(settings.delta.decisions)
    of_app = [event(second * 1000, "ANONYMOUS", bytes=2000) for second in range(60)]
    write_decisions(settings.delta.decisions, simulated([*of_app, *events], entries))


def test_where_as_many_quotas_are_on_users_as_on_client_ids_limits_are_on_both(
    command: list[str], tmp_path: Path
) -> None:
    """The limit of alice comes before one on her client-id, and one on ANONYMOUS would be of all who don't log in."""
    on_both = [quota(PRODUCER, 9000.0, user="alice"), quota(PRODUCER, 9000.0, client_id="app")]
    recorded_without_logins(tmp_path, on_both, event(0, client_id="of-alice", bytes=2000))

    printed = invoke(*command).output

    assert [entry["entity"] for entry in yaml.safe_load(printed)] == [{"client_id": "app"}, {"user": "alice"}]
    assert "# user-principal 'ANONYMOUS' gets no limit: it is of all clients without a login" in printed


def test_no_limit_is_proposed_for_a_login_or_a_client_id_of_sluice(command: list[str], tmp_path: Path) -> None:
    with (tmp_path / "settings.yaml").open("a") as settings:
        settings.write(
            "kafka:\n  security.protocol: SASL_PLAINTEXT\n  sasl.mechanism: PLAIN\n"
            """  sasl.jaas.config: 'x required username="quotas" password="p";'\n"""
        )
    own = [event(0, "quotas", "reader", bytes=2000), event(0, "ANONYMOUS", "sluice-1-limits", bytes=2000)]
    recorded_without_logins(tmp_path, [], event(0, bytes=2000), *own)

    by_user, by_client_id = (invoke(*command, "--by", by).output for by in ("user", "client-id"))

    assert [entry["entity"] for entry in yaml.safe_load(by_user)] == [{"user": "alice"}]
    assert [entry["entity"] for entry in yaml.safe_load(by_client_id)] == [{"client_id": "app"}]


def test_it_says_on_how_many_decisions_no_quota_on_users_is_tried(command: list[str], tmp_path: Path) -> None:
    recorded_without_logins(tmp_path, [], event(0, bytes=2000), event(0, "", "of-several", bytes=2000))

    printed = invoke(*command, "--by", "user").output

    assert "# 1 of 62 decisions have no user, as a gateway sums up several users: no quota on users is tried" in printed


def test_where_nothing_was_recorded_nothing_is_proposed(command: list[str], tmp_path: Path) -> None:
    """The output is an empty quota file."""
    printed = invoke(*with_values(command, "--from", "2026-01-01", "--to", "2026-01-02")).output
    (tmp_path / "proposed.yaml").write_text(printed)

    assert "# No client used anything that these quotas limit." in printed
    assert load_quotas_file(tmp_path / "proposed.yaml") == []


def test_an_unknown_quota_is_one_line(command: list[str]) -> None:
    assert "expected one of producer_byte_rate" in invoke(*command, "--quota", "producer", code=2).error_line
