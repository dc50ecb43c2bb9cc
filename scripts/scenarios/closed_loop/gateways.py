"""The closed loop for real: broker, job, gateway processes and greedy clients, measured by the table `decisions`."""

import sys
import time
from pathlib import Path

from scripts.scenarios.closed_loop.greedy_gateway import CLIENTS, READY
from scripts.scenarios.closed_loop.measures import Measures, measure
from scripts.scenarios.closed_loop.simulation import Served
from scripts.scenarios.closed_loop.situation import Situation
from scripts.testbed.greedy import GreedyClient
from scripts.testbed.job import wait_until
from scripts.testbed.processes import Child
from scripts.testbed.rig import Rig, rig_with_broker
from sluice.insight.sql import run_query

_START_S = 180.0
_DRAIN_S = 300.0
_SECTIONS = {"audit": {"trigger_s": 2}}
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
        module = [sys.executable, "-m", "scripts.scenarios.closed_loop.greedy_gateway", str(rig.settings_file)]
        command = [*module, str(gateways), str(seconds), str(demand / gateways)]
        children = [Child(command, log) for log in logs]
        wait_until(lambda: all(READY in log.read_text() for log in logs), _START_S)
        began_ms = time.time_ns() // 1_000_000
        if job_down is not None:
            time.sleep(job_down[0])  # the clients go on meanwhile
            rig.kill()
            time.sleep(max(0.0, began_ms / 1000 + job_down[1] - time.time()))
            rig.start()
        for child in children:
            child.wait(seconds + _START_S)
        rig.drain(_DRAIN_S)
        return {client.user: _measured(rig, client, began_ms, seconds, gateways, demand) for client in CLIENTS}


def _measured(rig: Rig, client: GreedyClient, began_ms: int, seconds: int, gateways: int, demand: float) -> Measures:
    served = Served()
    query = _SERVED.format(user=client.user, quota=client.quota.value)
    for timestamp_ms, value in run_query(query, {"decisions": rig.settings.delta.decisions}, {}):
        served.add(float(timestamp_ms - began_ms), value, 0)
    size = client.limit * client.size_s
    situation = Situation(client.quota, client.limit, client.limit * demand, size, gateways, seconds=seconds)
    return measure(situation, served)
