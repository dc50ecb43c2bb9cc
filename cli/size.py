"""The command `sluice size`: jobs, cores, pages and gateways for a load, by what was measured on two cores."""

from typing import Annotated

import typer

from sluice.streaming.sizing import BUSY, Load, Sizing
from sluice.streaming.sizing import size as size_of

MEASURED_CORES = 2
"""Cores of the machine on which all figures were taken."""


def size(
    requests_per_s: Annotated[float, typer.Option(help="Request events a second, of all gateways together.", min=1)],
    entities: Annotated[
        int, typer.Option(help="Known entities: clients that are remembered, most of them at rest.", min=1)
    ],
    charges: Annotated[
        int, typer.Option(help="Charges of a request: a Produce with bytes and request time has 2.", min=1, max=100)
    ] = 2,
    gateways: Annotated[int, typer.Option(help="Gateways; more are planned if so many can't charge all.", min=1)] = 1,
    batch_s: Annotated[
        float, typer.Option(help="Length of a micro-batch; a decision comes 1.5 of them after its request.", min=0.5)
    ] = 2.0,
) -> None:
    """Plan jobs, cores, partitions, pages and gateways for a load, extrapolated from what was measured on two cores.

    Reads nothing and needs no job. docs/sizing.md says what each figure rests on.
    """
    for line in lines(size_of(Load(requests_per_s, entities, charges, gateways, batch_s)), batch_s):
        typer.echo(line)


def lines(sizing: Sizing, batch_s: float) -> list[str]:
    """The plan in words, a line for each thing to be had."""
    job = sizing.job
    busy = f"{job.decide_cores:.1f} decide, {job.entity_cores:.1f} read and write pages, {job.audit_cores:.1f} record"
    written = f"{_bytes(job.requests_bytes_per_s)}/s of requests, {_bytes(job.decisions_bytes_per_s)}/s of decisions"
    rows = [
        ("jobs", f"{sizing.jobs}, each with topics and gateways of its own, for an equal part of the users"),
        ("cores", f"{sizing.jobs * job.cores} of executors, in all jobs"),
        ("gateways", f"{sizing.gateways} Python processes, each {sizing.gateway_busy:.2f} of a core busy"),
        ("each job", f"{job.requests_per_s:,.0f} requests/s, {job.entities:,} entities, {job.gateways} gateways"),
        ("  cores", f"{job.cores}: {busy}, so {BUSY:.0%} busy at most"),
        ("  partitions", f"{job.cores} of the requests topic, and as many enforce.shuffle_partitions"),
        ("  pages", f"{job.pages:,} in state.pages; a micro-batch of {batch_s:g} s charges {job.charged_pages:.0%}"),
        ("  state", f"{_bytes(job.state_bytes)}; state.max_entities at least {job.entities:,}"),
        ("  decisions", f"{1.5 * batch_s:g} s after their requests on average"),
        ("  Kafka", f"{written}, before replication; {_bytes(job.read_bytes_per_s)}/s are read"),
        ("first limit", _first_limit(sizing)),
        (
            "extrapolated",
            f"a job has {job.cores / MEASURED_CORES:g} times the cores that were measured, {MEASURED_CORES}",
        ),
    ]
    return [f"{name:<14} {what}" for name, what in rows]


def _first_limit(sizing: Sizing) -> str:
    if sizing.jobs == 1:
        return "none that needs a second job"
    needed = f"{sizing.single_gateway_busy:.1f} cores to take in every decision"
    return f"of one job, a gateway would need {needed}; a Python process has one"


def _bytes(count: float) -> str:
    """A number of bytes with the unit that keeps it short.

    >>> _bytes(950), _bytes(13_000_000_000)
    ('950 B', '13.0 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"
