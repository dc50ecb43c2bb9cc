"""The deciders, as the job asks for them (`sluice.streaming.overrides.extras`)."""

from sluice.state.overrides.decider import Decider
from sluice.streaming.overrides.extras import Deciders, Deciding
from sluice_elastic.disk_guard import DiskGuard
from sluice_elastic.disks import DisksWatch
from sluice_elastic.settings import ElasticSettings
from sluice_elastic.storage_budget import StorageBudgets
from sluice_elastic.tighten import ElasticLimits


def deciders(job: Deciding) -> Deciders:
    """Those that the settings ask for; disk guard and storage budgets decide nothing without a floor or a budget."""
    settings, floor = job.settings.section(ElasticSettings), job.settings.brokers.disk_floor
    disks = DisksWatch(job.quotas, floor, settings.disk_remembered_s * 1000)
    tightening: list[Decider] = [ElasticLimits(job.quotas)] if settings.gives_way else []
    guard = DiskGuard(lambda: disks.disks, reads_heartbeats=any(floor))
    budgets = StorageBudgets(job.quotas, lambda: disks.disks)
    return Deciders([*tightening, guard, budgets], [disks.service(job.settings.kafka)], [disks])
