"""The search for a broker with kafka-python: why no server can be used, and an end as soon as that is clear."""

import _ssl
import errno
import random
import socket
import ssl
import time
from collections import Counter
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

from kafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from sluice.process.format import error_line

PATIENCE_S = 1.0
"""Time for which servers that can't be used are tried again: a broker may be starting."""

TRIES = 3
"""Least tries of each server within it: on a busy machine one alone may take as long."""

CONNECTION_S = 1.5
"""Time for a connection, in which a lost packet is sent again; after two of them a server is out of reach."""

_BROKERS_S = 10.0
"""Time for a connection to any of a cluster's brokers, which are tried one after the other in an order by chance."""

_MOST_BACKOFF_MS = 200
"""Longest wait before a server is tried again. kafka-python chooses one by chance, waits until it may be tried, and
doubles its wait each time, up to 30 s."""

_REFUSALS = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError)
_TIMEOUTS = (KafkaTimeoutError, RequestTimedOutError)


class NoBrokerUsableError(KafkaError):  # type: ignore[misc] # kafka-python ships no type hints
    """Every server was tried, and each can't be used; the message is that of `BrokerSearch.fault`."""


class OutOfReachError(KafkaConnectionError):  # type: ignore[misc] # as above
    """No connection within CONNECTION_S, and nothing that refuses it."""


class UnreachableBrokerError(KafkaConnectionError):  # type: ignore[misc] # as above
    """A broker of the cluster can't be reached at the address that the cluster gives for it."""

    def __str__(self) -> str:
        """Without the name of the class: the text says all."""
        return str(self.args[0])


class Failure(NamedTuple):
    error: BaseException | None
    """None if the server ended a connection that it had let in."""
    was_connected: bool
    was_answered: bool
    """True if the server has told its versions, which comes before a login."""

    @property
    def is_final(self) -> bool:
        """True if to try it again would end as this try did."""
        return isinstance(self.error, _REFUSALS) or isinstance(self.cause, ssl.SSLError)

    @property
    def is_out_of_reach(self) -> bool:
        """True if packets to the server, or its answers, seem to be dropped."""
        return isinstance(self.error, OutOfReachError)

    @property
    def is_of_tls(self) -> bool:
        """True if TLS began and failed: of kafka-python's errors only that one has another error behind it."""
        return isinstance(self.cause, OSError)

    @property
    def cause(self) -> BaseException | None:
        """The error behind it, of Python."""
        return self.error.__context__ if self.error is not None else None


class BrokerSearch(KafkaNetClient):  # type: ignore[misc] # kafka-python ships no type hints
    """kafka-python's network client, for the argument `kafka_client` of its clients.

    Until `end` is called a search ends with NoBrokerUsableError once each server has failed: at once where login or TLS
    fail, after two times CONNECTION_S where no packet comes back, else after PATIENCE_S and TRIES.
    """

    def __init__(self, **configs: Any) -> None:
        net = NetworkSelector(**configs)
        self.search = SearchingManager(net, **configs)
        super().__init__(net=net, manager=self.search, **configs)

    def end(self) -> None:
        """Let a later search, of a client that is in use, go on for as long as its caller wants."""
        self.search.end()

    def fault(self) -> str | None:
        """The fault in one line, with the server and what to check; None if no server has failed."""
        return self.search.fault()


class SearchingManager(KafkaConnectionManager):  # type: ignore[misc] # kafka-python ships no type hints
    def __init__(self, net: NetworkSelector, **configs: Any) -> None:
        super().__init__(net, **configs)
        self.is_searching = True
        self._failures: dict[str, Failure] = {}
        self._tries = Counter[str]()
        self._unreachable: Exception | None = None
        self._give_up_s = time.monotonic() + PATIENCE_S
        self._most_backoff_ms = self.config["reconnect_backoff_max_ms"]
        self.config["reconnect_backoff_max_ms"] = min(self._most_backoff_ms, _MOST_BACKOFF_MS)

    def end(self) -> None:
        self.is_searching = False
        self.config["reconnect_backoff_max_ms"] = self._most_backoff_ms

    def get_connection(self, node_id: Any, **options: Any) -> KafkaConnection:
        is_try = self.cluster.is_bootstrap(node_id) and node_id not in self._conns
        if is_try and self.is_searching and self._is_hopeless():
            raise NoBrokerUsableError(self.fault())
        connection = super().get_connection(node_id, **options)
        if is_try:
            connection.close_future.add_both(partial(self._note, node_id, connection))
        return connection

    def fault(self) -> str | None:
        """The fault of the server that came nearest to an answer; if it named its cluster, that of a broker there."""
        if self._unreachable is not None:
            return str(self._unreachable)
        own, failures = self.config["ssl_certfile"], self._failures.values()
        if own and any(each.was_connected or each.is_of_tls for each in failures) and (until := _end_of(own)):
            return f"the certificate {own}, by which this client logs in, has expired ({until}); renew it and its key"
        servers = {broker.node_id: broker for broker in self.cluster.bootstrap_brokers()}
        protocol = self.config["security_protocol"]
        faults = [
            fault_of(servers[node].host, servers[node].port, failure, protocol)
            for node, failure in self._failures.items()
            if node in servers
        ]
        return min(faults)[1] if faults else None

    def _is_hopeless(self) -> bool:
        servers = [broker.node_id for broker in self.cluster.bootstrap_brokers()]
        if not self._failures.keys() >= set(servers):
            return False
        is_late = time.monotonic() > self._give_up_s and all(self._tries[server] >= TRIES for server in servers)
        failed = ((self._failures[server], self._tries[server]) for server in servers)
        return is_late or all(each.is_final or (each.is_out_of_reach and tries > 1) for each, tries in failed)

    async def _do_bootstrap(self, deadline: float | None) -> Any:
        """Search on until a broker is reached where its cluster says it is: all that follows is asked there."""
        found = await super()._do_bootstrap(deadline)
        if self.is_searching:
            give_up_s = time.monotonic() + _BROKERS_S
            for broker in random.sample(brokers := list(self.cluster.brokers()), len(brokers)):
                try:
                    await self.get_connection(broker.node_id, refresh_metadata_on_err=False)
                except (KafkaError, OSError) as error:
                    is_named = isinstance(error, UnreachableBrokerError)
                    self._unreachable = error if is_named else UnreachableBrokerError(_unreached(broker, error))
                    if time.monotonic() > give_up_s:
                        break
                else:
                    self._unreachable = None
                    break
            if self._unreachable is not None:
                raise self._unreachable
        return found

    async def _build_transport(self, node: Any, timeout_at: float) -> Any:
        if self.is_searching:
            timeout_at = min(timeout_at, time.monotonic() + CONNECTION_S)
        try:
            if self.is_searching and isinstance(error := _lookup_error(node.host, node.port), TimeoutError):
                raise KafkaConnectionError(error.strerror)  # kafka-python would wait for DNS
            return await super()._build_transport(node, timeout_at)
        except KafkaConnectionError as error:
            if not self.cluster.is_bootstrap(node.node_id):
                raise UnreachableBrokerError(_unreached(node, error)) from error
            if self.is_searching and isinstance(error.__context__, KafkaTimeoutError):
                raise OutOfReachError(f"no connection within {CONNECTION_S:g} s") from None
            raise

    def _note(self, node_id: str, connection: KafkaConnection, outcome: object) -> None:
        error = outcome if isinstance(outcome, BaseException) else None
        was_answered = connection.broker_version_data is not None
        self._failures[node_id] = Failure(error, connection.parser is not None, was_answered)
        self._tries[node_id] += 1


def _unreached(broker: Any, error: Exception) -> str:
    """The fault of a broker that is away, or whose cluster advertises an address that isn't one here."""
    server = f"[{broker.host}]:{broker.port}" if ":" in broker.host else f"{broker.host}:{broker.port}"
    if _lookup_error(broker.host, broker.port) is not None:
        return (
            f"broker {broker.node_id} says it is {server}, which isn't known here; set its advertised.listeners to a"
            " name that this machine knows, or teach its DNS that name"
        )
    return (
        f"broker {broker.node_id} says it is {server}, and can't be reached there ({error_line(error)}); check that it"
        " runs, and that its advertised.listeners are of this network"
    )


def _lookup_error(host: str, port: int) -> OSError | None:
    """Why no address is known for a name; TimeoutError if DNS doesn't tell within CONNECTION_S.

    A lookup takes as long as the resolver of the machine is set to wait, and can't be interrupted.
    """
    outcome: list[OSError | None] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, port)
        except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or too long
            outcome.append(error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error)))
        else:
            outcome.append(None)

    thread = Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(CONNECTION_S)
    return outcome[0] if outcome else TimeoutError(errno.ETIMEDOUT, f"DNS gives no answer within {CONNECTION_S:g} s")


def _end_of(certificate: str) -> str | None:
    """The end of the first certificate in a PEM file, if it is over; None too if nothing can tell."""
    decode: Any = getattr(_ssl, "_test_decode_cert", lambda _: {})  # no public function reads a file's times
    try:
        end: str = decode(certificate)["notAfter"]
        return end if ssl.cert_time_to_seconds(end) < time.time() else None
    except (KeyError, OSError, ValueError):
        return None


def fault_of(host: str, port: int, failure: Failure, protocol: str) -> tuple[int, str]:
    """The fault, with a number that is lower the nearer the server came to an answer."""
    server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    said = f" ({error_line(failure.error)})" if failure.error is not None else ""
    is_timeout = isinstance(failure.error, _TIMEOUTS)
    # kafka-python drops the answer of a broker that ends the connection right after it
    is_in_login = "SASL" in protocol and failure.was_answered and not is_timeout
    if isinstance(failure.error, _REFUSALS) or is_in_login:
        return 0, (
            f"{server} refuses the login{said}; check sasl.mechanism, and user name and password in sasl.jaas.config"
        )
    if isinstance(failure.cause, ssl.SSLCertVerificationError) and failure.cause.verify_code in (9, 10):  # of its times
        return 1, f"no TLS connection with {server}{said}; renew its certificate, or set the clock that is wrong"
    if failure.is_of_tls:
        return 1, (
            f"no TLS connection with {server}{said}; check that ssl.truststore.location has the authority of its"
            " certificate, which must name this host, and that security.protocol is that of this listener"
        )
    if failure.was_connected and not is_timeout:
        return 2, (
            f"{server} ends connections without an answer{said}; check that security.protocol, which is"
            f" {protocol}, is that of this listener"
        )
    if (error := _lookup_error(host, port)) is not None:
        return 3, (
            f"no address is known for {server} ({error.strerror}); check the name in bootstrap.servers, and the"
            " DNS of this machine"
        )
    between = ", that no firewall is between" if failure.is_out_of_reach else ""
    return 4, f"no Kafka broker answers at {server}{said}; check that it runs there{between}, and bootstrap.servers"
