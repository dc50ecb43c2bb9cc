"""Bytes that no Kafka client sends: other protocols, broken frames, and logins of each mechanism that go wrong."""

import socket
import ssl
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from random import Random

API_VERSIONS, METADATA, PRODUCE, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 3, 0, 17, 36
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "X" * 300, "")
_ANSWER_S = 0.5
SECRET = "passw0rd-of-a-client"  # noqa: S105 # of nobody; a log has neither it nor its bytes


def frame(content: bytes) -> bytes:
    """A request as Kafka frames it."""
    return struct.pack(">i", len(content)) + content


def request(api: int, version: int, body: bytes, client_id: str | None = "stranger") -> bytes:
    """A request with the header of version 1, in its frame."""
    name = struct.pack(">h", -1) if client_id is None else text(client_id)
    return frame(struct.pack(">hhi", api, version, 7) + name + body)


def text(value: str) -> bytes:
    """A string as Kafka's older protocols write it."""
    return struct.pack(">h", len(value.encode())) + value.encode()


def sized(content: bytes) -> bytes:
    """Bytes as Kafka's older protocols write them."""
    return struct.pack(">i", len(content)) + content


def client_hello() -> bytes:
    """The first message of a TLS handshake."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def bad_bytes() -> dict[str, list[bytes]]:
    """Name -> the parts that one client sends, each after an answer or a while."""
    random = Random(20261127)
    metadata = struct.pack(">i", 0)
    cases: dict[str, list[bytes]] = {
        "nothing": [],
        "one byte": [b"\0"],
        "half a length": [b"\0\0"],
        "a password in a line": [SECRET.encode() + b"\n"],
        "plain HTTP": [b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n"],
        "a line of text": [b"hello there, are you a mail server?\r\n"],
        "SSH": [b"SSH-2.0-OpenSSH_9.6\r\n"],
        "random bytes": [random.randbytes(4_000)],
        "zeros": [bytes(1_000)],
        "a TLS hello": [client_hello()],
        "half a TLS hello": [client_hello()[:60]],
        "a TLS hello, then text": [client_hello(), b"text"],
        "a TLS alert": [bytes.fromhex("15030300020228")],
        "a negative length": [struct.pack(">i", -1) + b"x"],
        "the most negative length": [struct.pack(">i", -(2**31))],
        "the longest length": [struct.pack(">i", 2**31 - 1) + b"x" * 1_000],
        "an oversized frame": [struct.pack(">i", 200_000_000) + bytes(100_000)],
        "an empty frame": [frame(b"")],
        "a short frame": [frame(b"\0\3")],
        "an unknown API": [request(9_999, 0, b"")],
        "a negative API": [request(-5, 0, b"")],
        "an unknown version": [request(METADATA, 999, metadata)],
        "a negative version": [request(METADATA, -3, metadata)],
        "an unknown version of ApiVersions": [request(API_VERSIONS, 99, b"")],
        "a client-id longer than its frame": [frame(struct.pack(">hhih", METADATA, 1, 7, 30_000))],
        "a client-id of a negative length": [frame(struct.pack(">hhih", METADATA, 1, 7, -7))],
        "a client-id that is no UTF-8": [frame(struct.pack(">hhih", METADATA, 1, 7, 4) + b"\xff\xfe\xff\0" + metadata)],
        "an array of a negative length": [request(METADATA, 1, struct.pack(">i", -77))],
        "an array longer than its frame": [request(METADATA, 1, struct.pack(">i", 2**31 - 1))],
        "a body that ends early": [request(PRODUCE, 3, struct.pack(">h", -1))],
        "too long a body": [request(METADATA, 1, metadata + bytes(1_000))],
        "Metadata without a login": [request(METADATA, 1, metadata)],
        "Produce without a login": [request(PRODUCE, 3, struct.pack(">hhii", -1, 1, 1_000, 0))],
        "a login that never began": [request(SASL_AUTHENTICATE, 0, sized(b"\0app\0a"))],
        "a handshake of version 0, then a token": [request(SASL_HANDSHAKE, 0, text("PLAIN")), sized(b"\0app\0a")],
        "a raw token": [sized(b"\0app\0" + SECRET.encode())],
        "a raw token of Kerberos": [sized(bytes.fromhex("6082") + bytes(300))],
        "a login, then text": [request(SASL_HANDSHAKE, 1, text("PLAIN")), b"text that is no frame"],
        "two logins at once": [request(SASL_HANDSHAKE, 1, text("PLAIN")) * 2],
        "a login that breaks off": [request(SASL_HANDSHAKE, 1, text("SCRAM-SHA-256"))],
    }
    for mechanism in MECHANISMS:
        for number, token in enumerate(_tokens(mechanism, random)):
            begun = [request(SASL_HANDSHAKE, 1, text(mechanism))]
            cases[f"{mechanism[:20]!r} with token {number}"] = [*begun, request(SASL_AUTHENTICATE, 0, sized(token))]
            cases[f"{mechanism[:20]!r} with token {number} and a request at once"] = [
                *begun,
                request(SASL_AUTHENTICATE, 0, sized(token)) + request(METADATA, 1, metadata),
            ]
    return cases


def _tokens(mechanism: str, random: Random) -> Iterator[bytes]:
    yield from (b"", b"\0", random.randbytes(200), b"x" * 100_000, b"\0" * 3, b"\xff\0\xfe\0\xfd")
    if mechanism.startswith("SCRAM"):
        yield from (b"n,,n=app,r=nonce", b"n,,n==,r=", b"p=tls,,n=app,r=x", b"n,a=you,n=app,r=x," + b"a=b," * 9_000)
    if mechanism == "OAUTHBEARER":
        yield from (b"n,,\x01auth=Bearer %b\x01\x01" % token for token in (b"a.b.c", b"e30.e30.", b""))
    if mechanism == "PLAIN":
        yield from (b"\0app\0wrong", b"you\0app\0a", b"\0app", b"\0\0\0\0")


def send(server: tuple[str, int], parts: list[bytes], *, reset: bool = False) -> bytes:
    """Send the parts to a server, then go, by a reset if it says so. Returns what the server has answered."""
    answered = b""
    with socket.create_connection(server, timeout=_ANSWER_S) as connection, suppress(OSError):
        for number, part in enumerate(parts):
            connection.sendall(part)
            connection.settimeout(_ANSWER_S if number + 1 < len(parts) else 0.1)
            with suppress(TimeoutError):
                answered += connection.recv(65_536)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return answered


def send_all(server: tuple[str, int], clients: int = 32) -> None:
    """All bad bytes to a server, from so many clients at a time, each once with an end and once with a reset."""
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda each: send(server, each[0], reset=each[1]), product(bad_bytes().values(), (False, True))))
