"""Mutations: how long CreateTopics waits at a gateway for the job's decision, and for the answer of the share."""

import time
from collections.abc import Callable
from itertools import count

import numpy as np

from sluice.gateways.client.answer import Answer
from sluice.gateways.client.client import Gateway
from sluice.state.contract.records import Mutation, Request
from sluice.state.quotas.entity import QuotaEntity
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice_demo.gateways import gateway_options
from sluice_demo.job import wait_until
from sluice_lab.benchmarks.events import ONE_CHARGE, spread
from sluice_lab.benchmarks.latency import requests_of
from sluice_lab.benchmarks.report import Findings
from sluice_lab.benchmarks.rig import BenchError, BenchmarkRig, Driver, Setup
from sluice_lab.benchmarks.scale import Scale
from sluice_lab.testbed.quotas_without_job import publish_limits

_RATE_PER_S = 1_000
_CALLS = 100
_READY_S = 120.0
_LONGEST_S = 600
_USER = "creator"
_QUOTAS = [*ONE_CHARGE.quotas, QuotaEntry(QuotaEntity(user=_USER), QuotaKind.CONTROLLER_MUTATION_RATE, 1e6)]
_SECTION = f"Mutations at a gateway, beside {_RATE_PER_S} requests/s"


def measure_mutations(rig: BenchmarkRig, scale: Scale, findings: Findings) -> None:
    """p50 and p99 of both, of one call after the other, each for one topic within its quota."""
    found: dict[str, list[list[float]]] = {"by the decision": [], "by the share": []}
    with rig.driver() as job:
        for run in range(scale.runs + 1):  # the first one warms Java up
            name = f"mutations-{run}"
            setup = rig.setup(name, f"{name}-requests", _QUOTAS)
            publish_limits(rig.servers, _QUOTAS, 1, {}, setup.settings.topics.limits)
            if run == 0:
                job.session(setup.file)
            decided_ms, shared_ms = _waits_ms(rig, scale, job, setup, 0.0 if run else scale.warm_s)
            if run:
                found["by the decision"].append(decided_ms)
                found["by the share"].append(shared_ms)
    for name, runs in found.items():
        for percentile in (50, 99):
            values = [float(np.percentile(each, percentile)) for each in runs]
            findings.add(_SECTION, f"{name}, p{percentile}", "ms", values)


def _waits_ms(
    rig: BenchmarkRig, scale: Scale, job: Driver, setup: Setup, warm_s: float
) -> tuple[list[float], list[float]]:
    """Milliseconds of each call, by the decision and by the share. Raises BenchError if a decision didn't come."""
    settings, numbers = setup.settings, count()
    load = requests_of(ONE_CHARGE, spread(_LONGEST_S * _RATE_PER_S, scale.users))
    job.start("enforce", setup.file)
    try:
        with (
            rig.sending(settings.topics.requests, _RATE_PER_S, load),
            Gateway(settings.kafka, gateway_options(settings)) as gateway,
        ):
            wait_until(lambda: gateway.stats().limits_version is not None and not gateway.is_stale(), _READY_S)
            until_s = time.monotonic() + warm_s
            while _call_ms(gateway.admit_mutations, next(numbers)) and time.monotonic() < until_s:
                pass  # Java compiles, and what came before is decided
            inline = gateway.stats().charged_inline
            decided_ms = [_call_ms(gateway.admit_mutations, next(numbers)) for _ in range(_CALLS)]
            if gateway.stats().charged_inline > inline:
                raise BenchError(f"a decision took longer than {gateway.options.decide_timeout_ms} ms")
            return decided_ms, [_call_ms(gateway.admit, next(numbers)) for _ in range(_CALLS)]
    finally:
        job.stop()


def _call_ms(call: Callable[[Request], Answer], number: int) -> float:
    """Milliseconds of a call for a CreateTopics of one topic."""
    request = Request("CreateTopics", user=_USER, client_id="app", mutations=[Mutation(f"topic-{number}", 1)])
    begun_s = time.perf_counter()
    call(request)
    return (time.perf_counter() - begun_s) * 1000
