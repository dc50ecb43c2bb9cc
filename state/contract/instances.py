"""Names of gateways for people: a broker is called by its node id, as Kafka does, and others by their own name."""

import re

_BROKER = re.compile(r"(?:^|.*-)([0-9]{1,10})-[0-9a-f]{8}", re.DOTALL)


def node_of(instance: str, gateway: str | None = None) -> int | None:
    """The node id of the broker that a process of a gateway is in; None if it is in none.

    Brokers with the plugin make their instance of their gateway's name, the node id and a random part, others leave out
    the node id. So without the name, that of a gateway named `edge-2` would be taken for broker 2.

    >>> node_of("host-2-0a1b2c3d"), node_of("host-2-0a1b2c3d", "host"), node_of("edge-2-0a1b2c3d", "edge-2")
    (2, 2, None)
    """
    found = _BROKER.fullmatch(instance)
    is_broker = found is not None and (not gateway or instance.startswith(f"{gateway}-{found[1]}-"))
    return int(found[1]) if found is not None and is_broker else None


def gateway_name(instance: str) -> str:
    """The name of a gateway, whose instance has a random part after it.

    >>> gateway_name("broker-2-1f"), gateway_name("broker")
    ('broker-2', 'broker')
    """
    return instance.rpartition("-")[0] or instance


def server_text(instance: str | None, gateway: str | None = None) -> str:
    """The broker by its node id, or the gateway by its name; "" if neither is known.

    >>> server_text("host-2-0a1b2c3d", "host"), server_text("edge-2-0a1b2c3d", "edge-2"), server_text("p-proxy-1f")
    ('broker 2', 'edge-2', 'p-proxy')
    """
    node = node_of(instance or "", gateway)
    return gateway or gateway_name(instance or "") if node is None else f"broker {node}"
