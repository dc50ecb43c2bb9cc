"""How large jobs and gateways have to be for a load, by what was measured on two cores; docs/sizing.md has the sources.

Everything beyond two cores is extrapolated in a straight line. Pure: no Spark, no clock, no settings.
"""

from dataclasses import dataclass
from math import ceil

DECIDE_US = {1: 64.0, 2: 84.0, 4: 163.0}
"""Core-microseconds of a request by its charges: two cores over the throughput of the enforce query, with broker."""

AUDIT_US = 52.0
"""Core-microseconds of a decision: two cores over the throughput of the audit query."""

ENTITY_US = 1.1
"""Core-microseconds of an entity on a page that a micro-batch charges: a page is read and written with all of them."""

ENTITY_BYTES = 130
"""Stored bytes of an entity with a full token bucket and a full window of request time."""

EVENT_BYTES = 300
"""A request event."""

DECISION_BYTES = (500, 170)
"""A decision: without charges, and for each charge."""

TAKE_US = 1e6 / 56_000
"""Core-microseconds in which a Python gateway takes one decision in. It reads those of all gateways of its job."""

ADMIT_US = 29.0 + 45.0
"""Core-microseconds in which a Python gateway charges a request of its own in line, and publishes it."""

MOST_GATEWAYS = 1_001
"""Gateways that share limits: a gateway counts itself and at most 1 000 others."""

BUSY = 0.5
"""Share of its cores that a job or a gateway is planned to use: the rest is for peaks, and to catch up."""

_US = 1e-6


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked for: request events a second, entities remembered, charges of a request, gateways, micro-batches.

    `batch_s` is the length of a micro-batch in seconds. A request has its decision after one and a half on average.
    """

    requests_per_s: float
    entities: int
    charges: int
    gateways: int
    batch_s: float


@dataclass(frozen=True, slots=True)
class JobSize:
    """One job, with topics and gateways of its own; the byte rates are in bytes/s, without Kafka's replicas.

    `decide_cores`, `entity_cores` and `audit_cores` are busy on average, `cores` are to be had. `charged_pages` is the
    share (0 to 1) of the pages that a micro-batch reads and writes.
    """

    requests_per_s: float
    entities: int
    gateways: int
    pages: int
    charged_pages: float
    decide_cores: float
    entity_cores: float
    audit_cores: float
    cores: int
    state_bytes: int
    requests_bytes_per_s: float
    decisions_bytes_per_s: float
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """`jobs` jobs like `job`, each for an equal part of the users.

    `gateways` are those of all jobs, at least those of the load; `gateway_busy` is the share of a core (0 to 1) that
    each uses, and `single_gateway_busy` the same if one job decided all.
    """

    jobs: int
    job: JobSize
    gateways: int
    gateway_busy: float
    single_gateway_busy: float


def size(load: Load) -> Sizing:
    """The fewest equal jobs for a load whose gateways still take in all decisions of their job.

    >>> sizing = size(Load(requests_per_s=20_000, entities=2_000_000, charges=2, gateways=8, batch_s=2))
    >>> sizing.jobs, sizing.gateways, sizing.job.gateways, sizing.job.cores
    (2, 8, 4, 4)
    """
    jobs = 1
    while _busy(part := _part(load, jobs)) > BUSY or part.gateways > MOST_GATEWAYS:
        jobs += 1
    return Sizing(jobs, job_size(part), jobs * part.gateways, _busy(part), _busy(load))


def _part(load: Load, jobs: int) -> Load:
    """One of `jobs` equal parts of a load. A gateway belongs to one job, and each job has as many."""
    gateways = ceil(load.gateways / jobs)
    return Load(load.requests_per_s / jobs, ceil(load.entities / jobs), load.charges, gateways, load.batch_s)


def _busy(load: Load) -> float:
    """The share of a core that each gateway of a job uses."""
    return gateway_busy(load.requests_per_s, load.requests_per_s / load.gateways)


def gateway_busy(decisions_per_s: float, requests_per_s: float) -> float:
    """The share of a core that a Python gateway uses, by the decisions of its job and its own requests.

    >>> round(gateway_busy(decisions_per_s=12_000, requests_per_s=1_000), 3)
    0.288
    """
    return (decisions_per_s * TAKE_US + requests_per_s * ADMIT_US) * _US


def job_size(load: Load) -> JobSize:
    """One job for a load.

    >>> job = job_size(Load(requests_per_s=10_000, entities=1_000_000, charges=2, gateways=4, batch_s=2))
    >>> round(job.decide_cores, 2), round(job.entity_cores, 2), round(job.audit_cores, 2), job.cores
    (0.84, 0.5, 0.52, 4)
    """
    pages = pages_for(load.entities)
    charged = charged_pages(load.requests_per_s * load.batch_s * load.charges, pages)
    decide = load.requests_per_s * decide_us(load.charges) * _US
    entity = load.entities * charged * ENTITY_US * _US / load.batch_s
    audit = load.requests_per_s * AUDIT_US * _US
    itself, each = DECISION_BYTES
    decisions = load.requests_per_s * (itself + each * load.charges)
    requests = load.requests_per_s * EVENT_BYTES
    return JobSize(
        requests_per_s=load.requests_per_s,
        entities=load.entities,
        gateways=load.gateways,
        pages=pages,
        charged_pages=charged,
        decide_cores=decide,
        entity_cores=entity,
        audit_cores=audit,
        cores=ceil((decide + entity + audit) / BUSY),
        state_bytes=load.entities * ENTITY_BYTES,
        requests_bytes_per_s=requests,
        decisions_bytes_per_s=decisions,
        read_bytes_per_s=requests + decisions * (load.gateways + 1),
    )


def pages_for(entities: int) -> int:
    """`state.pages`: the default up to a million entities, above that the most there can be.

    >>> pages_for(1_000_000), pages_for(100_000_000)
    (16384, 65536)
    """
    return 16_384 if entities <= 1_000_000 else 65_536


def charged_pages(charges: float, pages: int) -> float:
    """The share of the pages that a micro-batch charges, if its charges fall on them evenly and at random.

    A page is spared with the probability (1 - 1/pages) ** charges.

    >>> round(charged_pages(16_384, 16_384), 3), round(charged_pages(1_000_000, 16_384), 3)
    (0.632, 1.0)
    """
    return float(1.0 - (1.0 - 1.0 / pages) ** charges)


def decide_us(charges: int) -> float:
    """Core-microseconds of a request, between and beyond what was measured in a straight line.

    >>> decide_us(2), decide_us(3), decide_us(6)
    (84.0, 123.5, 242.0)
    """
    (one, one_us), (two, two_us), (four, four_us) = sorted(DECIDE_US.items())
    if charges <= two:
        return one_us + (charges - one) * (two_us - one_us) / (two - one)
    return two_us + (charges - two) * (four_us - two_us) / (four - two)
