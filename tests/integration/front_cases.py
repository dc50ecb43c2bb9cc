"""Cases that a real broker with the plugin and a real proxy pass alike: the modules that start them run these."""

from contextlib import closing
from itertools import count
from typing import Any, Protocol

import msgspec
import pytest
from kafka import KafkaAdminClient
from kafka.errors import ThrottlingQuotaExceededError

from sluice.process.clock import now_ms
from sluice.state.contract.gateway_topics import Override
from sluice.state.contract.records import CountedEntity
from sluice.state.quotas.kinds import QuotaKind, StorageKey
from sluice_demo.full_speed_client import FullSpeedClient, Role
from tests.builders import member, quota
from tests.integration.plugin_broker import consume, produce
from tests.kafka_bound import LARGEST_REQUEST, came, check_held
from tests.waiting import eventually

MEMBERS = tuple(f"member-{number}" for number in range(10))

TENANT_LIMIT = 5_000_000.0
"""Bytes per second of MEMBERS: requests of librdkafka have up to a million."""

FRONT_LIMITS = [
    member(tenant="shop", client_id="member-*"),
    quota(QuotaKind.PRODUCER_BYTE_RATE, TENANT_LIMIT, tenant="shop"),
    member(tenant="makers", client_id="makers-*"),
    quota(QuotaKind.CONTROLLER_MUTATION_RATE, 1.0, tenant="makers"),
    member(tenant="hoarders", client_id="hoarder-*"),
    quota(StorageKey.STORED_BYTES, 100.0, tenant="hoarders"),
]
"""Tenants: one of MEMBERS, one with a mutation per second, and eleven at once, and one with a storage budget."""


class Front(Protocol):
    """A broker with the plugin, or a proxy, that has read FRONT_LIMITS; no job runs."""

    @property
    def servers(self) -> str:
        """Where clients connect."""

    def override(self, decider: str, *overrides: Override) -> None:
        """Publish what a decider of the job would say."""

    def events(self) -> list[dict[str, Any]]:
        """All events that were published."""


class FrontCases:
    """A module that has a fixture `front` runs them as methods of a class of its own."""

    def test_members_of_a_tenant_are_held_together_and_share_its_limit(self, front: Front) -> None:
        """At full speed, none less than half of an equal part, and no error."""
        began_ms = now_ms()
        clients = [FullSpeedClient(name, Role.PRODUCE, front.servers, "orders") for name in MEMBERS]
        check_held(clients, TENANT_LIMIT, began_ms, len(MEMBERS) * LARGEST_REQUEST)

        def is_fair() -> bool:
            """Or not yet: on a busy machine some begin seconds after others."""
            found = [came([*client.samples]) for client in clients]
            return min(found) > 0.5 * sum(found) / len(MEMBERS)

        eventually(is_fair)
        for client in clients:
            client.stop()

        assert [client.errors for client in clients] == [[] for _ in MEMBERS]
        events = [event for event in front.events() if event.get("client_id", "") in MEMBERS]
        assert {event["client_id"] for event in events} == set(MEMBERS), "the job knows the tenant by these"
        waits = [(wait["quota"], wait["entity"].get("tenant")) for event in events for wait in event["throttled_by"]]
        assert {*waits} == {("producer_byte_rate", "shop")}, {*waits}

    def test_mutations_of_a_tenant_are_refused_whoever_used_its_limit_up(self, front: Front) -> None:
        """From the time when a broker reads its meters next, as long as the tenant is above its limit."""
        wide = {"num_partitions": 31, "replication_factor": 1}  # 20 s of the limit beyond the burst
        with closing(KafkaAdminClient(bootstrap_servers=front.servers, client_id="makers-1")) as admin:
            admin.create_topics({"wide-of-makers": wide})
        narrow = {"num_partitions": 1, "replication_factor": 1}
        numbers = count()

        def is_refused() -> bool:
            try:
                admin.create_topics({f"one-more-of-makers-{next(numbers)}": narrow})
            except ThrottlingQuotaExceededError:
                return True
            return False

        with closing(KafkaAdminClient(bootstrap_servers=front.servers, client_id="makers-2")) as admin:
            eventually(is_refused)

    def test_producers_of_a_tenant_that_has_used_up_its_storage_budget_are_held_and_nobody_else(
        self, front: Front
    ) -> None:
        front.override("stored_bytes", Override("hold", entity=CountedEntity(tenant="hoarders"), reason="all is taken"))
        eventually(lambda: is_producer_held(front, "hoarder-1"))
        assert produce(front.servers, "unlimited", 60, most=1_000_000) == 1_000_000
        assert consume(front.servers, "hoarder-2", 60, most=1_000_000) >= 1_000_000
        front.override("stored_bytes")
        eventually(lambda: produce(front.servers, "hoarder-3", 3, most=1_000_000) == 1_000_000)

        held = [wait for wait in waits(front) if wait["quota"] == "stored_bytes"]
        assert {wait["entity"]["tenant"] for wait in held} == {"hoarders"}

    @pytest.mark.parametrize(
        "entity",
        [CountedEntity(client_id="unlimited"), pytest.param(CountedEntity("ANONYMOUS"), marks=pytest.mark.long)],
    )
    def test_a_client_that_an_operator_stops_gets_nothing_and_goes_on_10_s_after_its_release(
        self, front: Front, entity: CountedEntity
    ) -> None:
        """No limit holds it, so its counter has none of its names."""
        stop = Override("hold", entity=entity, reason="carol: it floods", consumers=True)
        produce(front.servers, "another", 60, most=1_000_000)  # what the consumer would get
        front.override("operator", stop)
        eventually(lambda: is_producer_held(front, "unlimited"))
        assert consume(front.servers, "unlimited", 12, most=1) == 0
        assert produce(front.servers, "unlimited", 12) <= 150_000, "at most a request in ten seconds"
        if entity.client_id:
            assert produce(front.servers, "another", 60, most=1_000_000) == 1_000_000
        front.override("operator")
        eventually(lambda: produce(front.servers, "unlimited", 12, most=1_000_000) == 1_000_000)
        assert consume(front.servers, "unlimited", 60, most=1_000_000) >= 1_000_000

        held = [wait for wait in waits(front) if wait["quota"] == "operator"]
        assert held
        assert all(wait["entity"].items() >= msgspec.to_builtins(entity).items() for wait in held)

    def test_all_producers_are_held_while_a_disk_of_any_broker_is_low_and_no_consumer(self, front: Front) -> None:
        front.override("disk_guard", Override("hold", reason="broker 9: /data has 5 of 100 bytes free"))
        eventually(lambda: is_producer_held(front, "unlimited"))
        assert consume(front.servers, "unlimited", 60, most=1_000_000) >= 1_000_000
        front.override("disk_guard")
        eventually(lambda: produce(front.servers, "unlimited", 3, most=1_000_000) == 1_000_000)


def is_producer_held(front: Front, client_id: str) -> bool:
    """One request goes through before the connection is muted."""
    return produce(front.servers, client_id, 3) <= 100_000


def waits(front: Front) -> list[dict[str, Any]]:
    """The waits of all events that were published."""
    return [wait for event in front.events() for wait in event.get("throttled_by") or ()]
