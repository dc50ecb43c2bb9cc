"""The address on which to listen, decided once: what is opened is what was checked."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

_LOOPBACK_NAMES = {
    **dict.fromkeys(("localhost", "localhost.localdomain", "localhost4"), "127.0.0.1"),
    **dict.fromkeys(("ip6-localhost", "ip6-loopback", "localhost6"), "::1"),
}
"""Names that mean loopback whether or not this machine's resolver knows them (RFC 6761, 6.3; hosts files of Linux)."""


def listening_address(host: str) -> str:
    """The one address, in numbers, on which a server of this host listens.

    A name of which any address is loopback is that one: nobody is let in from outside by a spelling or a hosts file.
    Any other name is its first address. Raises OSError or UnicodeError if there is none.

    >>> listening_address("LOCALHOST."), listening_address("127.1"), listening_address("0"), listening_address("::1")
    ('127.0.0.1', '127.0.0.1', '0.0.0.0', '::1')
    """
    if not host:
        raise OSError("there is no address")  # the system takes an empty address for every address
    name = host.lower().rstrip(".")
    if name.endswith(".localhost") or name in _LOOPBACK_NAMES:
        return _LOOPBACK_NAMES.get(name, "127.0.0.1")
    found = [str(place[0]) for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    return min(found, key=lambda address: not _parsed(address).is_loopback)  # of equals the first


def is_loopback(host: str) -> bool:
    """True if a server of this host listens for this machine alone; False too for a name without an address.

    >>> is_loopback("127.1"), is_loopback("Localhost"), is_loopback("::ffff:127.0.0.1"), is_loopback("0")
    (True, True, True, False)
    """
    try:
        return _parsed(listening_address(host)).is_loopback
    except (OSError, UnicodeError):
        return False


def _parsed(address: str) -> IPv4Address | IPv6Address:
    parsed = ip_address(address)
    return getattr(parsed, "ipv4_mapped", None) or parsed
