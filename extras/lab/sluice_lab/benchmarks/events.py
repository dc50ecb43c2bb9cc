"""Request events of the bench, by number of charges per request."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sluice.state.quotas.entity import DEFAULT, QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import Membership, QuotaKind

EVENTS_PER_S = 25_000
"""Rate of the timestamps in a backlog: about the number of events that the job decides in a second."""

CLIENTS = 10
TOPICS = 100
PARTITIONS = 8
_PRIME = 1_000_003  # a prime above every number of users, so the steps visit each user once per round


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of request with the quotas it is charged to; `work` gives its JSON fields by sequence number."""

    charges: int
    quotas: tuple[QuotaEntry, ...]
    work: Callable[[int], str]

    @property
    def name(self) -> str:
        """The name in reports."""
        return "1 charge" if self.charges == 1 else f"{self.charges} charges"

    def event(self, sequence: int, user: int, timestamp_ms: int) -> tuple[bytes, bytes]:
        """Key and value of one request event, of one of four gateways that charge inline."""
        client, gateway = user % CLIENTS, sequence % 4
        value = (
            f'{{"request_id":"{sequence}","timestamp_ms":{timestamp_ms},"user":"user-{user}","client_id":"app-{client}",'
            f'"request_time_ns":{200_000 + sequence % 997 * 1000},"network_time_ns":{50_000 + sequence % 499 * 100},'
            f'"gateway":"gateway-{gateway}","instance":"gateway-{gateway}-1f2e3d4c","throttled_by":[],{self.work(sequence)}}}'
        )
        return f"user-{user}|app-{client}".encode(), value.encode()

    def in_tenants(self, digits: int = 2) -> "Load":
        """The same with users in tenants by the first digits of their numbers, each with limits that nobody reaches."""
        kinds = [entry.kind for entry in self.quotas if entry.entity == _EVERY_USER]
        limits = [QuotaEntry(QuotaEntity(tenant=DEFAULT), kind, 1e9) for kind in kinds]
        users = {f"tenant-{number}": f"user-{number}*" for number in range(10 ** (digits - 1), 10**digits)}
        users |= {f"tenant-{length}": f"user-{'?' * length}" for length in range(1, digits)}
        members = [QuotaEntity(tenant=tenant, user=user) for tenant, user in users.items()]
        entries = [QuotaEntry(member, Membership.MEMBER, 1.0) for member in members]
        return replace(self, charges=self.charges + len(kinds), quotas=(*self.quotas, *limits, *entries))

    def backlog(self, users: Sequence[int], end_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Events of these users at an even pace; the timestamp of the last one is `end_ms`."""
        first_ms = end_ms - len(users) * 1000 // EVENTS_PER_S
        for sequence, user in enumerate(users):
            yield self.event(sequence, user, first_ms + sequence * 1000 // EVENTS_PER_S)


def _creation(sequence: int) -> str:
    return f'"api":"CreateTopics","api_version":7,"mutations":[{{"topic":"new-{sequence}","partitions":1}}]'


def _write(sequence: int) -> str:
    return f'"api":"Produce","api_version":9,"topic_partitions":[{_touched(sequence)}]'


def _double_write(sequence: int) -> str:
    partitions = f"{_touched(sequence)},{_touched(sequence + 1)}"
    return f'"api":"Produce","api_version":9,"topic_partitions":[{partitions}]'


def _touched(number: int) -> str:
    topic, partition = number % TOPICS, number // TOPICS % PARTITIONS
    return f'{{"topic":"topic-{topic}","partition":{partition},"bytes":{1000 + number % 4093}}}'


_EVERY_USER, _EVERY_TOPIC = QuotaEntity(user=DEFAULT), QuotaEntity(topic=DEFAULT)
_CLIENT_QUOTAS = (
    QuotaEntry(_EVERY_USER, QuotaKind.PRODUCER_BYTE_RATE, 10_000.0),
    QuotaEntry(_EVERY_USER, QuotaKind.REQUEST_PERCENTAGE, 1.0),
)

ONE_CHARGE = Load(1, (QuotaEntry(_EVERY_USER, QuotaKind.CONTROLLER_MUTATION_RATE, 5.0),), _creation)
TWO_CHARGES = Load(2, _CLIENT_QUOTAS, _write)
FOUR_CHARGES = Load(
    4, (*_CLIENT_QUOTAS, QuotaEntry(_EVERY_TOPIC, QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1_000_000.0)), _double_write
)
LOADS = (ONE_CHARGE, TWO_CHARGES, FOUR_CHARGES)


def spread(count: int, users: int) -> list[int]:
    """The number of the user of each of `count` events: every user once before any again."""
    return [number * _PRIME % users for number in range(count)]
