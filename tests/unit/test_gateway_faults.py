"""A gateway's counts balance, with any faults of the way to Kafka: they are drawn, and shrunk."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from sluice import Answer, GatewayClosedError, GatewayOptions, Mutation, Request, TopicPartition, WhenFull
from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from tests.gateway_loop import Clock, GatewayLoop, OfflineGateway, PublishedEvent

QUOTAS = [
    QuotaEntry(QuotaEntity(user=DEFAULT), kind, 1_000.0)
    for kind in (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONTROLLER_MUTATION_RATE)
]
MAX_UNSENT, MOST_IN_EVENT, LONGEST_MS = 6, 2, 60_000


class FaultyGateway(RuleBasedStateMachine):
    """A gateway that drops what it has no room for, and what a reader of its counts is owed."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        options = GatewayOptions(
            max_unsent=MAX_UNSENT,
            when_full=WhenFull.DROP,
            max_charges_per_event=MOST_IN_EVENT,
            max_wait_ms=LONGEST_MS,
            decide_timeout_ms=1,
            close_timeout_s=0,
        )
        self.gateway = OfflineGateway(options, self.clock)
        self.loop = GatewayLoop([self.gateway], QUOTAS, self.clock)
        self.is_closed = self.is_away = self.refuses = False
        self.handed_over = 0
        self.deliveries: list[PublishedEvent] = []
        self.requests = self.dropped = self.published = self.failed = 0
        self.accepted: list[str] = []
        """The ids of the events that were accepted. The gateway's own ones, such as heartbeats, have none."""
        self.own = 0
        self.awaited: dict[str, int] = {}
        """Mutation requests without a decision, and when they were made."""

    def teardown(self) -> None:
        """All is counted in the end."""
        self.close()
        self.counts_balance()

    @rule(width=st.sampled_from((0, 3, 7)), strict=st.booleans())
    def request(self, width: int, strict: bool) -> None:
        """A request is published whole, as one to four events, or not at all."""
        self.requests += 1
        name, parts = f"r{self.requests}", max(1, -(-width // MOST_IN_EVENT))
        touched = [TopicPartition("orders", number, 100) for number in range(width)]
        event = Request("Produce", name, topic_partitions=touched)
        admit: Callable[[Request], Answer] = self.gateway.admit
        if strict:
            event.api, event.mutations, admit = "CreateTopics", [Mutation("a", 1)], self.gateway.admit_mutations
        if self.is_closed:
            with pytest.raises(GatewayClosedError):
                admit(event)
            return
        answer = admit(event)
        if answer.request_id is None:
            self.dropped += parts
            return
        names = [name] if parts == 1 else [f"{name}-{number + 1}" for number in range(parts)]
        assert answer.request_id == names[-1]
        self.accepted += names
        if strict:
            self.awaited[names[0]] = self.clock.ms

    @rule(away=st.booleans(), refuses=st.booleans())
    def change_broker(self, away: bool, refuses: bool) -> None:
        """The broker goes or comes back, and takes events from now on or refuses them."""
        self.hand_over()
        self.is_away, self.refuses = away, refuses

    @rule(data=st.data(), outcome=st.sampled_from(("lost", "published", "decided")))
    def end_delivery(self, data: st.DataObject, outcome: str) -> None:
        """The broker has or has lost an event: perhaps one that was told already, perhaps after the end."""
        self.hand_over()
        if not self.deliveries:
            return
        delivery, is_lost = data.draw(st.sampled_from(self.deliveries[-8:])), outcome == "lost"
        if not delivery.is_ended and not self.is_closed:
            self.failed += is_lost
            self.published += not is_lost
        delivery.end(KafkaTimeoutError() if is_lost else None)
        if outcome == "decided":
            self.decide(delivery)

    def hand_over(self) -> None:
        """The producer gets what waits for it."""
        if self.is_away or self.is_closed:
            return
        stats = self.gateway.stats()
        events = self.gateway.take(stats.published + stats.failed + stats.unsent - self.handed_over)
        self.handed_over += len(events)
        if not self.refuses:
            self.deliveries += events
        for event in events if self.refuses else ():
            event.end(MessageSizeTooLargeError())
            self.failed += 1

    def decide(self, delivery: PublishedEvent) -> None:
        """The job decides an event, perhaps twice, and the gateway publishes what that corrects."""
        with self.own_events():
            self.loop.decide_events([delivery.value])
        self.awaited.pop(json.loads(delivery.value)["request_id"], None)

    @rule(seconds=st.sampled_from((0, 1, 30, 60)))
    def pass_time(self, seconds: int) -> None:
        """The gateway publishes a heartbeat, and gives up decisions that come too late to correct anything."""
        self.clock.ms += seconds * 1_000
        with self.own_events():
            self.gateway.idle()
        self.awaited = {name: at_ms for name, at_ms in self.awaited.items() if self.clock.ms - at_ms < LONGEST_MS}

    @precondition(lambda self: self.requests > 5)
    @rule()
    def close(self) -> None:
        """The gateway is closed, perhaps once more."""
        self.gateway.close()
        self.is_closed = True
        self.failed = len(self.accepted) + self.own - self.published

    @invariant()
    def counts_balance(self) -> None:
        """Each event is counted once."""
        stats = self.gateway.stats()
        assert (stats.published, stats.failed, stats.dropped) == (self.published, self.failed, self.dropped)
        assert stats.published + stats.failed + stats.unsent == len(self.accepted) + self.own
        assert stats.unsent >= 0

    @invariant()
    def events_are_published_once(self) -> None:
        """In the order in which they were accepted."""
        sent = [json.loads(each.value)["request_id"] for each in self.deliveries]
        accepted = set(self.accepted)
        assert len(sent) == len(set(sent))
        assert [name for name in sent if name in accepted] == [name for name in self.accepted if name in set(sent)]

    @invariant()
    def decisions_are_awaited_for_some_time(self) -> None:
        """Those that never come take no memory."""
        assert len(self.gateway._awaited) <= len(self.awaited)

    @contextmanager
    def own_events(self) -> Iterator[None]:
        """Count the events that the gateway makes itself."""
        before = self.gateway.stats()
        yield
        after = self.gateway.stats()
        self.dropped = after.dropped
        self.own += after.unsent - before.unsent


def test_the_counts_of_a_gateway_balance_whatever_becomes_of_its_events() -> None:
    run_state_machine_as_test(FaultyGateway)
