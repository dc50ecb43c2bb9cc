"""Sluice for gateways: publish what was served, ask who has to wait.

A gateway asks before it serves a request, and publishes an event after it:

    from sluice import Gateway, GatewayOptions, Request, TopicPartition

    with Gateway({"bootstrap.servers": "127.0.0.1:9092"}, GatewayOptions(name="gateway-1")) as gateway:
        wait_ms = gateway.check("alice", "app", "Produce")  # 0: serve the request
        if wait_ms == 0:
            written = [TopicPartition("orders", 0, bytes=1024)]
            gateway.publish(Request("Produce", user="alice", client_id="app", topic_partitions=written))

HTTP services wrap their application instead: `AsgiQuotas(app, gateway)` or `WsgiQuotas(app, gateway)`.
"""

from configs.errors import UnsupportedPropertyError
from gateways.client.client import DecisionFields, Gateway, GatewayStats
from gateways.client.event_sender import WhenFull
from gateways.client.metrics import GatewayCollector
from gateways.client.middleware import AsgiQuotas, HttpQuotas, WsgiQuotas
from gateways.client.options import BeforeKnown, GatewayOptions, StalePolicy
from gateways.client.retry import ThrottlingQuotaExceededError, retry_on_quota_violation, retry_topics
from gateways.client.wait_table import Wait
from gateways.errors import GatewayClosedError, InvalidOptionError
from state.decisions.request import Mutation, Request, TopicPartition
from state.errors import InvalidRequestError, SluiceError

__version__ = "0.1.0"

__all__ = [
    "AsgiQuotas",
    "BeforeKnown",
    "DecisionFields",
    "Gateway",
    "GatewayClosedError",
    "GatewayCollector",
    "GatewayOptions",
    "GatewayStats",
    "HttpQuotas",
    "InvalidOptionError",
    "InvalidRequestError",
    "Mutation",
    "Request",
    "SluiceError",
    "StalePolicy",
    "ThrottlingQuotaExceededError",
    "TopicPartition",
    "UnsupportedPropertyError",
    "Wait",
    "WhenFull",
    "WsgiQuotas",
    "__version__",
    "retry_on_quota_violation",
    "retry_topics",
]
