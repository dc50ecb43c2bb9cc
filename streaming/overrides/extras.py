"""Deciders of extras: functions in the entry points of the group `sluice.deciders`, which the job calls at its start.

Each takes a Deciding and returns its Deciders. Those of one extra don't know of another's.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

from prometheus_client.registry import Collector

from sluice.configs.extras import DECIDERS, loaded
from sluice.configs.settings import Settings
from sluice.process.background import BackgroundService
from sluice.state.overrides.decider import Decider
from sluice.state.quotas.resolution import Quotas


class Deciding(NamedTuple):
    """The part of the job that deciders may know: its settings, and the quotas in force.

    `report_input` is told after each poll of an input why it can't be read, None if it can, by the input's name.
    """

    settings: Settings
    quotas: Callable[[], Quotas]
    report_input: Callable[[str, str | None], None] = lambda _name, _reason: None


class Deciders(NamedTuple):
    """Deciders, with the services that read for them what they need, and the metrics of these."""

    deciders: Sequence[Decider]
    services: Sequence[BackgroundService] = ()
    metrics: Sequence[Collector] = ()


def deciders_of_extras(job: Deciding) -> Deciders:
    """Those of all extras that are installed. Raises InvalidSettingsError for an extra of another release."""
    found: list[Deciders] = [loaded(point)(job) for point in entry_points(group=DECIDERS)]
    return Deciders(
        [each for of_extra in found for each in of_extra.deciders],
        [each for of_extra in found for each in of_extra.services],
        [each for of_extra in found for each in of_extra.metrics],
    )
