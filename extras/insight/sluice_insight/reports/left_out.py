"""Clients that reports of usage, and what-if and advice, leave out: Kafka's own, Sluice's own, and the smallest."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sluice_reading.own_clients import is_own_client_id, is_own_login

_KAFKAS_OWN = re.compile(r"[0-9]+|raft-client-[0-9]+|broker-[0-9]+-fetcher-[0-9]+")
"""Client-ids of Kafka's brokers and controllers: the node's number, and those of KRaft and of replication."""

LEAST_REQUESTS = 100
"""Fewest requests of a client that a report has a row for. A limit from one request would be a guess."""

LEAST_BYTES = 1_000_000
"""Bytes that make up for fewer requests: a broker's event of many fetches counts as one request."""

Names = tuple[str, ...]


class Sent(NamedTuple):
    """Requests and bytes of a client in a span, and whether any of its requests waited."""

    requests: int
    bytes: int
    waited: bool = False


class LeftOut(NamedTuple):
    """The names left out: of brokers, controllers and Sluice itself, and of those that sent too little."""

    own: frozenset[Names] = frozenset()
    small: frozenset[Names] = frozenset()

    def has(self, names: Names) -> bool:
        """True for names that are left out."""
        return names in self.own or names in self.small

    def text(self) -> str:
        """Their numbers in words; "" without any.

        >>> LeftOut(frozenset([("", "raft-client-3")]), frozenset([("eve", "app"), ("eve", "b")])).text()
        'left out: 1 of brokers, controllers and Sluice, 2 with under 100 requests and 1 MB'
        """
        own = f"{len(self.own)} of brokers, controllers and Sluice" if self.own else ""
        small = f"{len(self.small)} with under {LEAST_REQUESTS} requests and 1 MB" if self.small else ""
        return f"left out: {', '.join(filter(None, (own, small)))}" if own or small else ""


def is_kafkas_own(client_id: str) -> bool:
    """True for a client-id that Kafka's brokers and controllers have; a client may have one that is a number."""
    return _KAFKAS_OWN.fullmatch(client_id) is not None


def left_out(
    clients: Mapping[Names, Sent], kafka: Mapping[str, str], row_of: Callable[[str, str], Names] = lambda *name: name
) -> LeftOut:
    """The rows to leave out, of these clients (user and client-id) in a span; `kafka` has the properties of Sluice's.

    A row for several clients is left out if all of them are Kafka's or Sluice's own, or if the others together sent too
    little. A client with a client-id of Kafka's own that moved bytes, or waited, is none of its brokers: Kafka charges
    these neither for replicas nor under a quota.
    """
    totals: dict[Names, Sent] = {}
    own: set[Names] = set()
    for (user, client_id), sent in clients.items():
        row = row_of(user, client_id)
        is_broker = is_kafkas_own(client_id) and not sent.bytes and not sent.waited
        if is_broker or is_own_login(kafka, user) or is_own_client_id(kafka, client_id):
            own.add(row)
        else:
            known = totals.get(row, Sent(0, 0))
            totals[row] = Sent(known.requests + sent.requests, known.bytes + sent.bytes)
    small = (row for row, sent in totals.items() if sent.requests < LEAST_REQUESTS and sent.bytes < LEAST_BYTES)
    return LeftOut(frozenset(own - totals.keys()), frozenset(small))
