"""The deciders, as the job asks for them (`sluice.streaming.runtime.job_parts`)."""

from sluice.state.overrides.decider import Decider
from sluice.streaming.runtime.job_parts import JobParts, JobView
from sluice_elastic.disk_guard import DiskGuard
from sluice_elastic.disks import DisksWatch
from sluice_elastic.settings import ElasticSettings
from sluice_elastic.storage_budget import StorageBudgets
from sluice_elastic.tighten import ElasticLimits


def parts(job: JobView) -> JobParts:
    """Those that the settings ask for; disk guard and storage budgets decide nothing without a floor or a budget."""
    settings, floor = job.settings.section(ElasticSettings), job.settings.brokers.disk_floor
    disks = DisksWatch(job.quotas, floor, settings.disk_remembered_s * 1000)
    tightening: list[Decider] = [ElasticLimits(job.quotas)] if settings.gives_way else []
    guard = DiskGuard(lambda: disks.disks, reads_heartbeats=any(floor))
    budgets = StorageBudgets(job.quotas, lambda: disks.disks)
    return JobParts([*tightening, guard, budgets], [disks.service(job.settings.kafka)], [disks])
