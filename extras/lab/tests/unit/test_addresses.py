"""The address on which each server of Sluice listens: a spelling of localhost is this machine alone, everywhere."""

import socket

import pytest

from sluice.process.addresses import is_loopback, listening_address
from sluice.process.http_server import HttpServer
from sluice_insight.console.server import ConsoleOptions, check_address
from sluice_insight.errors import ConsoleError
from sluice_proxy.gateway import parse_address, parse_listener

LOOPBACK = [
    *("localhost", "LOCALHOST", "localhost.", "LocalHost.", "a.localhost", "localhost.localdomain", "ip6-localhost"),
    *("127.1", "127.0.0.2", "0x7f.1", "2130706433", "::1", "::ffff:127.0.0.1", "0:0::1", "both.test", "loop.test"),
]
OTHERS = ["0", "0.0.0.0", "::", "192.0.2.7", "away.test", "nobody.test", "localhost.evil.test", "127.0.0.1.evil.test"]  # noqa: S104 # no server listens there

NAMES = {
    "both.test": ["192.0.2.7", "127.0.1.1"],
    "loop.test": ["::1", "127.0.0.1"],
    "away.test": ["192.0.2.7", "192.0.2.8"],
    "localhost.evil.test": ["192.0.2.7"],
    "127.0.0.1.evil.test": ["192.0.2.7"],
}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of a hosts file, which a test can't write; numbers and all else are asked of the system."""
    ask = socket.getaddrinfo

    def known(host: str, *arguments: object, **options: object) -> object:
        if host not in NAMES or options.get("flags") == socket.AI_NUMERICHOST:
            return ask(host, *arguments, **options)  # type: ignore[arg-type] # passed on
        return [(socket.AF_INET6 if ":" in at else socket.AF_INET, 1, 6, "", (at, 0)) for at in NAMES[host]]

    monkeypatch.setattr(socket, "getaddrinfo", known)


@pytest.mark.parametrize("host", LOOPBACK)
def test_every_spelling_of_this_machine_listens_on_loopback_alone(host: str) -> None:
    asgi = lambda *_: None  # noqa: E731 # nobody asks it anything
    written = f"[{host}]" if ":" in host else host

    check_address(ConsoleOptions(address=host))  # needs no token
    listener, metrics = parse_listener(f"{written}:0"), parse_address("--metrics", f"{written}:0")

    assert is_loopback(host)
    assert listener.interface is not None
    assert is_loopback(listener.interface)
    assert metrics.interface == listener.interface
    if listening_address(host).startswith(("127.", "::1")):  # the console's and the health port's server
        server = HttpServer(asgi, host, 0, max_connections=1, cure="")  # type: ignore[arg-type] # see above
        try:
            assert server._socket.getsockname()[0] == listening_address(host)
        finally:
            server._socket.close()


@pytest.mark.parametrize("host", OTHERS)
def test_no_other_name_passes_for_this_machine(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConsoleError, match="would be open to everybody"):
        check_address(ConsoleOptions(address=host))
    check_address(ConsoleOptions(address=host, token="x" * 16))  # each reader needs it


@pytest.mark.parametrize("host", ["away.test", "nobody.test"])
def test_a_proxy_of_another_name_listens_on_all_interfaces_and_says_so(host: str) -> None:
    """Its clients may reach it by a name that this machine doesn't know, such as a load balancer's."""
    listener = parse_listener(f"{host}:9092")

    assert listener.interface is None
    assert listener.reach == "all interfaces"
    assert parse_listener("both.test:9092").reach == "127.0.1.1: this machine alone"
    assert parse_listener("192.0.2.7:9092").reach == "192.0.2.7"
