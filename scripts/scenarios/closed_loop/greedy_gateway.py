"""A gateway process with greedy clients, one of those that `gateways` starts.

python -m scripts.scenarios.closed_loop.greedy_gateway SETTINGS GATEWAYS SECONDS DEMAND
"""

import sys
import time
from pathlib import Path

from scripts.testbed.gateway import gateway_options
from scripts.testbed.greedy import Connection, GreedyClient, sending
from scripts.testbed.job import wait_until
from sluice.configs.settings import Settings, load_settings
from sluice.gateways.client.client import Gateway
from sluice.state.quotas.kinds import QuotaKind

READY = "ready"
READY_S = 180.0

CLIENTS = (
    GreedyClient("producer", QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0),
    GreedyClient("consumer", QuotaKind.CONSUMER_BYTE_RATE, 1_000_000.0),
    GreedyClient("worker", QuotaKind.REQUEST_PERCENTAGE, 10.0),
    GreedyClient("writer", QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1_000_000.0),
    GreedyClient("reader", QuotaKind.TOPIC_CONSUMER_BYTE_RATE, 1_000_000.0),
    # Each request waits for its decision, so it has to be large: small ones would stay below the quota by themselves.
    GreedyClient("admin", QuotaKind.CONTROLLER_MUTATION_RATE, 10.0, size_s=2.0),
)


def serve(settings: Settings, gateways: int, seconds: float, demand: float) -> None:
    """Serve every client for this time, with a demand of `demand` quotas, once all `gateways` are alive."""
    with Gateway(settings.kafka, gateway_options(settings)) as gateway:
        wait_until(lambda: gateway.stats().gateways == gateways, READY_S)
        print(READY, flush=True)
        with sending(Connection(gateway, client, demand) for client in CLIENTS):
            time.sleep(seconds)
        print(gateway.stats(), flush=True)


if __name__ == "__main__":
    serve(load_settings(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
