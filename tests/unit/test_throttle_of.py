"""`throttle_of` says what `admit` asks for: over all overrides, kinds of quotas, tenants and times."""

from contextlib import ExitStack

import hypothesis.strategies as st
import msgspec
from hypothesis.stateful import RuleBasedStateMachine, rule

from sluice import Request, TopicPartition
from sluice.state.contract.gateway_topics import Override, Overrides
from sluice.state.contract.records import CountedEntity, Mutation
from sluice.state.quotas.entity import DEFAULT, bounded_name
from sluice.state.quotas.kinds import QuotaKind
from tests.builders import member, quota
from tests.gateway_loop import gateway_loop, set_limits

LONG = "app-" + "x" * 300
USERS, CLIENTS = ("alice", "bob"), ("app", "shop-1", LONG)
APIS = ("Produce", "Fetch", "Metadata", "CreateTopics")
DECIDERS = ("operator", "disk_guard", "stored_bytes", "elastic", "another")
TENANT = member(tenant="shop", client_id="shop-*")

entities = st.sampled_from(
    [
        None,
        CountedEntity(tenant="shop"),
        *(CountedEntity(user, client) for user in (None, *USERS) for client in (None, "app", bounded_name(LONG))),
    ]
).filter(lambda entity: entity != CountedEntity())
ends = st.one_of(st.none(), st.integers(0, 40_000))


@st.composite
def overrides(draw: st.DrawFn) -> tuple[Override, int | None]:
    """An override, and the ms until its end."""
    kind, until_ms = draw(st.sampled_from(["hold", "hold", "hold", "tighten"])), draw(ends)
    if kind == "tighten":
        strength = draw(st.sampled_from([0.2, 0.75]))
        return Override("tighten", strength, gateway=draw(st.sampled_from(["i-0", "x"]))), until_ms
    entity = draw(entities)
    gateway, consumers = draw(st.sampled_from([None, None, "i-0", "x"])), entity is not None and draw(st.booleans())
    return Override("hold", entity=entity, gateway=gateway, consumers=consumers), until_ms


limits = st.lists(
    st.sampled_from(
        [
            *(
                quota(kind, value, **entity)
                for kind in (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)
                for value in (100.0, 1e6)
                for entity in ({"user": DEFAULT}, {"client_id": "app"}, {"user": "alice", "client_id": "app"})
            ),
            quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, user="alice"),
            quota(QuotaKind.PRODUCER_BYTE_RATE, 200.0, tenant="shop"),
        ]
    ),
    max_size=4,
    unique_by=lambda entry: (entry.entity, entry.kind),
)


class Agreement(RuleBasedStateMachine):
    """A gateway whose overrides and quotas change while clients send requests."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.loop = self.stack.enter_context(gateway_loop([TENANT], policy="keep_shares"))
        self.gateway = self.loop.gateways[0]
        self.version, self.number = 1, 0

    def teardown(self) -> None:
        self.stack.close()

    @rule(entries=limits)
    def change_limits(self, entries: list[object]) -> None:
        self.version += 1
        set_limits(self.gateway, self.version, [TENANT, *entries])  # type: ignore[list-item] # quotas

    @rule(decider=st.sampled_from(DECIDERS), said=st.lists(overrides(), max_size=3))
    def override(self, decider: str, said: list[tuple[Override, int | None]]) -> None:
        self.number += 1
        now_ms = self.loop.clock.ms
        found = [
            each if left_ms is None else msgspec.structs.replace(each, until_ms=now_ms + left_ms)
            for each, left_ms in said
        ]
        record = Overrides(self.number, now_ms, 60_000, found)
        self.gateway.limits.be_read()
        self.gateway.override(decider, record)

    @rule(ms=st.sampled_from([1, 100, 1_000, 5_000, 20_000]))
    def wait(self, ms: int) -> None:
        self.loop.clock.ms += ms
        self.gateway.idle()

    @rule(
        user=st.sampled_from(USERS),
        client=st.sampled_from(CLIENTS),
        api=st.sampled_from(APIS),
        size=st.sampled_from([1, 5_000]),
        delivered=st.booleans(),
    )
    def request(self, user: str, client: str, api: str, size: int, delivered: bool) -> None:
        """A client has the same wait by both, and no stop lets it be served.

        One that sends before its wait is over may be asked for less: the bytes of a fetch that was answered empty are
        taken back, and a smaller one fits.
        """
        event = Request(api, user=user, client_id=client, request_time_ns=size * 1_000_000)
        touched = []
        if api in ("Produce", "Fetch"):
            event.topic_partitions, touched = [TopicPartition("orders", 0, size)], [("orders", 0)]
        elif api == "CreateTopics":
            event.mutations = [Mutation("t", 1 + size // 1_000)]
        before = self.gateway.throttle_of(user, client, api, touched)
        answer = self.gateway.admit(event, delivered)
        after = self.gateway.throttle_of(user, client, api, touched)
        assert after.throttle_ms >= answer.throttle_ms, (before, answer, after)
        assert after.throttle_ms == answer.throttle_ms or before.throttle_ms > 0, (before, answer, after)
        assert after.quota == answer.quota or after.throttle_ms == 0 or before.throttle_ms > 0
        assert self.gateway.throttle_of(user, client).throttle_ms >= after.throttle_ms
        if answer.quota in DECIDERS and answer.withhold:
            assert before.throttle_ms >= answer.throttle_ms


TestAgreement = Agreement.TestCase


def test_a_wait_that_a_raised_limit_has_ended_does_not_come_back_with_the_next_request() -> None:
    low, high = (quota(QuotaKind.PRODUCER_BYTE_RATE, limit, client_id="app") for limit in (100.0, 1e6))
    request = Request("Produce", client_id="app", topic_partitions=[TopicPartition("orders", 0, 5_000)])
    waits_ms = []
    with gateway_loop([low]) as loop:
        (gateway,) = loop.gateways
        for version, limit in enumerate((low, high), 2):
            set_limits(gateway, version, [limit])
            loop.clock.ms += 1_000
            waits_ms.append((gateway.admit(request).throttle_ms, gateway.throttle_of(None, "app").throttle_ms))
    assert waits_ms == [(40_000, 40_000), (0, 0)]
