"""Sluice for gateways: charge requests and throttle their clients.

A gateway charges a request when its response is ready, and mutes the connection for as long as the answer says:

    from sluice import Gateway, Request, TopicPartition

    with Gateway({"bootstrap.servers": "127.0.0.1:9092"}) as gateway:
        written = [TopicPartition("orders", 0, bytes=1024)]
        served = Request("Produce", user="alice", client_id="app", topic_partitions=written)
        answer = gateway.admit(served)  # answer.throttle_ms: how long to mute the connection

HTTP services wrap their application instead: `sluice_http.AsgiQuotas(app, gateway)`, of the extra `http`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.gateways.client.answer import Answer
    from sluice.gateways.client.client import Gateway
    from sluice.gateways.client.metrics import GatewayCollector, GatewayStats
    from sluice.gateways.client.options import BeforeKnown, GatewayOptions, StalePolicy, WhenFull
    from sluice.gateways.errors import GatewayClosedError, InvalidOptionError
    from sluice.kafka_io.errors import UnsupportedPropertyError
    from sluice.state.contract.records import Mutation, Request, Share, TopicPartition
    from sluice.state.errors import InvalidRequestError, SluiceError
    from sluice.state.quotas.kinds import QuotaSettings, Window

__version__: str
"""The installed version, from the metadata of the install."""

_MODULES = {
    "gateways.client.answer": ("Answer",),
    "gateways.client.client": ("Gateway",),
    "gateways.client.metrics": ("GatewayCollector", "GatewayStats"),
    "gateways.client.options": ("BeforeKnown", "GatewayOptions", "StalePolicy", "WhenFull"),
    "gateways.errors": ("GatewayClosedError", "InvalidOptionError"),
    "kafka_io.errors": ("UnsupportedPropertyError",),
    "state.contract.records": ("Mutation", "Request", "Share", "TopicPartition"),
    "state.errors": ("InvalidRequestError", "SluiceError"),
    "state.quotas.kinds": ("QuotaSettings", "Window"),
}
"""The module of each public name. Names are imported at their first use: the job and its workers import `sluice.state`
and need none of what a gateway needs."""

__all__ = [
    "Answer",
    "BeforeKnown",
    "Gateway",
    "GatewayClosedError",
    "GatewayCollector",
    "GatewayOptions",
    "GatewayStats",
    "InvalidOptionError",
    "InvalidRequestError",
    "Mutation",
    "QuotaSettings",
    "Request",
    "Share",
    "SluiceError",
    "StalePolicy",
    "TopicPartition",
    "UnsupportedPropertyError",
    "WhenFull",
    "Window",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # slow to import, as a mail parser comes with it

        return version("sluice-kafka")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"sluice.{module}"), name)
    raise AttributeError(f"module 'sluice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
