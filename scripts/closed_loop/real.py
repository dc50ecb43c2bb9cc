"""The closed loop for real: broker, job, gateway processes and greedy clients; table `decisions` says what they got."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from scripts.closed_loop.greedy_gateway import CLIENTS, READY, GreedyClient
from scripts.closed_loop.measures import Measures, measure
from scripts.closed_loop.simulation import Served
from scripts.closed_loop.situation import Situation
from scripts.testbed.job import wait_until
from scripts.testbed.job_under_test import JobUnderTest
from scripts.testbed.processes import Child
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


def run_real(
    folder: Path, gateways: int, seconds: int, demand: float, job_down: tuple[float, float] | None = None
) -> dict[str, Measures]:
    """What each greedy client got of its quota: `demand` is in quotas, `job_down` when the job is killed and back.

    Everything is kept in `folder`.
    """
    with JobUnderTest(folder, _SECTIONS, _QUOTAS) as job:
        job.start()
        children = [_gateway(folder, job, number, gateways, seconds, demand / gateways) for number in range(gateways)]
        wait_until(lambda: all(READY in _log(folder, number).read_text() for number in range(gateways)), _START_S)
        began_ms = time.time_ns() // 1_000_000
        if job_down is not None:
            _interrupt(job, job_down)
        for child in children:
            child.wait(seconds + _START_S)
        job.drain(_DRAIN_S)
        return {client.user: _measured(job, client, began_ms, seconds, gateways, demand) for client in CLIENTS}


def _gateway(folder: Path, job: JobUnderTest, number: int, gateways: int, seconds: int, demand: float) -> Child:
    command = [sys.executable, "-m", "scripts.closed_loop.greedy_gateway", str(job.settings_file)]
    return Child([*command, str(gateways), str(seconds), str(demand)], _log(folder, number))


def _log(folder: Path, number: int) -> Path:
    return folder / f"gateway-{number}.log"


def _interrupt(job: JobUnderTest, job_down: tuple[float, float]) -> None:
    """Kill the job and start it again, at these seconds."""
    began_s = time.monotonic()
    time.sleep(job_down[0])  # the clients go on meanwhile
    job.kill()
    time.sleep(max(0.0, began_s + job_down[1] - time.monotonic()))
    job.start()


def _measured(
    job: JobUnderTest, client: GreedyClient, began_ms: int, seconds: int, gateways: int, demand: float
) -> Measures:
    served = Served()
    paths: Mapping[str, str] = {"decisions": job.settings.delta.decisions}
    for timestamp_ms, value in run_query(_SERVED.format(user=client.user, quota=client.quota.value), paths, {}):
        served.add(float(timestamp_ms - began_ms), value, 0)
    size = client.limit * client.size_s
    situation = Situation(client.quota, client.limit, client.limit * demand, size, gateways, seconds=seconds)
    return measure(situation, served)
