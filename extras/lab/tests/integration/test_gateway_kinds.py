"""One suite for all kinds of gateway: the client library's, the broker plugin, and the proxy."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gateway_kinds import STEP_MS, AnyGateway, Gateways, JavaGateway, JavaGateways, PythonGateway
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind, StorageKey
from sluice.state.quotas.limits import VERSION_KEY, overrides_key, overrides_value, version_end
from sluice_elastic.log_dirs import FRESH_MS
from tests.builders import T0, member, quota
from tests.decided_sums import sums_of
from tests.gateway_loop import limit_records

PRODUCE, FETCH = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE
TIME, MUTATIONS = QuotaKind.REQUEST_PERCENTAGE, QuotaKind.CONTROLLER_MUTATION_RATE

BYTES_PER_S = 1_000.0
LIMITS = [
    quota(PRODUCE, BYTES_PER_S, client_id="app"),
    quota(TIME, 100.0, client_id="app"),
    quota(MUTATIONS, 1.0, client_id="app"),  # a burst of 11 partitions
]
MEMBER = member(tenant="shop", client_id="shop-*")

KINDS = ("python", "plugin", "proxy")
MIXED = [(kind, kind) for kind in KINDS] + [KINDS]

Started = Callable[..., Gateways]
"""Starts gateways of these kinds."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaGateways]:
    with JavaGateways(tmp_path_factory.mktemp("gateways")) as java:
        yield java


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Started:
    def gateway(kind: str, number: int) -> AnyGateway:
        if kind == "python":
            return PythonGateway()
        return JavaGateway(request.getfixturevalue("java"), kind, number)

    return lambda *kinds: Gateways(*(gateway(kind, number) for number, kind in enumerate(kinds)))


@pytest.fixture(params=KINDS)
def one(request: pytest.FixtureRequest, start: Started) -> Gateways:
    """A gateway alone, which knows the limits."""
    gateways = start(request.param)
    gateways.limit(*LIMITS)
    gateways.step()
    return gateways


@pytest.mark.parametrize(
    ("kind", "amount", "wait_ms"),
    [(PRODUCE, 5_000, 0), (PRODUCE, 10_000, 0), (PRODUCE, 15_000, 5_000), (PRODUCE, 100_000, 90_000)],
)
def test_a_gateway_alone_asks_for_the_wait_of_kafka(one: Gateways, kind: QuotaKind, amount: int, wait_ms: int) -> None:
    """15 000 bytes in ten seconds are 1 500 a second: (1 500 - 1 000) / 1 000 * 10 s."""
    (gateway,) = one.all

    assert gateway.charge(kind, "app", amount) == wait_ms
    assert gateway.charge(kind, "other", amount) == 0


@pytest.mark.parametrize("one", ["python", "plugin"], indirect=True)
def test_the_wait_for_request_time_is_one_window_at_most_as_in_kafka(one: Gateways) -> None:
    assert [one.all[0].charge(TIME, client, 60 * 10**9) for client in ("app", "other")] == [1_000, 0]


def test_topics_are_admitted_until_the_bucket_is_overdrawn(one: Gateways) -> None:
    assert one.all[0].admit("app", 8, 8, 8) == (2, 5_000)


def test_the_wait_of_refused_mutations_is_told_and_ends_with_the_next_that_are_admitted(one: Gateways) -> None:
    """A broker's controller asks for it, and notes it nowhere; what is refused is charged nothing."""
    (gateway,) = one.all
    gateway.admit("app", 16)
    one.run(2)
    before = len(one.waits())
    assert gateway.admit("app", 1) == (0, 3_000)
    one.run(1)
    told = one.waits()[before:]
    assert {(wait["quota"], wait["entity"].get("client_id")) for wait in told} == {(MUTATIONS, "app")}
    assert 2_000 <= max(wait["ms"] for wait in told) <= 3_000

    one.run(4)
    before = len(one.waits())
    assert gateway.admit("app", 1)[0] == 1
    one.run(1)
    assert one.waits()[before:] == []


def test_mutations_that_are_admitted_tell_of_no_wait_though_they_overdraw_the_bucket(one: Gateways) -> None:
    """As in Kafka their client isn't asked to wait: only the next request is refused."""
    assert one.all[0].admit("app", 16)[0] == 1
    one.run(2)

    assert one.waits() == []


def test_before_the_limits_are_known_nobody_waits(start: Started) -> None:
    gateways = start(*KINDS)
    gateways.step()

    assert [gateway.charge(PRODUCE, "app", 10**9) for gateway in gateways.all] == [0, 0, 0]


def test_members_of_a_tenant_wait_for_what_one_of_them_used(one: Gateways) -> None:
    (gateway,) = one.all
    one.limit(MEMBER, quota(PRODUCE, BYTES_PER_S, tenant="shop"))
    one.step()
    gateway.charge(PRODUCE, "shop-1", 15_000)

    one.step()

    assert gateway.charge(PRODUCE, "shop-2", 1) > 4_000
    assert gateway.charge(PRODUCE, "other", 15_000) == 0


@pytest.mark.parametrize("kinds", MIXED)
def test_gateways_begin_with_equal_parts(start: Started, kinds: tuple[str, ...]) -> None:
    gateways = start(*kinds)
    gateways.limit(*LIMITS)
    gateways.run(3)
    for gateway in gateways.all:
        gateway.charge(PRODUCE, "app", 1)

    gateways.run(2, has_job=False)

    assert [gateways.share(each, "app") for each in gateways.all] == [pytest.approx(BYTES_PER_S / len(kinds))] * len(
        kinds
    )


@pytest.mark.parametrize("kinds", MIXED)
def test_a_client_at_full_speed_gets_its_quota_of_all_gateways_together(start: Started, kinds: tuple[str, ...]) -> None:
    gateways = start(*kinds)
    gateways.limit(*LIMITS)
    gateways.run(3)
    free_ms, served = [0] * len(kinds), 0

    for now_ms in range(0, 120_000, STEP_MS):
        for number, gateway in enumerate(gateways.all):
            if now_ms >= free_ms[number]:
                served += 100
                free_ms[number] = now_ms + gateway.charge(PRODUCE, "app", 100)
        gateways.step()

    assert 0.95 <= served / BYTES_PER_S / 120 <= 1.02 + 10 / 120


@pytest.mark.parametrize(("kind", "first_amount"), [("python", 2_000), ("proxy", 2_000), ("plugin", 1_000)])
def test_a_gateway_with_a_share_asks_for_the_waits_of_a_bucket_to_the_millisecond(
    start: Started, kind: str, first_amount: int
) -> None:
    """Its bucket holds five seconds of its share, half of the limit; that of a broker three."""
    gateways = start(kind, kind)
    gateways.limit(*LIMITS)
    gateways.run(3)
    for gateway in gateways.all:
        gateway.charge(PRODUCE, "app", 1)
    gateways.run(6, has_job=False)  # it is full again, and the shares are as they were
    first, _ = gateways.all

    waits_ms = [first.charge(PRODUCE, "app", amount) for amount in (first_amount, 501, 499, 1_500)]
    gateways.step(has_job=False)

    assert waits_ms == [0, 2, 1_000, 4_000]
    assert first.charge(PRODUCE, "app", 50) == 4_000


def use(gateways: Gateways, seconds: int, has_job: bool = True) -> list[float]:
    """Let a client use little of its quota on each gateway. Returns the shares then."""
    for _ in range(seconds):
        for gateway in gateways.alive:
            gateway.charge(PRODUCE, "app", 1)
        gateways.run(1, has_job)
    return [gateways.share(gateway, "app") for gateway in gateways.alive]


@pytest.mark.parametrize("kind", KINDS)
def test_the_share_of_a_gateway_that_is_gone_is_given_to_the_others(start: Started, kind: str) -> None:
    gateways = start(kind, kind)
    gateways.limit(*LIMITS)
    gateways.run(3)

    gateways.alive = gateways.all[:1]

    assert use(gateways, 15) == [BYTES_PER_S]


@pytest.mark.parametrize("kind", KINDS)
def test_while_nothing_is_decided_shares_hold(start: Started, kind: str) -> None:
    gateways = start(kind, kind)
    gateways.limit(*LIMITS)
    gateways.run(3)
    use(gateways, 5)

    silent = use(gateways, 10, has_job=False)

    assert sum(silent) <= 1.5 * BYTES_PER_S
    assert use(gateways, 60, has_job=False) == silent
    assert min(gateway.charge(PRODUCE, "app", 15_000) for gateway in gateways.all) > 5_000


def test_an_unmute_forgets_what_a_client_owes_and_all_that_was_charged_is_published(one: Gateways) -> None:
    (gateway,) = one.all
    assert gateway.charge(PRODUCE, "app", 15_000) == 5_000
    one.step()

    one.decide([json.dumps({"control": "unmute", "entity": {"client_id": "app"}}).encode()])
    one.run(2)  # a heartbeat tells of no counter that nothing was charged to since
    assert gateway.charge(PRODUCE, "app", 5_000) == 0
    assert gateway.charge(PRODUCE, "app", 10_000) > 4_000

    one.run(11)
    assert one.published_bytes["app"] == 30_000


def test_a_lowered_limit_holds_at_once_and_a_raised_one_lets_go_in_five_seconds(one: Gateways) -> None:
    (gateway,) = one.all
    assert gateway.charge(PRODUCE, "app", 9_000) == 0

    one.limit(quota(PRODUCE, 500.0, client_id="app"))
    one.step()
    assert gateway.charge(PRODUCE, "app", 1) > 4_000

    one.limit(quota(PRODUCE, 2_000.0, client_id="app"))
    one.run(6)  # the share grows whether the client sends or not
    assert gateway.charge(PRODUCE, "app", 1) == 0
    assert use(one, 1) == [2_000.0]


LOW = "broker 9: /data has 5 of 100 bytes free"


def is_held(gateway: AnyGateway, ms: int) -> bool:
    """True for the wait of a throttled producer: 10 s, or what Kafka's meters make of that."""
    return ms == 10_000 if isinstance(gateway, PythonGateway) else 5_000 < ms <= 10_000


def test_producers_wait_while_a_disk_is_low_and_nobody_else(one: Gateways) -> None:
    (gateway,) = one.all
    clients = [(PRODUCE, "app"), (PRODUCE, "other"), (FETCH, "app")]
    held = []

    for overrides in ([Override("hold", reason=LOW)], []):
        one.override("disk_guard", *overrides)
        one.step()
        waits_ms = [gateway.charge(kind, client_id, 1_000) for kind, client_id in clients]
        held.append([is_held(gateway, ms) if ms else None for ms in waits_ms])
        one.step()  # publishes why they wait

    assert held == [[True, True, None], [None] * 3]
    assert {wait["quota"] for wait in one.waits()} == {"disk_guard"}
    if isinstance(gateway, PythonGateway):
        clients_held = [({"user": "ANONYMOUS", "client_id": name}, 10_000) for name in ("app", "other")]
        assert [(wait["entity"], wait["ms"]) for wait in one.waits()] == clients_held


def test_producers_of_a_tenant_wait_while_its_storage_budget_is_used_up_and_nobody_else(one: Gateways) -> None:
    """Until the job says otherwise, or says nothing for too long."""
    (gateway,) = one.all
    one.limit(MEMBER, quota(StorageKey.STORED_BYTES, 100.0, tenant="shop"), *LIMITS)
    one.step()
    clients = [(PRODUCE, "shop-1"), (PRODUCE, "app"), (FETCH, "shop-1")]
    held = []

    shop = Override("hold", entity=CountedEntity(tenant="shop"), reason="all is taken")
    for overrides, seconds in (([shop], 0.1), ([shop], FRESH_MS / 1000), ([shop], 0.1), ([], 0.1)):
        one.override("stored_bytes", *overrides)
        one.run(seconds)
        waits_ms = [gateway.charge(kind, client_id, 1_000) for kind, client_id in clients]
        held.append([is_held(gateway, ms) if ms else None for ms in waits_ms])
        one.step()  # publishes why they wait

    assert held == [[True, None, None], [None] * 3, [True, None, None], [None] * 3]
    assert {(wait["quota"], wait["entity"].get("tenant")) for wait in one.waits()} == {("stored_bytes", "shop")}
    if isinstance(gateway, PythonGateway):
        assert [(wait["entity"], wait["ms"]) for wait in one.waits()] == [({"tenant": "shop"}, 10_000)] * 2


def test_producers_of_a_client_that_is_held_wait_until_the_end_of_the_hold_and_nobody_else(one: Gateways) -> None:
    (gateway,) = one.all
    one.limit(*(quota(PRODUCE, 1e9, client_id=name) for name in ("app", "other")))
    one.step()
    held = Override("hold", entity=CountedEntity(client_id="app"), until_ms=T0 + 20_000)
    elsewhere = Override("hold", gateway="another")
    one.override("curfew", held, elsewhere)
    one.step()

    found = []
    for _ in range(2):
        found.append([is_held(gateway, gateway.charge(PRODUCE, name, 1_000)) for name in ("app", "other")])
        one.run(25)
    assert found == [[True, False], [False, False]]
    assert {(wait["quota"], wait["entity"].get("client_id")) for wait in one.waits()} == {("curfew", "app")}


HOUR_MS = 3_600_000


@pytest.mark.parametrize("job_ahead_ms", [HOUR_MS, -HOUR_MS])
def test_a_hold_lasts_what_it_says_whatever_the_clocks_of_job_and_gateway_say(one: Gateways, job_ahead_ms: int) -> None:
    (gateway,), found = one.all, []
    one.limit(quota(PRODUCE, 1e9, client_id="app"))
    one.job_ahead_ms = job_ahead_ms
    until_ms = one.now_ms + job_ahead_ms + 20_000
    one.override("operator", Override("hold", entity=APP, until_ms=until_ms, consumers=True), fresh_ms=600_000)
    for seconds in (1, 15, 30):
        one.run(seconds)
        found.append(is_held(gateway, gateway.charge(PRODUCE, "app", 1_000)))
    assert found == [True, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gateway_that_starts_late_lets_go_when_the_others_do(start: Started, kind: str) -> None:
    early, late = start(kind, kind).all
    hold = Override("hold", entity=APP, consumers=True)
    said = overrides_key("operator"), overrides_value(Overrides(7, T0, 60_000, [hold]))
    limits = limit_records([quota(PRODUCE, 1e9, client_id="app")], 1)
    found = []
    for gateway, after_ms in ((early, 0), (late, 50_000)):
        gateway.sleep(after_ms)
        gateway.take_limits([*limits, said], is_past=after_ms > 0)
        gateway.sleep(STEP_MS)
        held = is_held(gateway, gateway.charge(PRODUCE, "app", 1_000))
        gateway.sleep(60_000 - after_ms)
        found.append((held, is_held(gateway, gateway.charge(PRODUCE, "app", 1_000))))
    assert found == [(True, False)] * 2


def test_a_heartbeat_has_the_last_command_of_an_operator_that_is_in_force(one: Gateways) -> None:
    (gateway,), found = one.all, []
    stop = Override("hold", entity=APP, consumers=True)
    for command, overrides in ((0, []), (5, [stop]), (6, [])):
        one.override("operator", *overrides, command=command)
        one.override("disk_guard")
        one.run(2)
        found.append(one.heartbeats[gateway]["heartbeat"].get("command", 0))
    assert found == [0, 5, 6]


def test_of_several_holds_the_strictest_counts(one: Gateways) -> None:
    """A hold of all producers, such as the disk guard's, is less than the stop of a client, whatever counter it has."""
    (gateway,), found = one.all, []
    one.limit(
        *(quota(kind, 1e9, user="ANONYMOUS") for kind in (PRODUCE, FETCH)), member(tenant="shop", client_id="app")
    )
    one.override("stored_bytes", Override("hold", entity=SHOP))
    one.override("operator", Override("hold", entity=APP, consumers=True))
    one.override("disk_guard", Override("hold", reason=LOW))
    one.step()
    for kind, client_id in ((PRODUCE, "app"), (FETCH, "app"), (PRODUCE, "other"), (FETCH, "other")):
        ms = gateway.charge(kind, client_id, 1_000)
        found.append(is_held(gateway, ms) if ms else None)
        one.step()
    assert found == [True, True, True, None]
    by = {(wait["quota"], wait["entity"].get("client_id")) for wait in one.waits()}
    assert by == {("operator", "app"), ("disk_guard", "other")} or not isinstance(gateway, PythonGateway)
    assert ("operator", "app") in by


DATA = Path(__file__).parents[1] / "data"
LONG = "app-" + "x" * 300
CASES = [json.loads(line) for line in (DATA / "overrides.jsonl").read_text().splitlines()]


def test_all_kinds_of_gateway_read_the_same_record_alike(one: Gateways) -> None:
    """Each line of the file is a record as JSON, or its overrides, and whom it holds; null if nobody reads it.

    A line may have a decider of its own, whose name is a text so many `times`.
    """
    (gateway,) = one.all
    one.limit(
        *(quota(PRODUCE, 1e9, client_id=name) for name in ("app", LONG)), member(tenant="shop", client_id="shop-*")
    )
    clients = ["app", "other", "shop-1", LONG, "caf\u00e9", "cafe\u0301", "x" * 32_767, "sha256:app"]
    for case in CASES:
        one.override("test")
        one.run(11)  # whoever was held goes on
        before = {"number": one.now_ms, "at_ms": one.now_ms, "fresh_ms": 9_000}
        text = case.get("record") or json.dumps(before)[:-1] + f', "overrides": {case["overrides"]}}}'
        unreadable = gateway.take_limits([(b'"overrides:none"', b"{}")])
        key = overrides_key(case.get("decider", "test") * case.get("times", 1))
        is_taken = gateway.take_limits([(key, text.encode())]) == unreadable
        one.step()
        held = [name for name in clients if is_held(gateway, gateway.charge(PRODUCE, name, 1_000))]
        assert (held if is_taken else None) == case["holds"], case
        gateway.take_limits([(key, None)])


def test_all_kinds_of_gateway_read_the_same_limit_alike_and_a_bad_one_keeps_no_other_back(one: Gateways) -> None:
    """Each line of the file has a limit's number as JSON, and whether it is one: Kafka's bytes are whole numbers."""
    (gateway,) = one.all
    one.limit()
    for number, case in enumerate(map(json.loads, (DATA / "limits.jsonl").read_text().splitlines())):
        entity = json.dumps(case["entity"], separators=(",", ":"))
        key = f'{{"entity":{entity},"mode":"enforce","quota":"{case["quota"]}"}}'
        value = f'{key[:-1]},"value":{case["value"]},"version":9}}'
        other = limit_records([quota(PRODUCE, BYTES_PER_S, client_id=f"other-{number}")], 9)[0]
        before = gateway.take_limits([])
        records = [(key.encode(), value.encode()), other, (VERSION_KEY, version_end(9 + number, 2))]
        assert gateway.take_limits(records) == before + (not case["is_read"]), case
        one.step()
        assert gateway.charge(PRODUCE, f"other-{number}", 100_000) > 0, case
        gateway.take_limits([(each, None) for each, _ in records[:2]])


def test_of_keys_that_cant_be_read_no_gateway_keeps_more_than_fit_into_ten_megabytes(one: Gateways) -> None:
    """Then a version waits for limits that it can't know to be among them, until the job has removed the others."""
    (gateway,), found = one.all, []
    one.limit()
    bad = [b"{%d" % number + "é".encode() * 450_000 for number in range(12)]
    for number, (keys, value, unread) in enumerate([(bad[:2], b"garbage", 2), (bad, b"garbage", 12), (bad, None, 0)]):
        other = limit_records([quota(PRODUCE, BYTES_PER_S, client_id=f"other-{number}")], 9)[0]
        gateway.take_limits(
            [*((key, value) for key in keys), other, (VERSION_KEY, version_end(9, number + 1 + unread))]
        )
        one.step()
        found.append(gateway.charge(PRODUCE, f"other-{number}", 100_000) > 0)
    assert found == [True, False, True]


def test_forged_deciders_fill_no_gateway_and_keep_no_true_one_out(one: Gateways) -> None:
    """The first of them are believed, until the job removes them; what comes under one of its own names always is."""
    (gateway,) = one.all

    def forged(number: int, reason: str = "forged") -> tuple[bytes, bytes]:
        hold = Override("hold", entity=CountedEntity(client_id=f"x{number}"), reason=reason)
        return overrides_key(f"x{number}"), overrides_value(Overrides(1, one.now_ms, 60_000, [hold]))

    before = gateway.take_limits([])
    refused = [gateway.take_limits([*map(forged, range(100))]) - before]
    for number, reason in ((0, None), (100, "x" * 1_000_000), (101, "forged"), (102, "forged")):
        records = [forged(number, reason)] if reason else [(overrides_key(f"x{number}"), None)]
        refused.append(gateway.take_limits(records) - before)
    for decider in ("elastic", "stored_bytes", "disk_guard", "operator"):
        one.override(decider, Override("hold", entity=CountedEntity(client_id=decider), consumers=True))
    one.step()

    names = ["x0", "x1", "x15", "x16", "x100", "x101", "x102", "elastic", "stored_bytes", "disk_guard", "operator"]
    assert refused == [84, 84, 85, 85, 86]
    held = [name for name in names if is_held(gateway, gateway.charge(PRODUCE, name, 1_000))]
    assert held == ["x1", "x15", "x101", *names[-4:]]


def test_no_gateway_takes_a_decider_under_another_spelling_of_its_key(one: Gateways) -> None:
    """The job would publish beside it, and never again under it."""
    (gateway,) = one.all
    held = overrides_value(Overrides(1, one.now_ms, 60_000, [Override("hold", reason="forged")]))
    before = gateway.take_limits([])
    for key in (b'"overrides:\\u0074est"', b'"overrides:test" ', b'"overrides:test', b'"overrides:\xff"'):
        gateway.take_limits([(key, held)])
    assert gateway.take_limits([]) == before + 4
    one.step()
    assert not is_held(gateway, gateway.charge(PRODUCE, "app", 1_000))


APP, ANYBODY, SHOP = CountedEntity(client_id="app"), CountedEntity("ANONYMOUS"), CountedEntity(tenant="shop")
OF_APP, OF_USER = QuotaEntity(client_id="app"), QuotaEntity(user="ANONYMOUS")


@pytest.mark.parametrize(
    ("entity", "limited", "others"),
    [
        (APP, OF_APP, ["other"]),
        (APP, OF_USER, ["other"]),
        (APP, QuotaEntity(user=DEFAULT), ["other"]),
        (APP, None, ["other"]),
        (CountedEntity("ANONYMOUS", "app"), OF_USER, ["other"]),
        (ANYBODY, QuotaEntity(client_id=DEFAULT), []),
        (ANYBODY, OF_APP, []),
        (SHOP, OF_USER, ["other"]),
        (SHOP, None, ["other"]),
    ],
)
def test_a_client_that_is_stopped_by_any_of_its_names_waits_whatever_counter_it_has_and_goes_on_afterwards(
    one: Gateways, entity: CountedEntity, limited: QuotaEntity | None, others: list[str]
) -> None:
    (gateway,) = one.all
    limits = [quota(kind, 1e9, limited) for kind in (PRODUCE, FETCH)] if limited else []
    one.limit(*limits, member(tenant="shop", client_id="app"))
    stop, found = Override("hold", entity=entity, consumers=True, reason="it floods"), []
    for stopped in ([], [stop], []):
        one.override("operator", *stopped)
        one.run(1)
        for kind in (PRODUCE, FETCH):
            ways = [gateway.charge(kind, client_id, 1_000) for client_id in ("app", *others)]
            found.append([is_held(gateway, ms) if ms else False for ms in ways])
        one.step()  # publishes why they wait
    free, held = ([[False, False]], [[True, False]]) if others else ([[False]], [[True]])
    assert found == [*free * 2, *held * 2, *free * 2]
    assert {wait["quota"] for wait in one.waits()} == {"operator"}
    assert all(wait["entity"].items() >= msgspec.to_builtins(entity).items() for wait in one.waits())


@pytest.mark.parametrize(
    ("batches", "are_new"),
    [
        ([7, 7, 8, 7, 2**63 - 1, 9, 8], [1, 0, 1, 0, 1, 1, 0]),  # after a forged one as from a backup
        ([5_000, 4_000, 4_001, 4_000], [1, 1, 1, 0]),
        ([107, 8, 9, 8], [1, 0, 0, 0]),
        ([(30, 5_000), (30, 5_000), (12, 6_000), (12, 6_000), (13, 6_500), (30, 5_000)], [1, 0, 1, 0, 1, 1]),
        (
            [(30, 5_000), (31, 5_500), (31, 5_500), (30, 5_000), (31, 5_500), (12, 9_000), (12, 9_000)],
            [1, 1, 0, 0, 0, 1, 0],
        ),
    ],
)
def test_a_micro_batch_that_is_repeated_counts_once_and_those_of_a_job_from_a_backup_at_once(
    one: Gateways, batches: list[int | tuple[int, int]], are_new: list[int]
) -> None:
    """A backup's numbers are lower than those before, or they are known but of a later time."""
    (gateway,) = one.all
    reset = [{"quota": PRODUCE, "entity": {"client_id": "app"}, "limit": BYTES_PER_S}]
    unmute = {"request_id": "u", "timestamp_ms": T0, "api": "Unmute", "charges": reset}
    found = []

    for batch in batches:
        number, decided_at_ms = batch if isinstance(batch, tuple) else (batch, 0)
        assert gateway.charge(PRODUCE, "app", 15_000) > 0
        one.step(has_job=False)
        one.tell(sums_of([unmute], batch=number, decided_at_ms=decided_at_ms))
        one.step(has_job=False)
        found.append(gateway.charge(PRODUCE, "app", 1) == 0)

    assert found == are_new


@pytest.mark.parametrize(("of_tenant", "is_charged"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("kind", ["plugin", pytest.param("proxy", marks=pytest.mark.long)])
def test_long_client_ids_that_a_client_invents_fill_no_memory(
    start: Started, kind: str, of_tenant: bool, is_charged: bool
) -> None:
    """They are 5 000 names of 32 000 characters, 152 MiB; a fetch is charged with its response, which may never come.

    Short ones take what 5 000 counters of Kafka do.
    """
    of_shop = [MEMBER, quota(FETCH, 1e9, tenant="shop")] if of_tenant else []
    taken = []
    for length in (20, 32_000):
        gateways = start(kind)
        gateways.limit(quota(FETCH, BYTES_PER_S, client_id=DEFAULT), *of_shop)
        gateways.step()
        (gateway,) = gateways.all
        assert isinstance(gateway, JavaGateway)
        taken.append(gateway.invent(5_000, length, is_charged))

    assert taken[1] <= min(taken[0] + 5, 20)


def test_mutations_that_wait_have_four_million_characters_at_most(start: Started) -> None:
    """The others are refused at once."""
    (proxy,) = start("proxy").all
    assert isinstance(proxy, JavaGateway)

    assert proxy.ask(200, 32_000) == 125


@pytest.mark.parametrize("entity", [QuotaEntity(client_id="shop-1"), QuotaEntity(tenant="shop")])
def test_connections_of_a_proxy_take_turns_whichever_is_looked_at_first(start: Started, entity: QuotaEntity) -> None:
    """Six with requests of a second of their quota wait for each other, and 6 s for the debt of a fresh counter."""
    gateways = start("proxy")
    gateways.limit(MEMBER, QuotaEntry(entity, PRODUCE, 1e4))
    (proxy,) = gateways.all
    assert isinstance(proxy, JavaGateway)

    assert proxy.longest_wait_ms(6, 1e4, 60_000) < 13_000
