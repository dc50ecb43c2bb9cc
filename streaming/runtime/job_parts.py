"""Parts of the job that extras give: functions in the entry points of the group `sluice.job_parts`.

The job calls each at its start with a JobView, and the doctor too: they start nothing. Those of one extra don't know of
another's.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

from prometheus_client.registry import Collector

from sluice.configs.extras import JOB_PARTS, called
from sluice.configs.settings import Settings
from sluice.process.background import BackgroundService
from sluice.state.overrides.decider import Decider
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.resolution import Quotas
from sluice.state.shares.load import NO_LIMITS, BrokerLimits
from sluice.state.troubles import Facts
from sluice.streaming.runtime.observers import Observer


class JobView(NamedTuple):
    """The part of the job that those of extras may know: its settings, quotas, limits and capacities in force.

    `report_input` is told after each poll of an input why it can't be read, None if it can, by the input's name.
    """

    settings: Settings
    quotas: Callable[[], Quotas]
    limits: Callable[[], Iterable[QuotaEntry]] = tuple
    capacities: Callable[[], BrokerLimits] = lambda: NO_LIMITS
    report_input: Callable[[str, str | None], None] = lambda _name, _reason: None


class JobParts(NamedTuple):
    """Deciders of overrides, services that run beside the queries, such as those that read for deciders; metrics.

    `observers` are by name, as those of `sluice.observers`. `facts` are of what is wrong now, beside the job's own.
    """

    deciders: Sequence[Decider] = ()
    services: Sequence[BackgroundService] = ()
    metrics: Sequence[Collector] = ()
    observers: Mapping[str, Observer] = {}
    facts: Callable[[], Facts] | None = None


def parts_of_extras(job: JobView) -> JobParts:
    """Those of all extras that are installed. Raises InvalidSettingsError for an extra that doesn't fit."""
    found = [called(point, JobParts, job) for point in entry_points(group=JOB_PARTS)]
    return JobParts(
        [each for of_extra in found for each in of_extra.deciders],
        [each for of_extra in found for each in of_extra.services],
        [each for of_extra in found for each in of_extra.metrics],
        dict(ChainMap(*(dict(of_extra.observers) for of_extra in found))),
        next((of_extra.facts for of_extra in found if of_extra.facts is not None), None),
    )
