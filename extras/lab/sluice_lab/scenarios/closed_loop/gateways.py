"""The closed loop for real: broker, job, gateway processes and greedy clients, measured by the table `decisions`.

A gateway process is python -m sluice_lab.scenarios.closed_loop.gateways SETTINGS GATEWAYS SECONDS DEMAND
"""

import sys
import time
from pathlib import Path

from sluice.configs.settings import Settings, load_settings
from sluice.gateways.client.client import Gateway
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.counts import drain
from sluice_demo.gateways import Connection, GreedyClient, gateway_options, sending
from sluice_demo.job import wait_until
from sluice_lab.scenarios.closed_loop.measures import Measures, Served, measure
from sluice_lab.scenarios.closed_loop.situation import Situation
from sluice_lab.testbed.rig import Rig, rig_with_broker
from sluice_proxy.processes import Child
from sluice_reading.query import run_query

_READY = "ready"
_START_S = 180.0
_DRAIN_S = 300.0
_SECTIONS = {"audit": {"trigger_s": 2}}
CLIENTS = (
    GreedyClient("producer", QuotaKind.PRODUCER_BYTE_RATE, 1_000_000.0),
    GreedyClient("consumer", QuotaKind.CONSUMER_BYTE_RATE, 1_000_000.0),
    GreedyClient("worker", QuotaKind.REQUEST_PERCENTAGE, 10.0),
    GreedyClient("writer", QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1_000_000.0),
    GreedyClient("reader", QuotaKind.TOPIC_CONSUMER_BYTE_RATE, 1_000_000.0),
    # Each request waits for its decision, so it has to be large: small ones would stay below the quota by themselves.
    GreedyClient("admin", QuotaKind.CONTROLLER_MUTATION_RATE, 10.0, size_s=2.0),
)
_QUOTAS = [{"entity": client.entity, "quotas": {client.quota.value: client.limit}} for client in CLIENTS]

_SERVED = """
SELECT timestamp_ms, charge['value'] AS value
FROM (SELECT timestamp_ms, user, amounts, unnest(charges) AS charge FROM decisions)
WHERE user = '{user}' AND charge['quota'] = '{quota}' AND charge['mode'] IS NULL
  AND coalesce(amounts['withheld'], false) = false
ORDER BY timestamp_ms
"""


def run_gateways(
    folder: Path, gateways: int, seconds: int, demand: float, job_down: tuple[float, float] | None = None
) -> dict[str, Measures]:
    """Amounts that each greedy client got of its quota: `demand` is in quotas, `job_down` an outage of the job.

    Everything is kept in `folder`.
    """
    logs = [folder / f"gateway-{number}.log" for number in range(gateways)]
    with rig_with_broker(folder, _SECTIONS, _QUOTAS) as (rig, _):
        rig.start()
        module = [sys.executable, "-m", "sluice_lab.scenarios.closed_loop.gateways", str(rig.settings_file)]
        command = [*module, str(gateways), str(seconds), str(demand / gateways)]
        children = [Child(command, log) for log in logs]
        wait_until(lambda: all(_READY in log.read_text() for log in logs), _START_S)
        began_ms = time.time_ns() // 1_000_000
        if job_down is not None:
            time.sleep(job_down[0])  # the clients go on meanwhile
            rig.kill()
            time.sleep(max(0.0, began_ms / 1000 + job_down[1] - time.time()))
            rig.start()
        for child in children:
            child.wait(seconds + _START_S)
        drain(rig.settings, _DRAIN_S)
        return {client.user: _measured(rig, client, began_ms, seconds, gateways, demand) for client in CLIENTS}


def _measured(rig: Rig, client: GreedyClient, began_ms: int, seconds: int, gateways: int, demand: float) -> Measures:
    query = _SERVED.format(user=client.user, quota=client.quota.value)
    rows = run_query(query, {"decisions": rig.settings.delta.decisions}, {})
    served: Served = [(float(timestamp_ms - began_ms), value, 0) for timestamp_ms, value in rows]
    size = client.limit * client.size_s
    situation = Situation(client.quota, client.limit, client.limit * demand, size, gateways, seconds=seconds)
    return measure(situation, served)


def serve(settings: Settings, gateways: int, seconds: float, demand: float) -> None:
    """Serve every client for this time, with a demand of `demand` quotas, once all `gateways` are alive."""
    with Gateway(settings.kafka, gateway_options(settings)) as gateway:
        wait_until(lambda: gateway.stats().gateways == gateways, _START_S)
        print(_READY, flush=True)
        with sending(Connection(gateway, client, demand) for client in CLIENTS):
            time.sleep(seconds)
        print(gateway.stats(), flush=True)


if __name__ == "__main__":
    serve(load_settings(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
