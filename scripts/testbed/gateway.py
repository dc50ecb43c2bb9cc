"""Options of a gateway on the topics of a job."""

from typing import Any

from sluice.configs.settings import Settings
from sluice.gateways.client.options import GatewayOptions


def gateway_options(settings: Settings, **more: Any) -> GatewayOptions:
    """The options of a gateway that works with this job; `more` are further ones."""
    topics = settings.topics
    return GatewayOptions(
        requests_topic=topics.requests,
        decisions_topic=topics.decisions,
        limits_topic=topics.limits,
        waits_topic=topics.waits,
        quota=settings.quota,
        **more,
    )
