"""Values from driver to tasks of one micro-batch: a local property of Spark, written in `query`, read in `stages`.

Spark keeps local properties per thread and sends them along with every job that the thread starts. This works because
`foreachBatch` calls the query's function in the thread that runs the micro-batch, and the function starts its one
action in that same thread. An action from another thread would have the properties of another batch, or none.
"""

from functools import lru_cache

import msgspec
from pyspark import SparkContext, TaskContext

from sluice.state.contract.gateway_topics import Overrides
from sluice.state.quotas.resolution import Quotas
from sluice.streaming.checkpoint.batch_log import BatchSettings
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots
from sluice.streaming.enforce.garbage_collection import freeze_objects
from sluice.streaming.enforce.pipeline_settings import PipelineSettings
from sluice.streaming.workers.release import check_release

_PROPERTY = "sluice.batch"


class BatchProperties(msgspec.Struct, frozen=True):
    """The inputs that decide a micro-batch: quotas, time, and whether partial decisions are combined; its number.

    It leaves as many `pages`, and finds `pages_before`: fewer if it splits them. `task` is the number of the task that
    reads this, among those of its stage. `overrides` say how far limits give way, None if all are the quotas.
    `quota_digest` is that of the snapshot, None for the newest of the version. `batch_settings` has the settings of a
    micro-batch that is repeated.
    """

    quota_version: int
    decided_at_ms: int
    combined: bool
    pages: int
    pages_before: int
    batch_id: int
    task: int = 0
    overrides: Overrides | None = None
    quota_digest: str | None = None
    batch_settings: BatchSettings | None = None

    @property
    def splits(self) -> bool:
        """True if every page is read and written, and its entities are spread over more pages."""
        return self.pages != self.pages_before

    def announce(self, context: SparkContext) -> None:
        """Attach these properties to all later jobs of this thread."""
        context.setLocalProperty(_PROPERTY, msgspec.json.encode(self).decode())

    @classmethod
    def of_task(cls) -> "BatchProperties":
        """The properties of the micro-batch that this task is part of. Raises RuntimeError outside of one.

        Raises ReleaseError in a worker of another release than the driver's.
        """
        check_release()
        context = TaskContext.get()
        content = context.getLocalProperty(_PROPERTY) if context else None
        if context is None or content is None:
            raise RuntimeError("this runs in the tasks of an announced micro-batch only")
        return msgspec.structs.replace(msgspec.json.decode(content, type=cls), task=context.partitionId())

    def settings(self, settings: PipelineSettings) -> PipelineSettings:
        """The job's settings as this micro-batch was begun with, with its pages."""
        own = settings._replace(pages=self.pages)
        return own if self.batch_settings is None else own.with_batch_settings(self.batch_settings)

    def quotas(self, checkpoint: str) -> Quotas:
        """The quotas of the micro-batch, read once per worker process. Raises CheckpointError."""
        return snapshot_quotas(checkpoint, self.quota_version, self.quota_digest)


@lru_cache(maxsize=2)
def snapshot_quotas(checkpoint: str, version: int, digest: str | None) -> Quotas:
    quotas = QuotaSnapshots(Checkpoint(checkpoint)).load(version, digest)
    freeze_objects()
    return quotas
