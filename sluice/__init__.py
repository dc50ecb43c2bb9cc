"""Sluice for gateways: charge what was served, hold who has to wait.

A gateway charges a request when its response is ready, and holds the client as long as it is told:

    from sluice import Gateway, Request, TopicPartition

    with Gateway({"bootstrap.servers": "127.0.0.1:9092"}) as gateway:
        written = [TopicPartition("orders", 0, bytes=1024)]
        served = Request("Produce", user="alice", client_id="app", topic_partitions=written)
        answer = gateway.admit(served)  # answer.throttle_ms: how long to mute the connection

HTTP services wrap their application instead: `AsgiQuotas(app, gateway)` or `WsgiQuotas(app, gateway)`.
"""

from configs.errors import UnsupportedPropertyError
from gateways.client.answer import Answer
from gateways.client.client import DecisionFields, Gateway
from gateways.client.event_sender import WhenFull
from gateways.client.metrics import GatewayCollector
from gateways.client.middleware import AsgiQuotas, HttpQuotas, WsgiQuotas
from gateways.client.options import BeforeKnown, GatewayOptions, StalePolicy
from gateways.client.retry import ThrottlingQuotaExceededError, retry_on_quota_violation, retry_topics
from gateways.client.stats import GatewayStats
from gateways.client.wait_table import Wait
from gateways.errors import GatewayClosedError, InvalidOptionError
from state.decisions.request import Mutation, Request, Share, TopicPartition
from state.errors import InvalidRequestError, SluiceError
from state.quotas.kinds import QuotaSettings, Window

__version__ = "0.1.0"

__all__ = [
    "Answer",
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
    "QuotaSettings",
    "Request",
    "Share",
    "SluiceError",
    "StalePolicy",
    "ThrottlingQuotaExceededError",
    "TopicPartition",
    "UnsupportedPropertyError",
    "Wait",
    "WhenFull",
    "Window",
    "WsgiQuotas",
    "__version__",
    "retry_on_quota_violation",
    "retry_topics",
]
